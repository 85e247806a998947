#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden texts of tests/data anew, from what the code says today.

It runs the tests that compare with a golden text (`expect_golden` of tests/golden.h) so that they
write it instead, and shows what changed. Look at every line of the difference: the commit says why
the new text is right. Recorded data (`golden_*.json*`) come from elsewhere and are not rewritten.

The stubs of the Python extension are written anew too, where build/venv has it.

    tools/regolden.py [--preset dev]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.M)


def golden_tests(text: str) -> list[str]:
    """Returns the names of the tests in a source that call expect_golden."""
    starts = [*TEST.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return [
        f"{match[1]}.{match[2]}"
        for match, end in zip(starts, ends)
        if "expect_golden(" in text[match.start():end]
    ]


def binary_of(source: Path) -> str:
    """Returns the test binary that a source under crossmesh/ or cli/ belongs to."""
    parts = source.relative_to(ROOT).parts
    return f"{parts[1] if parts[0] == 'crossmesh' else parts[0]}_test"


def write_stubs() -> bool:
    """Writes what type checkers see of crossmesh._core, as the installed package has it."""
    python = ROOT / "build" / "venv" / "bin" / "python"
    if not python.exists():
        return True
    stubs = ROOT / "python" / "crossmesh" / "_core.pyi"
    done = subprocess.run(
        [python, "-m", "nanobind.stubgen", "--quiet", "--module", "crossmesh._core",
         "--output-file", stubs],
        check=False,
    )
    return done.returncode == 0


def main() -> int:
    """Rewrites, then shows the difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="dev")
    options = parser.parse_args()
    folder = ROOT / "build" / options.preset / "bin"
    failed = False
    sources = [p for top in ("crossmesh", "cli") for p in (ROOT / top).rglob("*_test.cc")]
    for source in sorted(sources):
        names = golden_tests(source.read_text())
        if not names:
            continue
        done = subprocess.run(
            [folder / binary_of(source), f"--gtest_filter={':'.join(names)}", "--gtest_brief=1"],
            env=os.environ | {"CROSSMESH_REGOLDEN": "1"}, check=False,
        )
        print(f"{source.relative_to(ROOT)}: {len(names)} golden texts")
        failed |= done.returncode != 0
    failed |= not write_stubs()
    show = ["git", "--no-pager", "diff", "--stat", "--", "tests/data", "python"]
    subprocess.run(show, cwd=ROOT, check=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
