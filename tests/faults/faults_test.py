# SPDX-License-Identifier: Apache-2.0
"""Kills one rank of a job in each phase and asks the others what they know.

Every surviving rank must end within ten seconds with an error that names the dead rank and the
phase; every surviving engine rank says whole-at-old, whole-at-new or torn; trainers say aborted; and
nothing stays behind. Phases are reached with --pause, never by sleeping.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BINARY = sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin/crossmesh"
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
SECONDS_MAX = 10.0
UPDATES = 2
TRAINERS = 2
ENGINES = 4
PHASES = ["join", "agree", "ready", "start", "move", "complete", "commit"]
VICTIMS = {"coordinator": 0, "trainer": 1, "engine": TRAINERS, "last engine": TRAINERS + 3}

# What a surviving engine may say, by the phase in which the rank died.
WHOLE_OLD = f"whole at {UPDATES - 1}"
WHOLE_NEW = f"whole at {UPDATES}"
ALLOWED = {
    "join": {"whole at 0"},
    "agree": {"whole at 0"},
    "ready": {WHOLE_OLD, WHOLE_NEW, "torn"},  # it had said that it is ready
    "start": {WHOLE_OLD, WHOLE_NEW, "torn"},
    "move": {WHOLE_OLD, WHOLE_NEW, "torn"},
    "complete": {WHOLE_NEW, "torn"},
    "commit": {WHOLE_NEW, "torn"},
}


class Model:
    """One small checkpoint for all cases."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "model")
        subprocess.run(
            [BINARY, "synth", self.path, "--config", str(CONFIGS / "small-qwen3.json")],
            check=True,
            capture_output=True,
        )

    def move(self, *options, iterations=UPDATES, timeout=6):
        return [BINARY, "move", self.path, "--trainer", "fsdp=2", "--engine", "replicas=2,tp=2",
                "--no-floor", "--json", "--iterations", str(iterations), "--timeout", str(timeout),
                *options]


