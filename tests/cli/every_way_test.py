#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moves each family into each engine by each way through shm, every rank a process.

The binary is named by the environment variable CROSSMESH, and judges every run itself.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ways_test import can_attach

BINARY = os.path.abspath(os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"))
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SPARSE = ("mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3")
STAGES = ("tp=1", "tp=2", "tp=4", "pp=2", "pp=2,tp=2", "replicas=2,tp=2")
EXPERTS = (
    "pp=3,tp=2", "dp=2", "dp=2,tp=2", "tp=2,experts=linear", "dp=2,experts=linear",
    "dp=2,tp=2,experts=linear", "tp=4,experts=linear", "tp=2,experts=round_robin",
    "dp=2,experts=round_robin", "dp=2,tp=2,experts=round_robin", "dp=4,experts=round_robin",
    "pp=2,dp=2,experts=linear",
)
TRAINERS = {False: ("fsdp=3", "fsdp=2,tp=2", "pp=2,fsdp=2"),
            True: ("fsdp=3", "ep=2,fsdp=2", "pp=2,tp=2", "ep=2,etp=2")}
WAYS = ("memfd", "attach", "ring")
# Under a sanitizer a move takes long; every eleventh still meets each family, engine and way.
EVERY = 11 if os.environ.get("CROSSMESH_SANITIZER") else 1


class EveryWay(unittest.TestCase):
    """Small models, one update each."""

    def test_each_family_and_engine_by_each_way(self) -> None:
        families = {name: STAGES for name in DENSE} | {name: STAGES + EXPERTS for name in SPARSE}
        ways = [way for way in WAYS if way != "attach" or not can_attach()]
        jobs = [(family, engine, way) for family, engines in families.items()
                for engine, way in itertools.product(engines, ways)][::EVERY]
        with tempfile.TemporaryDirectory() as folder:
            for family in families:
                subprocess.run([BINARY, "synth", f"{folder}/{family}", "--config",
                                CONFIGS / f"small-{family}.json"], check=True, capture_output=True)

            def run(number: int) -> subprocess.CompletedProcess[str]:
                family, engine, way = jobs[number]
                trainers = TRAINERS[family in SPARSE]
                return subprocess.run(
                    [BINARY, "move", f"{folder}/{family}", "--trainer",
                     trainers[number % len(trainers)], "--engine", engine, "--way", way,
                     "--iterations", "1", "--no-floor", "--json", "--timeout", "60",
                     "--digest", "on"],
                    stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                    timeout=300)

            with ThreadPoolExecutor(2) as pool:
                for job, done in zip(jobs, pool.map(run, range(len(jobs)))):
                    with self.subTest(job=job):
                        self.assertEqual((done.returncode, done.stderr), (0, ""))
                        found = json.loads(done.stdout)
                        self.assertIs(found["verified"], True)
                        moving = [way for way in found["ways"] if way["bytes"] > 0]
                        self.assertEqual({way["way"] for way in moving}, {job[2]})
        print(f"{len(jobs)} moves by {len(ways)} ways")


if __name__ == "__main__":
    unittest.main()
