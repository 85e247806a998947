#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move` by each way through shm, and looks at which way was taken.

The binary is named by the environment variable CROSSMESH.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Any

from runs import BINARY, DONE, FAILED, USAGE, Runs

# A dense model and one with experts, each on meshes of two ranks a side.
MODELS = ("small-qwen3", "small-qwen3-moe")
MESHES = {
    "small-qwen3": (("fsdp=2", "tp=2"),),
    "small-qwen3-moe": (("fsdp=2", "tp=2,experts=linear"), ("ep=2", "tp=2")),
}
ROUTES = ((), ("--route", "packed", "--staging-bytes-max", "4096"))
CASTS = ((), ("--param-dtype", "F32"))


SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
WHY_REFUSED = "the system refuses: Operation not permitted"
WAY_OUT = (
    "one user and group for all ranks, which are dumpable (PR_SET_DUMPABLE); or CAP_SYS_PTRACE "
    "(docker run --cap-add SYS_PTRACE)"
)
if SCOPE.exists():
    WHY_REFUSED += f"; kernel.yama.ptrace_scope is {SCOPE.read_text().strip()}"
    WAY_OUT = {
        "1": "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the ranks",
        "2": "CAP_SYS_PTRACE for the ranks, or sysctl kernel.yama.ptrace_scope=0",
        "3": "a boot with another kernel.yama.ptrace_scope: 3 cannot be lowered",
    }.get(SCOPE.read_text().strip(), WAY_OUT)


def can_attach() -> str:
    """Returns why no process here attaches to another, or nothing."""
    info = subprocess.run([BINARY, "info", "--json"], check=True, capture_output=True, text=True)
    facts = {fact["name"]: fact for fact in json.loads(info.stdout)["transports"]}
    if not facts["attach"]["available"]:
        return facts["attach"]["why"]
    scope = json.loads(info.stdout)["limits"]["ptrace_scope"]
    return scope if scope[0] in "23" and os.geteuid() != 0 else ""


