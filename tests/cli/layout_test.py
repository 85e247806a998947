#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Layouts that are written, read back, and supplied by another program."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

BINARY = os.environ.get("CROSSMESH", "build/dev/bin/crossmesh")
ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = str(ROOT / "tests" / "data" / "configs" / "small-qwen3.json")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60)


class Layouts(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, *words: str) -> Path:
        path = self.folder / name
        done = run("layout", CONFIG, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        path.write_text(done.stdout)
        return path

    def plan(self, trainer: str, engine: str) -> dict[str, object]:
        done = run("plan", CONFIG, "--trainer", trainer, "--engine", engine, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_written_layout_plans_as_its_spec_does(self) -> None:
        trainer = self.write("trainer.json", "--trainer", "fsdp=3")
        engine = self.write("engine.json", "--engine", "replicas=2,tp=2")
        from_specs = self.plan("fsdp=3", "replicas=2,tp=2")
        for pair in ((f"@{trainer}", f"@{engine}"), (f"@{trainer}", "replicas=2,tp=2")):
            from_files = self.plan(*pair)
            self.assertEqual(from_files["fingerprint"], from_specs["fingerprint"])
            self.assertEqual(from_files["egress_bytes"], from_specs["egress_bytes"])

    def test_a_file_alone_is_checked_and_explained(self) -> None:
        done = run("layout", str(self.write("trainer.json", "--trainer", "fsdp=3")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 ranks", done.stdout)

    def test_a_layout_that_breaks_a_rule_is_refused_by_name(self) -> None:
        path = self.write("trainer.json", "--trainer", "fsdp=3")
        layout = json.loads(path.read_text())
        for change, code in (({"version": 2}, "mismatch"), ({"schema": "x"}, "mismatch"),
                             ({"rank_count": -1}, "corrupt_file"), ({"tensors": 3}, "corrupt_file")):
            path.write_text(json.dumps(layout | change))
            done = run("plan", CONFIG, "--trainer", f"@{path}", "--engine", "tp=1", "--json")
            self.assertEqual(done.returncode, 1)
            error = json.loads(done.stdout)["error"]
            self.assertEqual(error["code"], code, error)
            self.assertIn(str(path), error["text"])

    def test_slots_of_experts_are_written_and_a_file_has_its_own(self) -> None:
        config = str(ROOT / "tests" / "data" / "configs" / "small-mixtral.json")
        slots = self.folder / "slots.json"
        experts = json.loads(Path(config).read_text())["num_local_experts"]
        slots.write_text(json.dumps([[*range(experts), *range(experts)]]))
        words = ("--expert-slots", str(slots))
        done = run("layout", config, "--engine", "tp=2,experts=linear", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        layout = json.loads(done.stdout)
        plain = run("layout", config, "--engine", "tp=1")
        layers = json.loads(Path(config).read_text())["num_hidden_layers"]
        self.assertEqual(len(layout["instances"]) - len(json.loads(plain.stdout)["instances"]),
                         3 * experts * layers)
        path = self.folder / "engine.json"
        path.write_text(done.stdout)
        done = run("plan", config, "--trainer", "fsdp=2", "--engine", f"@{path}", *words)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr,
                         "crossmesh: lay out: the engine's layout says where experts lie\n"
                         f"  engine  @{path}\n"
                         f"  expert slots  {slots}\n")

    def test_what_is_no_layout_is_refused(self) -> None:
        path = self.folder / "deep.json"
        for text in ("", "{", "[" * 100_000, "[" * 50 + "]" * 50):
            path.write_text(text)
            done = run("layout", str(path))
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertEqual(done.stderr,
                             f"crossmesh: read layout: the file is not JSON\n  file  {path}\n")

    def test_what_cannot_be_read_as_a_file_is_named(self) -> None:
        folder = "  system  Is a directory\n"
        for words in (("layout", str(self.folder)),
                      ("plan", CONFIG, "--trainer", f"@{self.folder}", "--engine", "tp=2")):
            done = run(*words)
            self.assertEqual((done.returncode, done.stderr), (
                1, "crossmesh: read layout: the file cannot be read\n"
                f"  file  {self.folder}\n{folder}"))

    def test_a_move_wants_its_engine_as_a_mesh(self) -> None:
        model = str(self.folder / "model")
        self.assertEqual(run("synth", model, "--config", CONFIG).returncode, 0)
        engine = self.write("engine.json", "--engine", "tp=2")
        done = run("move", model, "--trainer", "fsdp=2", "--engine", f"@{engine}")
        self.assertEqual((done.returncode, done.stderr), (
            1, "crossmesh: move: an engine's layout from a file is only planned\n"
            f"  engine  @{engine}\n"
            "  hint  give the engine as a mesh (tp=2), or use `crossmesh plan`\n"))

    def test_the_schema_file_describes_what_is_written(self) -> None:
        schema = json.loads((ROOT / "docs" / "layout.schema.json").read_text())
        layout = json.loads(self.write("e.json", "--engine", "tp=2").read_text())
        self.assertEqual(set(schema["required"]), set(layout))
        self.assertEqual(schema["properties"]["schema"]["const"], layout["schema"])
        self.assertEqual(schema["properties"]["version"]["const"], layout["version"])


if __name__ == "__main__":
    unittest.main()
