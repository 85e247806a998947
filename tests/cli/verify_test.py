#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leaves runs on disk with `--dump`, damages them, and sees what `crossmesh verify` says of it.

The binary is named by the environment variable CROSSMESH.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path
from typing import Any

BINARY = os.path.abspath(os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"))
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DONE, FAILED, USAGE = 0, 1, 2
QKV = "model.layers.0.self_attn.qkv_proj.weight"


def read_file(path: Path) -> tuple[dict[str, Any], bytearray]:
    """Returns the header of a safetensors file, and its data."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])


def write_file(path: Path, header: dict[str, Any], data: bytes) -> None:
    """Writes a safetensors file."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


def bf16_text(bits: int) -> str:
    """Returns a BF16 number as the command writes it."""
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return f"0x{bits:04x} {value:.9g}"


class Verify(unittest.TestCase):
    """Runs of one small model, made once; each test damages copies of its own."""

    folder: tempfile.TemporaryDirectory[str]
    home: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.home = Path(cls.folder.name)
        for family in ("llama", "qwen3", "deepseek-v2"):
            cls.run_plain("synth", cls.home / family, "--config",
                          CONFIGS / f"small-{family}.json")
        cls.dump("run", "--trainer", "fsdp=2", "--engine", "tp=2")

    @classmethod
    def run_plain(cls, *words: str | Path) -> tuple[int, str, str]:
        done = subprocess.run([BINARY, *map(str, words)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False, timeout=300)
        hide = cls.folder.name
        return done.returncode, done.stdout.replace(hide, "DIR"), done.stderr.replace(hide, "DIR")

    @classmethod
    def dump(cls, name: str, *words: str | Path, family: str = "llama", updates: int = 2) -> Path:
        code, _, errors = cls.run_plain(
            "move", cls.home / family, "--no-floor", "--iterations", str(updates), "--dump",
            cls.home / name, *words)
        if code != DONE:
            raise AssertionError(errors)
        return cls.home / name

    def setUp(self) -> None:
        self.maxDiff = None

    def copy(self, name: str = "run") -> Path:
        copy = self.home / f"copy-{self.id().split('.')[-1]}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.home / name, copy)
        self.addCleanup(shutil.rmtree, copy)
        return copy

    def verify(self, a: Path, b: Path, *words: str) -> tuple[int, str, str]:
        code, output, errors = self.run_plain("verify", a, b, *words)
        hide = lambda text: text.replace(f"copy-{self.id().split('.')[-1]}", "COPY")
        return code, hide(output), hide(errors)

    def assert_equal(self, a: Path, b: Path) -> dict[str, Any]:
        code, output, errors = self.verify(a, b, "--json")
        self.assertEqual((code, errors), (DONE, ""), output)
        found = json.loads(output)
        self.assertIs(found["equal"], True)
        self.assertEqual((found["elements_different"], found["differences"]), (0, []))
        return found

    def assert_refused(self, error_code: str, text: str, a: Path, b: Path) -> None:
        self.assertEqual(self.verify(a, b), (FAILED, "", f"crossmesh: {text}\n"))
        code, output, errors = self.verify(a, b, "--json")
        self.assertEqual((code, errors), (FAILED, f"crossmesh: {text}\n"))
        self.assertEqual(json.loads(output), {"error": {"code": error_code, "text": text}})

    def flip(self, run: Path, engine: int, parameter: str, places: list[int], bit: int = 1) -> None:
        """Flips bits of a byte of the elements at `places`, counted in BF16."""
        path = run / f"engine-{engine:05}.safetensors"
        header, data = read_file(path)
        for place in places:
            data[header[parameter]["data_offsets"][0] + 2 * place] ^= bit
        write_file(path, header, data)

    def bits(self, run: Path, engine: int, parameter: str, place: int) -> int:
        header, data = read_file(run / f"engine-{engine:05}.safetensors")
        at = header[parameter]["data_offsets"][0] + 2 * place
        return struct.unpack("<H", data[at : at + 2])[0]


class Equal(Verify):
    """Runs that hold the same."""

    def test_a_run_says_what_it_is(self) -> None:
        self.assertEqual(sorted(p.name for p in (self.home / "run").iterdir()),
                         ["engine-00000.safetensors", "engine-00001.safetensors", "run.json"])
        self.assertEqual(json.loads((self.home / "run" / "run.json").read_text()), {
            "crossmesh_run": 1,
            "model": f"{self.home}/llama",
            "config": (self.home / "llama" / "config.json").read_text(),
            "trainer": "fsdp=2",
            "engine": "tp=2",
            "engine_ranks": 2,
            "parameter_dtype": "BF16",
            "expert_slots": False,
            "version": 2,
        })

    def test_a_run_equals_itself_its_checkpoint_and_runs_of_other_trainers(self) -> None:
        run, model = self.home / "run", self.home / "llama"
        other = self.dump("other", "--trainer", "fsdp=3", "--engine", "tp=2", "--route", "packed")
        threads = self.dump("threads", "--trainer", "fsdp=2,tp=2", "--engine", "tp=2",
                            "--transport", "inproc")
        for a, b in ((run, run), (run, other), (threads, run), (run, model), (model, run)):
            with self.subTest(a=a.name, b=b.name):
                found = self.assert_equal(a, b)
                self.assertEqual((found["elements"], found["engine_ranks"]), (34384, 2))
                self.assertEqual(found["a"], {"path": str(a).replace(str(self.home), "DIR"),
                                              "version": 2})
        self.assertEqual(self.verify(run, other), (
            DONE, f"equal: 34,384 elements of {found['parameters']} parameters on 2 engine ranks\n",
            ""))

    def test_casts_stages_and_experts_equal_their_checkpoint(self) -> None:
        for number, (family, engine, dtype) in enumerate((
                ("qwen3", "tp=2", "F32"), ("llama", "replicas=2,tp=2", "F16"),
                ("deepseek-v2", "pp=2,tp=2", "BF16"),
                ("deepseek-v2", "dp=2,tp=2,experts=linear", "F32"))):
            with self.subTest(family=family, engine=engine, dtype=dtype):
                run = self.dump(f"many-{number}", "--trainer", "fsdp=2", "--engine", engine,
                                "--param-dtype", dtype, "--transport", "inproc", family=family)
                self.assert_equal(run, self.home / family)
                self.assertEqual(json.loads((run / "run.json").read_text())["parameter_dtype"],
                                 dtype)
                header, _ = read_file(run / "engine-00001.safetensors")
                self.assertEqual({value["dtype"] for value in header.values()}, {dtype})

    def test_a_run_keeps_the_slots_of_its_experts(self) -> None:
        slots = self.home / "slots.json"
        slots.write_text("[[0, 1, 2, 3, 4, 5, 0, 3]]")
        words = ("--trainer", "fsdp=2", "--engine", "tp=2,experts=linear")
        run = self.dump("slots", *words, "--expert-slots", slots, family="deepseek-v2")
        slots.unlink()
        self.assertEqual((run / "expert-slots.json").read_text(), "[[0,1,2,3,4,5,0,3]]\n")
        self.assert_equal(run, self.home / "deepseek-v2")
        plain = self.dump("no-slots", *words, family="deepseek-v2")
        self.assert_refused("mismatch", "verify: A and B hold experts in different slots\n"
                            "  A  DIR/slots/expert-slots.json\n  B  no table", run, plain)
        (run / "expert-slots.json").write_text("[[0, 1, 2, 3, 4, 5, 0, 6]]")
        self.assert_refused("invalid_argument",
                            "lay out: a slot holds an expert that there is not\n"
                            "  slot  7\n  expert  6\n  experts  6",
                            run, self.home / "deepseek-v2")

    def test_ranks_started_one_by_one_leave_the_same_run(self) -> None:
        session, run = uuid.uuid4().hex, self.home / "by-hand"
        ranks = [subprocess.Popen(
            [BINARY, "rank", self.home / "llama", "--trainer", "fsdp=2", "--engine", "tp=2",
             "--no-floor", "--iterations", "2", "--dump", run, "--rank", str(rank), "--session",
             session, "--timeout", "60"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for rank in range(4)]
        self.assertEqual([rank.wait(timeout=120) for rank in ranks], [DONE] * 4)
        self.assert_equal(run, self.home / "run")
        self.assertEqual((run / "run.json").read_bytes(),
                         (self.home / "run" / "run.json").read_bytes())


class Different(Verify):
    """Runs that do not."""

    def test_one_flipped_bit_is_found_and_named(self) -> None:
        run, copy = self.home / "run", self.copy()
        self.flip(copy, 1, QKV, [37])
        header, _ = read_file(run / "engine-00001.safetensors")
        columns = header[QKV]["shape"][1]
        right = self.bits(run, 1, QKV, 37)
        total, there = 34384, header[QKV]["shape"][0] * columns
        table = ("  engine  different  elements  parameter\n"
                 f"       1          1  {there:>8,}  {QKV}\n")
        place = f"element 37 at [{37 // columns}, {37 % columns}]"
        for a, b, bits, feeds in (
                (run, copy, (right, right ^ 1), ""),
                (copy, run, (right ^ 1, right), ""),
                (copy, self.home / "llama", (right ^ 1, right),
                 ", which model.layers.0.self_attn.q_proj.weight feeds"),
                (self.home / "llama", copy, (right, right ^ 1),
                 ", which model.layers.0.self_attn.q_proj.weight feeds")):
            with self.subTest(a=a.name, b=b.name):
                code, output, errors = self.verify(a, b)
                parameters = len(header.keys() - {"__metadata__"}) * 2
                self.assertEqual((code, output, errors), (
                    FAILED,
                    f"DIFFERENT: 1 of {total:,} elements, in 1 of {parameters} parameters on 2 "
                    "engine ranks\n"
                    f"first: engine 1, {QKV}, {place}{feeds}\n"
                    f"  A  BF16 {bf16_text(bits[0])}\n  B  BF16 {bf16_text(bits[1])}\n" + table,
                    ""))

    def test_json_lists_every_parameter_that_differs(self) -> None:
        run, copy = self.home / "run", self.copy()
        self.flip(copy, 0, "model.norm.weight", [3, 5])
        self.flip(copy, 1, QKV, [0, 1, 2])
        code, output, errors = self.verify(run, copy, "--json")
        self.assertEqual((code, errors), (FAILED, ""))
        found = json.loads(output)
        self.assertEqual((found["equal"], found["elements_different"]), (False, 5))
        rows = []
        for engine, parameter, first, index in ((0, "model.norm.weight", 3, [3]),
                                                (1, QKV, 0, [0, 0])):
            bits = self.bits(run, engine, parameter, first)
            texts = [bf16_text(one).split() for one in (bits, bits ^ 1)]
            header, _ = read_file(run / f"engine-{engine:05}.safetensors")
            elements = 1
            for extent in header[parameter]["shape"]:
                elements *= extent
            rows.append({
                "engine": engine, "parameter": parameter, "dtype": "BF16", "elements": elements,
                "elements_different": 2 if engine == 0 else 3,
                "first": {"element": first, "index": index,
                          "a": {"value": texts[0][1], "hex": texts[0][0]},
                          "b": {"value": texts[1][1], "hex": texts[1][0]}}})
        self.assertEqual(found["differences"], rows)

    def test_versions_differ_in_every_element(self) -> None:
        older = self.dump("older", "--trainer", "fsdp=2", "--engine", "tp=2", updates=1)
        code, output, errors = self.verify(self.home / "run", older)
        self.assertEqual((code, errors), (FAILED, ""))
        lines = output.splitlines()
        self.assertTrue(lines[0].startswith("DIFFERENT: "), output)
        self.assertEqual(lines[1], "A is at version 2, B at version 1")
        self.assertRegex(lines[-1], r"^  and \d+ more; --json lists all$")
        self.assert_equal(older, self.home / "llama")


class Refused(Verify):
    """What cannot be compared."""

    def test_runs_that_have_not_the_same_parameters_are_refused(self) -> None:
        run = self.home / "run"
        hint = ("  hint  what serves another way has other parameters; compare each run with its "
                "checkpoint")
        whole = self.dump("whole", "--trainer", "fsdp=2", "--engine", "tp=1")
        self.assert_refused("mismatch", "verify: A and B are of different engines\n"
                            f"  A  tp=2\n  B  tp=1\n{hint}", run, whole)
        wide = self.dump("wide", "--trainer", "fsdp=2", "--engine", "tp=2", "--param-dtype", "F32")
        self.assert_refused("mismatch", "verify: A and B are of different parameter dtypes\n"
                            f"  A  BF16\n  B  F32\n{hint}", run, wide)
        copy = self.copy()
        told = json.loads((copy / "run.json").read_text())
        config = json.loads(told["config"])
        told["config"] = json.dumps({**config, "rope_theta": 7})
        (copy / "run.json").write_text(json.dumps(told))
        text = ("verify: A and B are of different models\n"
                f"  config  /rope_theta\n  A  {json.dumps(config.get('rope_theta'))}\n  B  7")
        text = text.replace("A  null", "A  nothing")
        self.assert_refused("mismatch", text, run, copy)
        self.assert_refused("mismatch", text, self.home / "llama", copy)

    def test_a_missing_file_is_named(self) -> None:
        copy = self.copy()
        (copy / "engine-00001.safetensors").unlink()
        text = ("read run: the file of an engine rank is missing\n"
                "  file  DIR/COPY/engine-00001.safetensors\n"
                "  engine  1\n  engine ranks  2\n"
                "  hint  make the run again with --dump")
        self.assert_refused("io_failed", text, self.home / "run", copy)
        self.assert_refused("io_failed", text, copy, self.home / "llama")

    def test_a_parameter_that_is_missing_shaped_or_typed_otherwise_is_named(self) -> None:
        run, copy = self.home / "run", self.copy()
        path = copy / "engine-00001.safetensors"
        header, data = read_file(path)
        renamed = {("x" if name == QKV else name): value for name, value in header.items()}
        write_file(path, renamed, data)
        text = f"verify: a parameter is on one side only\n  parameter  {QKV}\n  engine  1\n"
        self.assert_refused("mismatch", text + "  there  A\n  missing  B", run, copy)
        self.assert_refused("mismatch", text + "  there  B\n  missing  A", copy,
                            self.home / "llama")
        rows, columns = header[QKV]["shape"]
        right = f"BF16 [{rows}, {columns}]"
        for change, text in ((("shape", [rows * columns]), f"BF16 [{rows * columns}]"),
                             (("dtype", "F16"), f"F16 [{rows}, {columns}]")):
            write_file(path, {**header, QKV: {**header[QKV], change[0]: change[1]}}, data)
            self.assert_refused("mismatch", "verify: a parameter has two shapes or dtypes\n"
                                f"  parameter  {QKV}\n  engine  1\n  A  {right}\n  B  {text}",
                                run, copy)
        write_file(path, {**header, QKV: {**header[QKV], "dtype": "F4",
                                          "shape": [rows, 4 * columns]}}, data)
        self.assert_refused("unsupported",
                            "read run: the elements of a parameter do not fill bytes\n"
                            "  file  DIR/COPY/engine-00001.safetensors\n"
                            f"  parameter  {QKV}\n  dtype  F4", run, copy)

    def test_a_hostile_run_is_refused_by_field(self) -> None:
        copy = self.copy()
        path = copy / "run.json"
        right = json.loads(path.read_text())
        rows: list[tuple[str, Any, str]] = [
            ("model", 7, "a text"), ("config", None, "a text"), ("trainer", [], "a text"),
            ("engine", {}, "a text"), ("engine_ranks", "2", "1 to 1000000"),
            ("engine_ranks", 0, "1 to 1000000"), ("engine_ranks", -1, "1 to 1000000"),
            ("engine_ranks", 10**18, "1 to 1000000"), ("engine_ranks", 2.0, "1 to 1000000"),
            ("engine_ranks", 2**64 - 1, "1 to 1000000"),
            ("version", -1, f"0 to {2**63 - 1}"), ("version", 2**63, f"0 to {2**63 - 1}"),
            ("expert_slots", 1, "true or false"), ("expert_slots", None, "true or false"),
            ("parameter_dtype", "BF17", "a dtype"), ("parameter_dtype", "F4", "a dtype"),
        ]
        for field, value, expected in rows:
            with self.subTest(field=field, value=value):
                changed = {**right, field: value}
                for told in ([changed] if value is not None else [
                        changed, {k: v for k, v in right.items() if k != field}]):
                    path.write_text(json.dumps(told))
                    self.assert_refused(
                        "corrupt_file", "read run: a field is missing or of another kind\n"
                        f"  file  DIR/COPY/run.json\n  field  {field}\n  expected  {expected}",
                        copy, self.home / "llama")
        for content in ("", "[]", "7", "{", '{"a":' * 50 + "1" + "}" * 50):
            with self.subTest(content=content[:8]):
                path.write_text(content)
                self.assert_refused("corrupt_file", "read run: the file is not a JSON object\n"
                                    "  file  DIR/COPY/run.json", copy, self.home / "llama")
        path.write_text(json.dumps({**right, "crossmesh_run": 2}))
        self.assert_refused("unsupported", "read run: the file is of another version\n"
                            "  file  DIR/COPY/run.json\n  version  2\n  known  1",
                            copy, self.home / "llama")
        path.write_text(json.dumps({**right, "engine_ranks": 3}))
        self.assert_refused("mismatch", "verify: the run has not the ranks of its engine\n"
                            "  engine  tp=2\n  ranks of the engine  2\n  ranks of the run  3",
                            copy, self.home / "llama")
        for text in ("", "{", "[]", "7", '{"a":' * 1000 + "1" + "}" * 1000, "[" * 1_000_000):
            with self.subTest(config=text[:8]):
                path.write_text(json.dumps({**right, "config": text}))
                for one, other, side in ((copy, self.home / "llama", "A"),
                                         (self.home / "llama", copy, "B"), (copy, copy, "A")):
                    self.assert_refused(
                        "corrupt_file", "verify: a config is not a JSON object of bounded depth\n"
                        f"  of  {side}\n  bytes  {len(text)}\n  depth max  64", one, other)
        path.write_text(json.dumps({**right, "new": [1]}))
        self.assert_equal(copy, self.home / "llama")
        for engine in ("@/etc/passwd", "tp=0", "tp=1000000", "", "cp=2", "tp=2,tp=2"):
            with self.subTest(engine=engine):
                path.write_text(json.dumps({**right, "engine": engine}))
                code, output, errors = self.verify(copy, self.home / "llama")
                self.assertEqual((code, output), (FAILED, ""))
                self.assertTrue(errors.startswith("crossmesh: "), errors)
                self.assertNotIn("passwd\n  system", errors)

    def test_one_of_both_must_be_a_run(self) -> None:
        self.assert_refused("invalid_argument", "verify: neither folder holds a run\n"
                            "  A  DIR/llama\n  B  DIR/qwen3\n"
                            "  hint  `crossmesh move --dump DIR` makes one",
                            self.home / "llama", self.home / "qwen3")
        self.assert_refused("invalid_argument", "verify: a config.json alone has no weights\n"
                            "  model  DIR/llama/config.json\n"
                            "  hint  give a run, or a checkpoint's folder",
                            self.home / "run", self.home / "llama" / "config.json")

    def test_a_run_is_not_overwritten(self) -> None:
        words = ("move", self.home / "llama", "--trainer", "fsdp=2", "--engine", "tp=2", "--dump")
        self.assertEqual(self.run_plain(*words, self.home / "run"), (
            FAILED, "", "crossmesh: dump: the folder holds a run already\n"
            "  folder  DIR/run\n  hint  give --dump another folder, or remove this one\n"))
        self.assertEqual(self.run_plain(*words, self.home / "llama" / "config.json"), (
            FAILED, "", "crossmesh: dump: there is something else than a folder\n"
            "  path  DIR/llama/config.json\n"))

    def test_a_run_is_not_mixed_with_a_model(self) -> None:
        before = sorted(path.name for path in (self.home / "llama").iterdir())
        self.assertEqual(
            self.run_plain("move", self.home / "llama", "--trainer", "fsdp=2", "--engine", "tp=2",
                           "--dump", self.home / "llama"),
            (FAILED, "", "crossmesh: dump: the folder holds a model\n  folder  DIR/llama\n"
             "  config  DIR/llama/config.json\n  hint  give --dump a folder of its own\n"))
        self.assertEqual(sorted(path.name for path in (self.home / "llama").iterdir()), before)

    def test_usage(self) -> None:
        for words in ((), ("a",), ("a", "b", "c"), ("a", "b", "--what")):
            self.assertEqual(self.run_plain("verify", *words)[:2], (USAGE, ""))


if __name__ == "__main__":
    unittest.main()