class Ways(Runs):
    """Every run is judged by the command itself."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for model in MODELS:
            cls.synth(model, model.removeprefix("small-"))

    def run_binary(self, *words: str, model: str = "small-qwen3",
                   mesh: tuple[str, str] = ("fsdp=2", "tp=2")) -> tuple[int, str, str]:
        done = subprocess.run(
            [BINARY, "move", self.model(model), "--trainer", mesh[0],
             "--engine", mesh[1], "--iterations", "2", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def move(self, *words: str, **job: Any) -> dict[str, Any]:
        """Returns the result of a move that must succeed."""
        code, output, errors = self.run_binary(*words, "--json", **job)
        self.assertEqual((code, errors), (DONE, ""))
        found = json.loads(output)
        self.assertIs(found["verified"], True)
        return found

    def ways(self, *words: str, **job: Any) -> list[dict[str, Any]]:
        """Returns how each pair of two trainers and two engines moved its bytes."""
        found = self.move(*words, **job)
        self.assertEqual([(way["trainer"], way["engine"]) for way in found["ways"]],
                         [(0, 2), (1, 2), (0, 3), (1, 3)])
        self.assertTrue(all(way["bytes_per_second"] > 0 for way in found["ways"]))
        return found["ways"]

    def assert_way(self, way: str, *words: str) -> None:
        for model in MODELS:
            for mesh in MESHES[model]:
                for route, cast in itertools.product(ROUTES, CASTS):
                    with self.subTest(words=words, mesh=mesh, route=route, cast=cast):
                        taken = self.ways(*words, *route, *cast, model=model, mesh=mesh)
                        self.assertEqual({one["way"] for one in taken}, {way})

    def assert_each_byte_is_in_one_pair(self, found: dict[str, Any]) -> None:
        self.assertEqual(sum(way["bytes"] for way in found["ways"]),
                         found["bytes_needed"] * len(found["iterations"]))

    def test_memory_that_can_be_shared_is_mapped(self) -> None:
        self.assert_way("memfd")
        self.assert_way("memfd", "--way", "memfd")

    def test_private_memory_goes_through_the_ring(self) -> None:
        self.assert_way("ring", "--way", "ring")

    def test_private_memory_is_read_where_it_is(self) -> None:
        why = can_attach()
        if why:
            self.skipTest(why)
        self.assert_way("attach", "--way", "attach")

    def run_refused(self, *words: str) -> tuple[int, str, str]:
        """Runs a binary that its user may not read: no process may attach to such a one."""
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        if os.environ.get("CROSSMESH_SANITIZER") == "tsan":
            self.skipTest("ThreadSanitizer has to read the binary, to spare libraries built without it")
        folder = Path(self.folder.name)
        folder.chmod(0o755)
        binary = folder / "unreadable"
        if not binary.exists():
            shutil.copy(BINARY, binary)
            binary.chmod(0o711)
        done = subprocess.run(
            [binary, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=300, user=65534, group=65534, extra_groups=[], cwd="/",
        )
        return done.returncode, done.stdout, done.stderr

    def test_info_tells_what_would_let_a_process_attach(self) -> None:
        code, output, _ = self.run_refused("info", "--json")
        self.assertEqual(code, DONE)
        facts = {fact["name"]: fact for fact in json.loads(output)["transports"]}
        self.assertEqual(
            facts["attach"],
            {"name": "attach", "available": False, "why": f"{WHY_REFUSED}; it takes {WAY_OUT}"},
        )

    def test_attaching_that_is_forced_and_refused_ends_the_move(self) -> None:
        code, output, errors = self.run_refused(
            "move", self.folder.name + "/small-qwen3", "--trainer", "fsdp=1", "--engine", "tp=1",
            "--no-floor", "--way", "attach",
        )
        self.assertEqual((code, output), (FAILED, ""))
        self.assertRegex(
            errors,
            "^crossmesh: connect: this process cannot attach to the peer\n"
            "  peer  [01]\n  rank  [01]\n"
            + re.escape(f"  why  {WHY_REFUSED}\n")
            + "  phase  agree\n  at  (trainer 0 \\(rank 0\\)|engine 0 \\(rank 1\\))\n"
            + re.escape(f"  hint  {WAY_OUT}; or another way than attach\n"),
        )

    def test_memory_that_can_be_shared_needs_no_attaching(self) -> None:
        code, output, errors = self.run_refused(
            "move", self.folder.name + "/small-qwen3", "--trainer", "fsdp=1", "--engine", "tp=1",
            "--no-floor", "--json",
        )
        self.assertEqual((code, errors), (DONE, ""))
        ways = json.loads(output)["ways"]
        self.assertEqual([(way["way"], way["why_not_attach"]) for way in ways],
                         [("memfd", WHY_REFUSED)])

    def test_threads_have_no_choice(self) -> None:
        self.assertEqual({one["way"] for one in self.ways("--transport", "inproc")}, {"pointer"})
        self.assertEqual(
            self.run_binary("--transport", "inproc", "--way", "ring"),
            (FAILED, "",
             "crossmesh: move: --way chooses between processes, not threads\n"
             "  transport  inproc\n  way  ring\n  hint  --transport shm\n"),
        )

    def test_a_way_that_is_none_is_a_usage_error(self) -> None:
        code, output, errors = self.run_binary("--way", "cma")
        self.assertEqual((code, output), (USAGE, ""))
        self.assertIn("--way", errors)


    def test_each_byte_is_reported_for_the_pair_that_moved_it(self) -> None:
        for words in ((), ("--way", "ring"), ("--transport", "inproc"), ("--opaque", "model.norm*")):
            with self.subTest(words=words):
                self.assert_each_byte_is_in_one_pair(self.move(*words))


if __name__ == "__main__":
    unittest.main()
