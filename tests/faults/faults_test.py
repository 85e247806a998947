# SPDX-License-Identifier: Apache-2.0
"""Plants each fault in each phase of a job and asks every rank what it knows.

A cell is a fault in a phase. Its outcome is one of three: an engine holds the version before, holds
the new one, or is torn and says so; and whoever fails names the rank at fault. It comes within the
time limit, and nothing stays behind. Phases are reached with --pause, or the fault is planted there
with --fault; the suite never sleeps. It prints the matrix of its cells.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BINARY = sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin/crossmesh"
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
SANITIZED = bool(os.environ.get("CROSSMESH_SANITIZER"))
LIMIT_SECONDS = 2.0  # without progress, where the machine is fast enough
WORKERS = 6  # cells mostly wait
UPDATES = 2
TRAINERS = 2
ENGINES = 4
RANKS = TRAINERS + ENGINES
PHASES = ["join", "agree", "ready", "start", "move", "complete", "commit"]
UPDATE_PHASES = PHASES[2:]
VICTIMS = {"coordinator": 0, "trainer": 1, "engine": TRAINERS, "last engine": TRAINERS + 3}

# What an engine may say, by the phase in which a rank failed.
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

# Each control message: who sends it, in which phase it is missed, and whether another attempt mends
# its loss: not before the first update, and not once every engine serves the version.
MESSAGES = {
    "join": (3, "join", False),
    "roster": (0, "join", False),
    "offer": (3, "agree", False),
    "layouts": (0, "agree", False),
    "agreed": (3, "agree", False),
    "places": (0, "agree", False),
    "ready": (3, "ready", True),
    "start": (0, "start", True),
    "digests": (1, "move", True),
    "whole": (3, "move", True),
    "released": (1, "complete", True),
    "commit": (0, "complete", True),
    "committing": (0, "commit", False),
    "committed": (3, "commit", True),
    "finished": (0, "commit", False),
}


class Model:
    """One small checkpoint for all cells, and the time limit that suits this machine."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "model")
        subprocess.run(
            [BINARY, "synth", self.path, "--config", str(CONFIGS / "small-qwen3.json")],
            check=True,
            capture_output=True,
        )
        begin = time.monotonic()
        subprocess.run(self.move(timeout=60), check=True, capture_output=True)
        self.limit = max(LIMIT_SECONDS, 3 * (time.monotonic() - begin))

    def move(self, *options, iterations=UPDATES, timeout):
        return [BINARY, "move", self.path, "--trainer", "fsdp=2", "--engine", "replicas=2,tp=2",
                "--no-floor", "--json", "--iterations", str(iterations), "--timeout",
                f"{timeout:.2f}", *options]


