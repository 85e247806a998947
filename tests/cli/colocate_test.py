#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move --colocate`: trainer i and engine i are one process.

The binary is named by the environment variable CROSSMESH.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import unittest
from typing import Any

from runs import BINARY, DONE, FAILED, Runs

MODELS = ("small-qwen3", "small-qwen3-moe")
# What a move of two trainers to two engines may be asked for, and the way of those apart.
JOBS = {
    (): "memfd",
    ("--way", "memfd"): "memfd",
    ("--way", "ring"): "ring",
    ("--way", "ring", "--route", "packed", "--staging-bytes-max", "4096"): "ring",
    ("--route", "packed", "--staging-bytes-max", "4096"): "memfd",
    ("--param-dtype", "F32"): "memfd",
    ("--opaque", "model.norm*"): "memfd",
}


@unittest.skipIf(os.environ.get("CROSSMESH_SANITIZER") == "tsan",
                 "ThreadSanitizer takes two mappings of one page for two memories, and does not see "
                 "how the ranks of a process wait for each other; inproc is what it can judge")
class Colocate(Runs):
    """Every run is judged by the command itself."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for model in MODELS:
            cls.synth(model, model.removeprefix("small-"))

    def command(self, *words: str, trainer: str = "fsdp=2", engine: str = "tp=2",
                model: str = "small-qwen3") -> list[str]:
        return [BINARY, "move", self.model(model), "--trainer", trainer,
                "--engine", engine, "--iterations", "2", "--colocate", *words]

    def run_binary(self, *words: str, **job: str) -> tuple[int, str, str]:
        done = subprocess.run(
            self.command(*words, **job),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    def pairs(self, *words: str, **job: str) -> dict[tuple[int, int], str]:
        """Returns the way of each trainer and engine in a move that must succeed."""
        code, output, errors = self.run_binary(*words, "--json", **job)
        self.assertEqual((code, errors), (DONE, ""))
        found: dict[str, Any] = json.loads(output)
        self.assertIs(found["verified"], True)
        self.assertIs(found["colocate"], True)
        if "--param-dtype" not in words:
            self.assertEqual(sum(way["bytes"] for way in found["ways"]),
                             found["bytes_needed"] * len(found["iterations"]))
        return {(way["trainer"], way["engine"]): way["way"] for way in found["ways"]}

    def paused(self, phase: str) -> tuple[subprocess.Popen[str], dict[int, int]]:
        """Starts a move that stops in `phase`; returns it, and the process of each rank."""
        # Left open: it waits for the ranks, which a test ends.
        process = subprocess.Popen(
            self.command("--json", "--no-floor", "--timeout", "6", "--pause", phase),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.kill)
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        self.assertEqual(told["paused"], phase)
        self.assertEqual([(rank["rank"], rank["side"]) for rank in told["ranks"]],
                         [(0, "trainer"), (1, "trainer"), (2, "engine"), (3, "engine")])
        return process, {rank["rank"]: rank["pid"] for rank in told["ranks"]}

    def test_ranks_of_one_process_copy_in_it_whatever_the_others_do(self) -> None:
        for model in MODELS:
            for words, apart in JOBS.items():
                with self.subTest(model=model, words=words):
                    self.assertEqual(
                        self.pairs(*words, model=model),
                        {(0, 2): "local", (0, 3): apart, (1, 2): apart, (1, 3): "local"},
                    )

    def test_ranks_that_have_no_partner_are_processes_of_their_own(self) -> None:
        self.assertEqual(
            self.pairs(trainer="fsdp=3", engine="tp=1"),
            {(0, 3): "local", (1, 3): "memfd", (2, 3): "memfd"},
        )
        self.assertEqual(
            self.pairs(trainer="fsdp=1", engine="tp=2"), {(0, 1): "local", (0, 2): "memfd"})

    def test_ranks_without_colocate_have_nothing_local(self) -> None:
        words = [word for word in self.command("--json") if word != "--colocate"]
        found = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        self.assertIs(found["colocate"], False)
        self.assertEqual({way["way"] for way in found["ways"]}, {"memfd"})

    def test_threads_are_not_colocated(self) -> None:
        self.assertEqual(
            self.run_binary("--transport", "inproc"),
            (FAILED, "",
             "crossmesh: move: --colocate pairs ranks in processes, and threads are in one\n"
             "  transport  inproc\n  hint  --transport shm\n"),
        )

    def test_both_ranks_of_a_process_pause_and_go_on(self) -> None:
        for phase in ("join", "move", "leave"):
            with self.subTest(phase=phase):
                process, pid_of_rank = self.paused(phase)
                self.assertEqual(pid_of_rank[0], pid_of_rank[2])
                self.assertEqual(pid_of_rank[1], pid_of_rank[3])
                self.assertNotEqual(pid_of_rank[0], pid_of_rank[1])
                for pid in set(pid_of_rank.values()):
                    os.kill(pid, signal.SIGCONT)
                output, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (DONE, ""))
                self.assertIs(json.loads(output)["verified"], True)

    def test_a_process_that_dies_takes_both_its_ranks(self) -> None:
        for phase in ("agree", "move", "commit"):
            for victim in (0, 1):
                with self.subTest(phase=phase, victim=victim):
                    process, pid_of_rank = self.paused(phase)
                    os.kill(pid_of_rank[victim], signal.SIGKILL)
                    os.kill(pid_of_rank[1 - victim], signal.SIGCONT)
                    output, _ = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, FAILED)
                    ranks = json.loads(output)["ranks"]
                    self.assertEqual([rank["rank"] for rank in ranks], [0, 1, 2, 3])
                    for rank in ranks:
                        is_dead = rank["rank"] % 2 == victim
                        self.assertIsNotNone(rank["error"])
                        self.assertEqual(rank["state"] == "ended", is_dead, rank)
                    self.assertEqual(ranks[1 - victim]["state"], "aborted")
                    self.assertIn(ranks[3 - victim]["state"],
                                  ("whole at 0", "whole at 1", "whole at 2", "torn"))


if __name__ == "__main__":
    unittest.main()
