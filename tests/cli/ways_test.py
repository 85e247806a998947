#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move` by each way through shm, and looks at which way was taken.

The binary is named by the environment variable CROSSMESH.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

BINARY = os.path.abspath(os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"))
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DONE, FAILED, USAGE = 0, 1, 2
ROUTES = ((), ("--route", "packed", "--staging-bytes-max", "4096"))
CASTS = ((), ("--param-dtype", "F32"))


def can_attach() -> str:
    """Returns why no process here attaches to another, or nothing."""
    info = subprocess.run([BINARY, "info", "--json"], check=True, capture_output=True, text=True)
    facts = {fact["name"]: fact for fact in json.loads(info.stdout)["transports"]}
    if not facts["attach"]["available"]:
        return facts["attach"]["why"]
    scope = json.loads(info.stdout)["limits"]["ptrace_scope"]
    return scope if scope[0] in "123" and os.geteuid() != 0 else ""


class Ways(unittest.TestCase):
    """Every run is judged by the command itself."""

    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        subprocess.run(
            [BINARY, "synth", cls.folder.name + "/model", "--config",
             CONFIGS / "small-qwen3.json"],
            check=True, capture_output=True,
        )

    def run_binary(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [BINARY, "move", self.folder.name + "/model", "--trainer", "fsdp=2", "--engine", "tp=2",
             "--iterations", "2", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def ways(self, *words: str) -> list[dict[str, Any]]:
        """Returns the ways of a move that must succeed."""
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (DONE, ""))
        found = json.loads(output)
        self.assertIs(found["verified"], True)
        self.assertEqual([(way["trainer"], way["engine"]) for way in found["ways"]],
                         [(0, 2), (1, 2), (0, 3), (1, 3)])
        self.assertTrue(all(way["bytes_per_second"] > 0 for way in found["ways"]))
        return found["ways"]

    def assert_way(self, way: str, *words: str) -> None:
        for route in ROUTES:
            for cast in CASTS:
                with self.subTest(words=words, route=route, cast=cast):
                    taken = self.ways(*words, *route, *cast)
                    self.assertEqual({one["way"] for one in taken}, {way})

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


if __name__ == "__main__":
    unittest.main()
