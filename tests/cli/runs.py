# SPDX-License-Identifier: Apache-2.0
"""What tests of `crossmesh move` share: its runs, in a folder of small checkpoints.

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
STAGING = 2048
ROUTES = {"direct": (), "packed": ("--route", "packed", "--staging-bytes-max", str(STAGING))}
# Under a sanitizer a move takes long; every seventh still meets each family, mesh and route.
EVERY = 7 if os.environ.get("CROSSMESH_SANITIZER") else 1


class Runs(unittest.TestCase):
    """Every run is judged by the command itself; the tests look at what it says."""

    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def setUp(self) -> None:
        self.maxDiff = None

    @classmethod
    def synth(cls, name: str, family: str, *words: str) -> None:
        """Makes a checkpoint of a family's small config."""
        subprocess.run(
            [BINARY, "synth", cls.model(name), "--config", CONFIGS / f"small-{family}.json",
             *words],
            check=True, capture_output=True,
        )

    @classmethod
    def model(cls, family: str) -> str:
        return f"{cls.folder.name}/{family}"

    def run_binary(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [BINARY, "move", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=300,
        )
        hide = self.folder.name
        return done.returncode, done.stdout.replace(hide, "DIR"), done.stderr.replace(hide, "DIR")

    def move(self, *words: str) -> dict[str, Any]:
        """Returns the JSON of a move that must succeed and say nothing else."""
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (DONE, ""))
        return json.loads(output)

    def assert_refused(self, error_code: str, text: str, *words: str) -> None:
        self.assertEqual(self.run_binary(*words), (FAILED, "", f"crossmesh: {text}\n"))
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (FAILED, f"crossmesh: {text}\n"))
        self.assertEqual(json.loads(output)["error"], {"code": error_code, "text": text})