def shared_memory_files():
    """What a job could leave; its abstract sockets and memfds go with its processes."""
    return sorted(os.listdir("/dev/shm"))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Faults(unittest.TestCase):
    matrix = []

    @classmethod
    def setUpClass(cls):
        cls.model = Model()

    @classmethod
    def tearDownClass(cls):
        cls.model.folder.cleanup()
        print(f"\n{'phase':10} {'killed':12} {'seconds':>7}  surviving engines")
        for phase, victim, seconds, states in cls.matrix:
            print(f"{phase:10} {victim:12} {seconds:7.2f}  {', '.join(states)}")

    def paused(self, phase):
        process = subprocess.Popen(self.model.move("--pause", phase), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        line = process.stdout.readline()
        self.assertTrue(line, "the job ended before it paused")
        told = json.loads(line)
        self.assertEqual(told["paused"], phase)
        self.assertEqual(len(told["ranks"]), TRAINERS + ENGINES)
        return process, [rank["pid"] for rank in told["ranks"]]

    def kill_and_continue(self, phase, victim):
        before = shared_memory_files()
        process, pids = self.paused(phase)
        os.kill(pids[victim], signal.SIGKILL)
        begin = time.monotonic()
        for rank, pid in enumerate(pids):
            if rank != victim:
                os.kill(pid, signal.SIGCONT)
        output, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - begin
        self.assertEqual(process.returncode, 1, output + errors)
        self.assertLess(seconds, SECONDS_MAX)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        self.assertEqual(shared_memory_files(), before)
        return json.loads(output), seconds

    def check(self, phase, name, victim):
        told, seconds = self.kill_and_continue(phase, victim)
        side = "trainer" if victim < TRAINERS else "engine"
        number = victim if victim < TRAINERS else victim - TRAINERS
        dead = f"{side} {number} (rank {victim})"
        states = []
        for rank in told["ranks"]:
            if rank["rank"] == victim:
                continue
            self.assertIsNotNone(rank["error"], rank)
            self.assertIn(dead, rank["error"]["text"])
            self.assertIn("phase  ", rank["error"]["text"])
            if rank["rank"] < TRAINERS:
                self.assertEqual(rank["state"], "aborted")
            else:
                self.assertIn(rank["state"], ALLOWED[phase])
                states.append(rank["state"])
        self.matrix.append((phase, name, seconds, states))
        return states

    def test_a_killed_rank_is_named_by_all_others_in_time(self):
        for phase in PHASES:
            for name, victim in VICTIMS.items():
                with self.subTest(phase=phase, killed=name):
                    self.check(phase, name, victim)

    def test_a_job_that_is_paused_and_continued_ends_well(self):
        for phase in [*PHASES, "leave"]:
            with self.subTest(phase=phase):
                process, pids = self.paused(phase)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, output + errors)
                self.assertTrue(json.loads(output)["verified"])

    def test_ranks_die_with_the_launcher(self):
        process, pids = self.paused("move")
        process.kill()
        process.wait()
        limit = time.monotonic() + SECONDS_MAX
        while any(is_alive(pid) for pid in pids) and time.monotonic() < limit:
            os.sched_yield()
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])

    def children_of(self, process):
        path = f"/proc/{process.pid}/task/{process.pid}/children"
        return [int(pid) for pid in Path(path).read_text(encoding="ascii").split()]

    def test_a_stopped_rank_is_missed_and_named(self):
        for name, victim in VICTIMS.items():
            with self.subTest(stopped=name):
                process = subprocess.Popen(self.model.move(iterations=1_000_000, timeout=2),
                                           text=True, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE)
                self.addCleanup(process.kill)
                pids = []
                while process.poll() is None and len(pids) < TRAINERS + ENGINES:
                    pids = self.children_of(process)
                os.kill(pids[victim], signal.SIGSTOP)
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1, output + errors)
                self.assertEqual([pid for pid in pids if is_alive(pid)], [])
                told = json.loads(output)
                self.assertEqual(told["ranks"][victim]["state"], "killed")
                texts = [rank["error"]["text"] for rank in told["ranks"]]
                named = [text for text in texts if "no progress" in text
                         and (f"(rank {victim})" in text or f"rank {victim}: " in text)]
                dials = [text for text in texts if victim == 0 and "does not answer" in text]
                self.assertTrue(named or dials, texts)

    def test_too_few_descriptors_are_an_error_of_this_program(self):
        if os.environ.get("CROSSMESH_SANITIZER") == "asan":
            self.skipTest("UndefinedBehaviorSanitizer opens a pipe to look at an object's type, "
                          "and calls the type wrong where it can't")
        for transport in ["shm", "inproc"]:
            for count in [*range(8, 40, 2), *range(40, 120, 10)]:
                with self.subTest(transport=transport, descriptors=count):
                    command = ["bash", "-c", f'ulimit -n {count}; exec "$@"', "bash",
                               *self.model.move("--transport", transport, timeout=2)]
                    done = subprocess.run(command, text=True, capture_output=True, timeout=60)
                    if done.returncode == 127:
                        continue  # The loader of the system did not find its libraries.
                    self.assertIn(done.returncode, [0, 1], done.stderr)
                    if done.returncode == 0:
                        continue
                    self.assertTrue(done.stderr.startswith("crossmesh: "), done.stderr)
                    self.assertNotIn("signal", done.stderr)

    def test_too_little_memory_is_an_error_before_the_update(self):
        if os.environ.get("CROSSMESH_SANITIZER"):
            self.skipTest("sanitizers reserve more address space than any limit allows")
        big = os.path.join(self.model.folder.name, "big")
        config = json.loads((CONFIGS / "small-qwen3.json").read_text())
        config["vocab_size"] = 400_000
        path = os.path.join(self.model.folder.name, "big.json")
        Path(path).write_text(json.dumps(config))
        subprocess.run([BINARY, "synth", big, "--config", path], check=True, capture_output=True)
        bytes_max = sum(f.stat().st_size for f in Path(big).iterdir())
        limit = (bytes_max + (48 << 20)) // 1024
        command = " ".join([f"ulimit -v {limit};", "exec", *self.model.move()])
        done = subprocess.run(["bash", "-c", command.replace(self.model.path, big)], text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "out_of_memory", done.stdout)


if __name__ == "__main__":
    unittest.main()
