#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job one by one, by hand and as torchrun does, and sees each of them end.

The binary is named by the environment variable CROSSMESH. No launcher is needed: what torchrun
would set is set here.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest
import uuid
from pathlib import Path
from typing import Any

BINARY = os.path.abspath(os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"))
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DONE, FAILED, USAGE = 0, 1, 2
TRAINERS, ENGINES = 2, 2
RANKS = range(TRAINERS + ENGINES)
SPECS = ("--trainer", "fsdp=2", "--engine", "tp=2", "--iterations", "2")
# Under a sanitizer a job takes long; every seventh order still has each rank first and last.
EVERY = 7 if os.environ.get("CROSSMESH_SANITIZER") else 1
# Long enough for ranks that share a core, and short where a test waits for the limit.
SECONDS = "7.5" if os.environ.get("CROSSMESH_SANITIZER") else "1.5"
LONG, SHORT = ("--timeout", "60"), ("--timeout", SECONDS)
# Which values of a report are the same in every run.
STEADY = ("verified", "elements_checked", "transport", "route", "bytes_needed", "bytes_unique",
          "bytes_fallback", "staging_bytes_peak", "source_bytes_read", "source_bytes_held")

Ended = tuple[int, str, str]


def launched(rank: int, **changes: str) -> dict[str, str]:
    """Returns what torchrun sets for one of the ranks of a job on one host."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(RANKS)),
        "LOCAL_WORLD_SIZE": str(len(RANKS)), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", **changes,
    }


class Ranks(unittest.TestCase):
    """A small checkpoint, and ranks that end by themselves."""

    folder: tempfile.TemporaryDirectory[str]
    model: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = f"{cls.folder.name}/model"
        subprocess.run([BINARY, "synth", cls.model, "--config", CONFIGS / "small-llama.json"],
                       check=True, capture_output=True)

    def setUp(self) -> None:
        self.maxDiff = None
        self.session = uuid.uuid4().hex

    def start(self, *words: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if k not in launched(0)}
        process = subprocess.Popen(
            [BINARY, "rank", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**environment, **(variables or {})},
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_by_hand(self, rank: int, *words: str) -> subprocess.Popen[str]:
        return self.start(self.model, *SPECS, "--no-floor", "--rank", str(rank), "--session",
                          self.session, *words)

    def end(self, process: subprocess.Popen[str]) -> Ended:
        output, errors = process.communicate(timeout=120)
        hide = self.folder.name
        return process.returncode, output.replace(hide, "DIR"), errors.replace(hide, "DIR")

    def end_all(self, processes: dict[int, subprocess.Popen[str]]) -> dict[int, Ended]:
        return {rank: self.end(process) for rank, process in sorted(processes.items())}

    def run_all(self, *words: str) -> dict[int, Ended]:
        return self.end_all({rank: self.start_by_hand(rank, *words) for rank in RANKS})

    @classmethod
    @functools.cache
    def move(cls, *words: str) -> Ended:
        done = subprocess.run([BINARY, "move", cls.model, *SPECS, *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        hide = cls.folder.name
        return done.returncode, done.stdout.replace(hide, "DIR"), done.stderr.replace(hide, "DIR")

    def await_stop(self, process: subprocess.Popen[str]) -> None:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status))

    def check_report(self, ended: dict[int, Ended], *words: str) -> dict[str, Any]:
        """Checks that all went well, and that rank 0 alone says what `move` says."""
        self.assertEqual([ended[rank] for rank in RANKS if rank != 0],
                         [(DONE, "", "") for rank in RANKS if rank != 0])
        self.assertEqual((ended[0][0], ended[0][2]), (DONE, ""))
        found = json.loads(ended[0][1])
        code, output, errors = self.move("--json", *words)
        self.assertEqual((code, errors), (DONE, ""))
        moved = json.loads(output)
        self.assertEqual(list(found), list(moved))
        self.assertEqual([list(i) for i in found["iterations"]],
                         [list(i) for i in moved["iterations"]])
        self.assertEqual([i["version"] for i in found["iterations"]], [1, 2])
        self.assertEqual({key: found[key] for key in STEADY}, {key: moved[key] for key in STEADY})
        self.assertIs(found["verified"], True)
        return found


class Jobs(Ranks):
    """Jobs that end well."""

    def test_ranks_may_start_in_any_order(self) -> None:
        for order in [*itertools.permutations(RANKS)][::EVERY]:
            with self.subTest(order=order):
                self.session = uuid.uuid4().hex
                processes = {rank: self.start_by_hand(rank, "--json", *LONG) for rank in order}
                self.check_report(self.end_all(processes), "--no-floor")

    def test_a_launcher_says_who_is_who(self) -> None:
        port = str(20000 + os.getpid() % 10000)
        for changes in ({}, {"TORCHELASTIC_RUN_ID": ""}, {"LOCAL_WORLD_SIZE": ""}):
            with self.subTest(changes=changes):
                processes = {
                    rank: self.start(self.model, *SPECS, "--json", *LONG,
                                     variables=launched(rank, MASTER_PORT=port, **changes))
                    for rank in RANKS
                }
                found = self.check_report(self.end_all(processes))
                self.assertGreater(found["ratio_to_floor"], 0)

    def test_flags_win_over_a_launcher(self) -> None:
        processes = {
            rank: self.start(self.model, *SPECS, "--no-floor", "--json", *LONG, "--rank", str(rank),
                             "--world-size", "4", "--session", self.session,
                             variables=launched(7, WORLD_SIZE="3", MASTER_PORT="0"))
            for rank in RANKS
        }
        self.check_report(self.end_all(processes), "--no-floor")

    def test_the_text_is_that_of_move(self) -> None:
        ended = self.run_all(*LONG)
        self.assertEqual({rank: ended[rank] for rank in RANKS if rank != 0},
                         {rank: (DONE, "", "") for rank in RANKS if rank != 0})
        figures = re.compile(r"\d+(\.\d+)?")
        code, output, errors = self.move("--no-floor")
        self.assertEqual((ended[0][0], figures.sub("N", ended[0][1]), ended[0][2]),
                         (code, figures.sub("N", output), errors))
        self.assertRegex(output, r"^verified: 68768 elements checked over 2 updates\n")

    def test_two_jobs_do_not_meet(self) -> None:
        jobs = []
        for _ in range(2):
            self.session = uuid.uuid4().hex
            jobs.append({rank: self.start_by_hand(rank, "--json", *LONG) for rank in RANKS})
        for processes in jobs:
            self.check_report(self.end_all(processes), "--no-floor")

    def test_a_rank_pauses_and_goes_on(self) -> None:
        processes = {rank: self.start_by_hand(rank, *LONG) for rank in (0, 1, 2)}
        processes[3] = self.start_by_hand(3, *LONG, "--pause", "move")
        self.await_stop(processes[3])
        os.kill(processes[3].pid, signal.SIGCONT)
        ended = self.end_all(processes)
        self.assertEqual([code for code, _, _ in ended.values()], [DONE] * 4)
        self.assertEqual(ended[3][1:], (
            "", f"paused in move; `kill -CONT {processes[3].pid}` to go on\n"))


class Refusals(Ranks):
    """What is refused before the ranks meet, or as they meet."""

    def assert_failed(self, ended: Ended, text: str, line: str = "") -> None:
        """Checks the whole of what a rank other than 0 says."""
        self.assertEqual(ended, (FAILED, "", f"crossmesh: {text}\n" + line))

    def test_variables_are_refused_by_name(self) -> None:
        for variable, flag in (("RANK", "--rank"), ("WORLD_SIZE", "--world-size"),
                               ("MASTER_ADDR", "--session"), ("MASTER_PORT", "--session")):
            with self.subTest(variable=variable):
                variables = launched(0)
                del variables[variable]
                self.assert_failed(
                    self.end(self.start(self.model, *SPECS, variables=variables)),
                    "identify rank: a variable is missing\n"
                    f"  variable  {variable}\n"
                    f"  hint  a launcher such as torchrun sets it; by hand, give {flag}")
        self.assert_failed(
            self.end(self.start(self.model, *SPECS, variables=launched(4))),
            "identify rank: the rank is outside the job\n"
            "  RANK  4\n  WORLD_SIZE  4\n  hint  ranks count from 0")
        self.assert_failed(
            self.end(self.start(self.model, *SPECS, variables=launched(0, LOCAL_WORLD_SIZE="2"))),
            "identify rank: the job's ranks are not all on this host\n"
            "  LOCAL_WORLD_SIZE  2\n  WORLD_SIZE  4\n  hint  start all ranks on one host")

    def test_a_world_of_another_size_is_refused_with_the_three_numbers(self) -> None:
        text = ("rank: the job is not as large as its specs\n"
                "  world size  5\n  trainer ranks  2\n  engine ranks  2\n"
                "  hint  start 4 ranks, each with WORLD_SIZE or --world-size 4")
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.assert_failed(
                    self.end(self.start(self.model, *SPECS,
                                        variables=launched(rank, WORLD_SIZE="5",
                                                           LOCAL_WORLD_SIZE="5"))), text)
                code, output, errors = self.end(
                    self.start_by_hand(rank, "--world-size", "5", "--json"))
                self.assertEqual((code, errors), (FAILED, f"crossmesh: {text}\n"))
                if rank == 0:
                    self.assertEqual(json.loads(output), {
                        "error": {"code": "invalid_argument", "text": text}})
                else:
                    self.assertEqual(output, "")

    def test_what_move_refuses_rank_0_refuses_alike(self) -> None:
        words = ("--opaque", "lm_head.weight", "--fallback-bytes-max", "100", "--json")
        self.assertEqual(self.end(self.start_by_hand(0, *words)), self.move(*words))

    def test_a_rank_has_its_process_to_itself(self) -> None:
        self.assert_failed(
            self.end(self.start_by_hand(0, "--colocate")),
            "rank: a process that is started alone is one rank\n"
            "  option  --colocate\n"
            "  hint  `crossmesh move --colocate` starts processes of two ranks")

    def test_usage(self) -> None:
        for words in (("--rank", "-1"), ("--rank", "x"), ("--world-size", "0"),
                      ("--session", "short"), ("--session", "A" * 32), ("--transport", "inproc"),
                      ("--iterations", "0"), ("--pause", "lunch"), ("--what",)):
            with self.subTest(words=words):
                ended = self.end(self.start(self.model, *SPECS, *words, variables=launched(0)))
                self.assertEqual(ended[:2], (USAGE, ""))

    def test_a_missing_rank_is_named_by_all_others(self) -> None:
        processes = {rank: self.start_by_hand(rank, "--json", *SHORT) for rank in (0, 1, 3)}
        ended = self.end_all(processes)
        text = ("rank: not every rank has come\n"
                "  missing  engine 0 (rank 2)\n"
                f"  seconds since the last one came  {SECONDS}\n"
                "  hint  start it with the same session; --timeout is how long the others wait")
        self.assert_failed(ended[1], text, "  trainer 1: aborted\n")
        self.assert_failed(ended[3], text, "  engine 3: aborted\n")
        self.assertEqual((ended[0][0], ended[0][2]), (
            FAILED, f"crossmesh: {text}\n"
            "  trainer 0: aborted\n  trainer 1: aborted\n  rank 2: missing\n  engine 3: aborted\n"))
        error = {"code": "timed_out", "text": text}
        self.assertEqual(json.loads(ended[0][1]), {"error": error, "ranks": [
            {"rank": 0, "title": "trainer 0", "state": "aborted", "error": error},
            {"rank": 1, "title": "trainer 1", "state": "aborted", "error": error},
            {"rank": 2, "title": "rank 2", "state": "missing", "error": {
                "code": "timed_out", "text": "rank: the process did not come\n  rank  2"}},
            {"rank": 3, "title": "engine 3", "state": "aborted", "error": error},
        ]})

    def test_a_rank_0_that_does_not_come_is_named(self) -> None:
        self.assert_failed(
            self.end(self.start_by_hand(2, *SHORT)),
            "rank: rank 0 does not answer\n"
            f"  rank  2\n  session  {self.session}\n  seconds  {SECONDS}\n"
            "  hint  start rank 0 with the same session; --timeout is how long the others wait",
            "  engine 2: aborted\n")

    def test_a_number_that_comes_twice_is_refused(self) -> None:
        twins = [self.start_by_hand(1, *SHORT) for _ in range(2)]
        others = {rank: self.start_by_hand(rank, *SHORT) for rank in (0, 2)}
        ended = [self.end(twin) for twin in twins]
        turned_away = next(i for i, one in enumerate(ended) if "another process" in one[2])
        self.assert_failed(
            ended[turned_away],
            "rank: another process came as this rank\n"
            f"  rank  1\n  its pid  {twins[1 - turned_away].pid}\n"
            "  hint  give every process of the job a RANK or --rank of its own",
            "  trainer 1: aborted\n")
        text = ("rank: not every rank has come\n"
                "  missing  engine 1 (rank 3)\n"
                "  came twice  trainer 1 (rank 1)\n"
                f"  seconds since the last one came  {SECONDS}\n"
                "  hint  start it with the same session; --timeout is how long the others wait")
        self.assert_failed(ended[1 - turned_away], text, "  trainer 1: aborted\n")
        self.assert_failed(self.end(others[2]), text, "  engine 2: aborted\n")
        self.assertIn(text, self.end(others[0])[2])

    def test_a_second_rank_0_is_refused(self) -> None:
        twins = [self.start_by_hand(0, *SHORT) for _ in range(2)]
        errors = sorted(self.end(twin)[2].splitlines()[0] for twin in twins)
        self.assertEqual(errors, ["crossmesh: rank: cannot listen for the other ranks",
                                  "crossmesh: rank: not every rank has come"])

    def test_ranks_that_were_asked_for_other_things_are_refused(self) -> None:
        processes = {rank: self.start_by_hand(rank, *SHORT) for rank in (0, 1, 2)}
        processes[3] = self.start_by_hand(3, *SHORT, "--route", "packed")
        ended = self.end_all(processes)
        text = ("rank: ranks were started with different options\n"
                "  option  --route\n  rank 0  direct\n  rank 3  packed")
        self.assert_failed(ended[3], text, "  engine 3: aborted\n")
        self.assertTrue(ended[0][2].startswith(f"crossmesh: {text}\n"), ended[0][2])
        self.assertEqual([code for code, _, _ in ended.values()], [FAILED] * 4)

    def test_a_rank_that_refuses_itself_is_told_by_rank_0(self) -> None:
        processes = {0: self.start_by_hand(0, *LONG)}
        text = "open model: there is no such file or folder\n  path  DIR/nowhere"
        while True:  # It tells rank 0 where that listens already.
            ended = self.end(self.start(f"{self.folder.name}/nowhere", *SPECS, "--rank", "2",
                                        "--session", self.session))
            self.assert_failed(ended, text)
            if processes[0].poll() is not None:
                break
        code, output, errors = self.end(processes[0])
        self.assertEqual((code, output, errors), (
            FAILED, "", f"crossmesh: {text}\n"
            "  trainer 0: aborted\n  rank 1: missing\n  rank 2: refused\n  rank 3: missing\n"))


class Faults(Ranks):
    """Ranks that die or stop in the midst of an update."""

    def stop_in_the_midst(self, victim: int, *words: str) -> dict[int, subprocess.Popen[str]]:
        processes = {
            rank: self.start_by_hand(rank, "--json", *words,
                                     *(("--pause", "move") if rank == victim else ()))
            for rank in RANKS
        }
        self.await_stop(processes[victim])
        return processes

    def test_a_killed_rank_is_told_by_rank_0(self) -> None:
        for victim, title in ((1, "trainer 1 (rank 1)"), (3, "engine 1 (rank 3)")):
            with self.subTest(victim=victim):
                self.session = uuid.uuid4().hex
                processes = self.stop_in_the_midst(victim, *LONG)
                os.kill(processes[victim].pid, signal.SIGKILL)
                ended = self.end_all(processes)
                self.assertEqual([ended[r][0] for r in RANKS if r != victim], [FAILED] * 3)
                self.assertEqual([ended[r][1] for r in RANKS if r not in (0, victim)], [""] * 2)
                told = json.loads(ended[0][1])
                self.assertIn(f"  lost  {title}\n", told["error"]["text"])
                self.assertEqual(told["ranks"][victim], {
                    "rank": victim, "title": f"rank {victim}", "state": "ended",
                    "error": {"code": "peer_lost",
                              "text": "rank: the process ended without a word\n"
                                      f"  rank  {victim}"}})
                for rank in RANKS:
                    if rank in (0, victim):
                        continue
                    side = "trainer" if rank < TRAINERS else "engine"
                    error = told["ranks"][rank]["error"]["text"]
                    state = told["ranks"][rank]["state"]
                    self.assertIn(title, error)
                    self.assertIn(state, ("aborted",) if rank < TRAINERS else
                                  ("torn", "whole at 1", "whole at 2"))
                    self.assertEqual(ended[rank][2],
                                     f"crossmesh: {error}\n  {side} {rank}: {state}\n")

    def test_the_others_end_when_rank_0_is_killed(self) -> None:
        processes = self.stop_in_the_midst(0, *LONG)
        os.kill(processes[0].pid, signal.SIGKILL)
        ended = self.end_all(processes)
        for rank in (1, 2, 3):
            code, output, errors = ended[rank]
            self.assertEqual((code, output), (FAILED, ""))
            self.assertIn("  lost  trainer 0 (rank 0)\n", errors)

    def test_a_stopped_rank_is_missed_by_all(self) -> None:
        for victim in (0, 2):
            with self.subTest(victim=victim):
                self.session = uuid.uuid4().hex
                processes = self.stop_in_the_midst(victim, *SHORT)
                stopped = processes.pop(victim)
                ended = self.end_all(processes)
                self.assertEqual([one[0] for one in ended.values()], [FAILED] * 3)
                named = []
                for rank, (_, _, errors) in ended.items():
                    self.assertIn("no progress", errors, rank)
                    named.append(re.search(rf"(\(rank {victim}\)|rank {victim}:)", errors))
                # Where rank 0 is silent nobody decides for all whom they miss: a trainer may name
                # the engine that waits for rank 0.
                self.assertTrue(any(named) if victim == 0 else all(named), ended)
                if victim != 0:
                    told = json.loads(ended[0][1])
                    self.assertEqual(told["ranks"][victim], {
                        "rank": victim, "title": f"rank {victim}", "state": "silent",
                        "error": {"code": "timed_out",
                                  "text": "rank: the process does not say how it ended\n"
                                          f"  rank  {victim}"}})
                stopped.kill()
                stopped.wait()

    def test_an_interrupted_rank_leaves_nothing_that_hinders_the_next_job(self) -> None:
        processes = self.stop_in_the_midst(0, *LONG)
        os.kill(processes[0].pid, signal.SIGKILL)
        self.end_all(processes)
        self.check_report(self.run_all("--json", *LONG), "--no-floor")


if __name__ == "__main__":
    unittest.main()