def shared_memory_files():
    """What a job could leave; its abstract sockets and memfds go with its processes."""
    return sorted(name for name in os.listdir("/dev/shm") if "crossmesh" in name)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pids, seconds):
    """Whether all of these processes ended."""
    poll = select.poll()
    descriptors = {}
    for pid in pids:
        try:
            descriptors[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    try:
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        left = set(descriptors)
        end = time.monotonic() + seconds
        while left:
            ready = poll.poll(max(0, (end - time.monotonic()) * 1000))
            if not ready:
                return False
            for descriptor, _ in ready:
                poll.unregister(descriptor)
                left.discard(descriptor)
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def names(text, rank):
    """Whether an error's text points at the rank.

    On a machine with too much to do whoever is late last may not be the one at fault.
    """
    is_busy = os.getloadavg()[0] > 2 * os.cpu_count()
    return (f"(rank {rank})" in text or f"rank {rank}: " in text
            or (is_busy and "no progress" in text))


class Faults(unittest.TestCase):
    matrix = {}

    @classmethod
    def setUpClass(cls):
        cls.model = Model()
        cls.shared_memory = shared_memory_files()
        cls.begin = time.monotonic()

    @classmethod
    def tearDownClass(cls):
        cls.model.folder.cleanup()
        seconds = time.monotonic() - cls.begin
        print(f"\ntime limit {cls.model.limit:.1f} s, {sum(map(len, cls.matrix.values()))} cells "
              f"in {seconds:.0f} s")
        for fault, cells in cls.matrix.items():
            print(f"{fault}")
            for (place, victim), (took, outcome) in cells.items():
                print(f"  {place:10} {victim:12} {took:5.1f} s  {outcome}")

    def setUp(self):
        self.session = uuid.uuid4().hex

    # -- Cells -----------------------------------------------------------------------------------

    def run_cells(self, fault, cells):
        """Runs {(place, victim): call}, several at a time; a call returns its outcome's name."""
        if SANITIZED:  # Processes start slowly; a third of the cells, others in each row.
            cells = {key: call for i, (key, call) in enumerate(cells.items()) if i % 3 == 0}

        def run(call):
            begin = time.monotonic()
            outcome = call()
            return time.monotonic() - begin, outcome

        rows = self.matrix.setdefault(fault, {})
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = {key: pool.submit(run, call) for key, call in cells.items()}
        for key, future in futures.items():
            with self.subTest(fault=fault, place=key[0], victim=key[1]):
                rows[key] = future.result()
        self.assertEqual(shared_memory_files(), self.shared_memory)

    def start(self, command, session=None):
        """Starts a job under a name by which its sockets are known."""
        session = session or uuid.uuid4().hex
        process = subprocess.Popen([*command, "--session-name", session], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process, session

    def end(self, process, session, code):
        """Waits for a job; nothing of it stays. Returns what it printed as JSON."""
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, output + errors)
        sockets = Path("/proc/net/unix").read_text(encoding="ascii", errors="replace")
        self.assertNotIn(session, sockets)
        return json.loads(output)

    def paused(self, phase, *options, timeout=None, session=None):
        """A job whose ranks all stand in a phase of the last update, and their processes."""
        timeout = timeout or self.model.limit
        command = self.model.move("--pause", phase, *options, timeout=timeout)
        process, session = self.start(command, session)
        line = process.stdout.readline()
        self.assertTrue(line, "the job ended before it paused")
        told = json.loads(line)
        self.assertEqual(told["paused"], phase)
        pids = [rank["pid"] for rank in told["ranks"]]
        self.assertEqual(len(pids), RANKS)
        return process, session, pids

    def verified(self, *options, iterations=UPDATES, timeout=None):
        """The result of a job that ends well."""
        timeout = timeout or 5 * self.model.limit
        command = self.model.move(*options, iterations=iterations, timeout=timeout)
        result = self.end(*self.start(command), code=0)
        self.assertTrue(result["verified"], result)
        self.assertEqual(len(result["iterations"]), iterations)
        return result

    def outcome_of(self, told, phase, named, silent=()):
        """Checks what every rank says; returns whether engines are old, new or torn."""
        states = set()
        for rank in told["ranks"]:
            if rank["rank"] in silent:
                continue
            self.assertIsNotNone(rank["error"], rank)
            text = rank["error"]["text"]
            if named is not None:
                self.assertTrue(names(text, named) or "does not answer" in text, text)
            if "does not answer" not in text:
                self.assertIn("phase  ", text)
            if rank["rank"] < TRAINERS:
                self.assertEqual(rank["state"], "aborted")
            else:
                self.assertIn(rank["state"], ALLOWED[phase])
                states.add(rank["state"])
        return " or ".join(sorted({"torn": "torn", WHOLE_NEW: "new"}.get(s, "old") for s in states))

    # -- Ranks that die --------------------------------------------------------------------------

    def kill(self, phase, victim):
        process, session, pids = self.paused(phase)
        os.kill(pids[victim], signal.SIGKILL)
        begin = time.monotonic()
        for rank, pid in enumerate(pids):
            if rank != victim:
                os.kill(pid, signal.SIGCONT)
        told = self.end(process, session, code=1)
        self.assertLess(time.monotonic() - begin, 5 * self.model.limit)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        return self.outcome_of(told, phase, victim, silent=[victim])

    def test_a_killed_rank_is_named_by_all_others_in_time(self):
        self.run_cells("kill", {
            (phase, name): lambda p=phase, v=victim: self.kill(p, v)
            for phase in PHASES for name, victim in VICTIMS.items()
        })

    def test_ranks_die_with_the_launcher(self):
        process, _, pids = self.paused("move")
        process.kill()
        process.communicate()
        self.assertTrue(await_end(pids, 30))

    # -- Ranks that stop and go on ---------------------------------------------------------------

    def stop(self, phase, victim):
        """The others give the stopped rank up; then it goes on, too late for anything."""
        process, session, pids = self.paused(phase)
        others = [pid for rank, pid in enumerate(pids) if rank != victim]
        begin = time.monotonic()
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        self.assertTrue(await_end(others, 60), "ranks wait for a stopped one for ever")
        self.assertLess(time.monotonic() - begin, 5 * self.model.limit)
        os.kill(pids[victim], signal.SIGCONT)
        told = self.end(process, session, code=1)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        late = told["ranks"][victim]
        if victim >= TRAINERS:
            self.assertIn(late["state"], ALLOWED[phase])
        self.assertIsNotNone(late["error"], late)
        # Without the coordinator nobody hears what the others know.
        texts = [rank["error"]["text"] for rank in told["ranks"]]
        self.assertTrue(any(names(text, victim) for text in texts), texts)
        return self.outcome_of(told, phase, victim if victim else None, silent=[victim])

    def test_a_stopped_rank_is_named_and_comes_too_late(self):
        self.run_cells("stop, continue", {
            (phase, name): lambda p=phase, v=VICTIMS[name]: self.stop(p, v)
            for phase in PHASES for name in ["coordinator", "engine"]
        })

    def test_a_job_that_is_paused_and_continued_ends_well(self):
        def go_on(phase):
            process, session, pids = self.paused(phase, timeout=5 * self.model.limit)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            self.assertTrue(self.end(process, session, code=0)["verified"])
            return "new"

        self.run_cells("stop all, continue", {
            (phase, "all"): lambda p=phase: go_on(p) for phase in [*PHASES, "leave"]
        })

    def children_of(self, process):
        path = f"/proc/{process.pid}/task/{process.pid}/children"
        return [int(pid) for pid in Path(path).read_text(encoding="ascii").split()]

    def stop_anywhere(self, victim):
        process, session = self.start(self.model.move(iterations=1_000_000,
                                                      timeout=self.model.limit))
        pids = []
        while process.poll() is None and len(pids) < RANKS:
            pids = self.children_of(process)
        os.kill(pids[victim], signal.SIGSTOP)
        told = self.end(process, session, code=1)
        self.assertEqual([pid for pid in pids if is_alive(pid)], [])
        self.assertEqual(told["ranks"][victim]["state"], "killed")
        texts = [rank["error"]["text"] for rank in told["ranks"]]
        named = [text for text in texts if "no progress" in text and names(text, victim)]
        dials = [text for text in texts if victim == 0 and "does not answer" in text]
        self.assertTrue(named or dials, texts)
        return "ended"

    def test_a_rank_that_stops_anywhere_is_missed_and_named(self):
        self.run_cells("stop", {
            ("anywhere", name): lambda v=victim: self.stop_anywhere(v)
            for name, victim in VICTIMS.items()
        })

    # -- Slow ranks ------------------------------------------------------------------------------

    def failed(self, phase, named, *options):
        """A job that ends with an error of which every rank knows."""
        command = self.model.move(*options, timeout=self.model.limit)
        told = self.end(*self.start(command), code=1)
        return self.outcome_of(told, phase, named)

    def mended(self, *options):
        """A job in which the last update takes another attempt."""
        options = [*options, "--attempts", "4"]
        result = self.verified(*options, timeout=self.model.limit)
        self.assertGreater(result["iterations"][1]["attempt"], 2)
        return "new"

    def test_a_rank_that_is_slow_within_the_limit_is_waited_for(self):
        def wait_for(phase, victim):
            result = self.verified("--fault", f"slow:{phase}:{victim}:0.3")
            self.assertEqual(result["iterations"][1]["attempt"], 2)
            return "new"

        self.run_cells("slow", {
            (phase, name): lambda p=phase, v=VICTIMS[name]: wait_for(p, v)
            for i, phase in enumerate(PHASES) for name in [list(VICTIMS)[i % 3]]
        })

    def test_a_rank_that_is_slow_beyond_the_limit_is_named(self):
        seconds = 1.75 * self.model.limit
        self.run_cells("too slow", {
            (phase, name): lambda p=phase, v=VICTIMS[name]:
                self.failed(p, v, "--fault", f"slow:{p}:{v}:{seconds:.2f}")
            for i, phase in enumerate(PHASES) for name in [["trainer", "engine"][i % 2]]
        })

    def test_the_next_attempt_waits_for_a_rank_that_was_too_slow(self):
        seconds = 1.75 * self.model.limit
        self.run_cells("too slow, once more", {
            (phase, name): lambda p=phase, v=VICTIMS[name]:
                self.mended("--fault", f"slow:{p}:{v}:{seconds:.2f}")
            for i, phase in enumerate(UPDATE_PHASES) for name in [["engine", "trainer"][i % 2]]
        })

    # -- Full memory -----------------------------------------------------------------------------

    def test_a_rank_without_memory_ends_the_job_by_name(self):
        self.run_cells("memory", {
            (phase, name): lambda p=phase, v=VICTIMS[name]:
                self.failed(p, v, "--fault", f"memory:{p}:{v}")
            for i, phase in enumerate(PHASES)
            for name in [["coordinator", "last engine", "trainer"][i % 3]]
        })

    def test_the_next_attempt_finds_memory_again(self):
        self.run_cells("memory, once more", {
            (phase, name): lambda p=phase, v=VICTIMS[name]:
                self.mended("--fault", f"memory:{p}:{v}")
            for i, phase in enumerate(["start", "move", "complete"])
            for name in [["trainer", "engine", "coordinator"][i]]
        })

    def test_too_little_memory_is_an_error_before_the_update(self):
        if SANITIZED:
            self.skipTest("sanitizers reserve more address space than any limit allows")
        big = os.path.join(self.model.folder.name, "big")
        config = json.loads((CONFIGS / "small-qwen3.json").read_text())
        config["vocab_size"] = 400_000
        path = os.path.join(self.model.folder.name, "big.json")
        Path(path).write_text(json.dumps(config))
        subprocess.run([BINARY, "synth", big, "--config", path], check=True, capture_output=True)
        bytes_max = sum(f.stat().st_size for f in Path(big).iterdir())
        limit = (bytes_max + (48 << 20)) // 1024
        command = " ".join([f"ulimit -v {limit};", "exec",
                            *self.model.move(timeout=5 * self.model.limit)])
        done = subprocess.run(["bash", "-c", command.replace(self.model.path, big)], text=True,
                              capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "out_of_memory", done.stdout)

    def test_too_few_descriptors_are_an_error_of_this_program(self):
        if os.environ.get("CROSSMESH_SANITIZER") == "asan":
            self.skipTest("UndefinedBehaviorSanitizer opens a pipe to look at an object's type, "
                          "and calls the type wrong where it can't")

        def limit_descriptors(transport, count):
            command = ["bash", "-c", f'ulimit -n {count}; exec "$@"', "bash",
                       *self.model.move("--transport", transport, timeout=self.model.limit)]
            done = subprocess.run(command, text=True, capture_output=True, timeout=120)
            if done.returncode == 127:
                return "not loaded"  # The loader of the system did not find its libraries.
            self.assertIn(done.returncode, [0, 1], done.stderr)
            if done.returncode == 0:
                return "new"
            self.assertTrue(done.stderr.startswith("crossmesh: "), done.stderr)
            self.assertNotIn("signal", done.stderr)
            return "said"

        self.run_cells("descriptors", {
            (transport, str(count)): lambda t=transport, c=count: limit_descriptors(t, c)
            for transport in ["shm", "inproc"]
            for count in [*range(8, 40, 2), *range(40, 120, 10)]
        })

    # -- Lost messages ---------------------------------------------------------------------------

    def test_a_lost_message_ends_the_job_by_name(self):
        def lose(message):
            sender, phase, _ = MESSAGES[message]
            return self.failed(phase, None, "--fault", f"lost:{message}:{sender}")

        self.run_cells("lost message", {
            (MESSAGES[message][1], message): lambda m=message: lose(m) for message in MESSAGES
        })

    def test_the_next_attempt_mends_a_lost_message(self):
        self.run_cells("lost message, once more", {
            (phase, message): lambda m=message, s=sender: self.mended("--fault", f"lost:{m}:{s}")
            for message, (sender, phase, mends) in MESSAGES.items() if mends
        })

    # -- Engines that come back ------------------------------------------------------------------

    def test_an_engine_that_is_started_again_between_updates_gets_the_next_one(self):
        def restart(engine, *options):
            result = self.verified("--restart-engine", f"{engine}@1", *options, iterations=3)
            epochs = [one["epoch"] for one in result["iterations"]]
            self.assertEqual(epochs, [0, 2, 2])
            return "new"

        self.run_cells("restart", {
            ("ready", "engine"): lambda: restart(0),
            ("ready", "last engine"): lambda: restart(3),
            ("ready", "packed"): lambda: restart(1, "--route", "packed"),
            ("move", "once more"): lambda: restart(1, "--attempts", "2", "--fault",
                                                   "memory:move:2"),
        })

    def test_only_a_process_can_be_restarted(self):
        for options in [["--transport", "inproc"], ["--colocate"]]:
            with self.subTest(options=options):
                command = self.model.move("--restart-engine", "0@1", *options, timeout=9)
                done = subprocess.run(command, text=True, capture_output=True, timeout=120)
                self.assertEqual(done.returncode, 1)
                self.assertEqual(json.loads(done.stdout)["error"]["text"],
                                 "move: --restart-engine kills an engine that is a process of its "
                                 "own")

    # -- A second job ----------------------------------------------------------------------------

    def test_a_second_job_of_the_same_name_is_refused_and_disturbs_nobody(self):
        def run_second(phase):
            process, session, pids = self.paused(phase, timeout=5 * self.model.limit)
            second, _ = self.start(self.model.move(timeout=self.model.limit), session)
            output, errors = second.communicate(timeout=120)
            self.assertEqual(second.returncode, 1, output + errors)
            self.assertIn("join: the session's name is taken", output)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            self.assertTrue(self.end(process, session, code=0)["verified"])
            return "new"

        self.run_cells("second job", {
            (phase, "same name"): lambda p=phase: run_second(p) for phase in PHASES
        })


if __name__ == "__main__":
    unittest.main()
