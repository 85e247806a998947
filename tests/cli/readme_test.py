#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the pages to what they say: links lead somewhere, and the README's examples compile."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "CONVENTIONS.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]

# What the README's examples leave to the reader.
PROVIDED = """
using namespace crossmesh;
struct Engine {};
extern Engine engine;
extern std::string job, config_json, checkpoint_folder;
extern int rank, t;
extern bool training, serving;
void train_step(SharedMemory& weights);
ParameterMemory parameters_of(Engine& engine);
void load_whole(Engine& engine, const std::string& tensor, std::span<const std::byte> bytes);
void serve(std::int64_t version);
"""


def examples(text: str) -> list[str]:
    """Returns the C++ blocks of a page."""
    return re.findall(r"^```cpp\n(.*?)^```$", text, re.M | re.S)


def program_of(example: str) -> str:
    """Returns a translation unit: the includes first, then the statements in a function."""
    lines = example.splitlines()
    head = [line for line in lines if line.startswith(("#include", "using namespace"))]
    includes = ['#include "crossmesh/memory/arena.h"', *head]
    body = [line for line in lines if line not in head]
    return "\n".join([*includes, PROVIDED, "void example() {", *body, "}", ""])


class Pages(unittest.TestCase):
    """What a page says must hold."""

    def test_links_lead_to_files_that_are_there(self) -> None:
        for page in PAGES:
            text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
                if not link.startswith("http"):
                    with self.subTest(page=page, link=link):
                        self.assertTrue(((ROOT / page).parent / link).exists())

    def test_the_examples_compile(self) -> None:
        found = examples((ROOT / "README.md").read_text())
        self.assertEqual(len(found), 2)
        for example in found:
            done = subprocess.run(
                [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-Wall", "-x", "c++",
                 "-I", str(ROOT), "-"],
                input=program_of(example), capture_output=True, text=True, check=False,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_commands_of_the_tour_are_those_of_the_binary(self) -> None:
        told = re.findall(r"^crossmesh (\w+) .*#", (ROOT / "README.md").read_text(), re.M)
        shown = subprocess.run(
            [os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"), "--help"],
            capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout
        there = re.findall(r"^  (\w+)  ", shown.split("Subcommands:")[1], re.M)
        self.assertEqual(sorted(told), sorted(there))


if __name__ == "__main__":
    unittest.main()
