#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants a violation of each rule of tools/tidy.py in a small tree, and sees it found."""

from __future__ import annotations

import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import tidy  # noqa: E402

CMAKE = """# SPDX-License-Identifier: Apache-2.0
crossmesh_module(base   FLOOR 0 USES LIBS fmt::fmt)
crossmesh_module(memory FLOOR 1 USES base)
crossmesh_module(plan   FLOOR 2 USES base
                 LIBS something)
"""
HEAD = f"// {tidy.SPDX}\n"


class Planted(unittest.TestCase):
    """Each rule finds the violation that is planted for it, and nothing in a clean file."""

    def findings(self, files: dict[str, str], cmake: str = CMAKE) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {"CMakeLists.txt": cmake, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return [str(found) for found in tidy.check_tree(root)]

    def plan(self, body: str) -> list[str]:
        return self.findings({"crossmesh/plan/plan.cc": HEAD + body})

    def test_a_clean_tree_has_no_findings(self) -> None:
        body = '#include "crossmesh/base/error.h"\n#include <vector>\n// std::thread is not here.\n'
        self.assertEqual(self.plan(body + 'const char* kText = "std::thread mmap(";\n'), [])

    def test_an_include_that_the_module_line_does_not_name(self) -> None:
        self.assertEqual(
            self.plan('#include "crossmesh/memory/copy.h"\n'),
            ["crossmesh/plan/plan.cc:2: includes: plan includes crossmesh/memory/copy.h, "
             "and its line in CMakeLists.txt does not name memory"],
        )

    def test_a_module_that_uses_its_own_or_a_higher_floor(self) -> None:
        cmake = CMAKE.replace("FLOOR 1 USES base", "FLOOR 1 USES base plan")
        self.assertEqual(
            self.findings({}, cmake),
            ["CMakeLists.txt:1: floors: memory (floor 1) uses plan (floor 2)"],
        )

    def test_a_tree_without_module_lines(self) -> None:
        self.assertEqual(
            self.findings({}, HEAD.replace("//", "#")),
            ["CMakeLists.txt:1: floors: no crossmesh_module line was found"],
        )

    def test_a_private_header_of_another_module(self) -> None:
        self.assertEqual(
            self.plan('#include "crossmesh/base/detail/x.h"\n'),
            ["crossmesh/plan/plan.cc:2: detail: crossmesh/base/detail/x.h is private to base"],
        )

    def test_an_oracle_that_includes_what_it_judges(self) -> None:
        text = HEAD + '#include "crossmesh/plan/plan.h"\n'
        self.assertEqual(
            self.findings({"tests/oracle/world.cc": text}),
            ["tests/oracle/world.cc:2: oracle: the oracle includes crossmesh/plan/plan.h"],
        )

    def test_a_module_that_includes_a_front_end(self) -> None:
        self.assertEqual(
            self.plan('#include "cli/format.h"\n'),
            ["crossmesh/plan/plan.cc:2: includes: a module includes the front end's cli/format.h"],
        )

    def test_threads_clocks_and_files_in_the_deciding_half(self) -> None:
        found = "crossmesh/plan/plan.cc:2: purity: the deciding half"
        self.assertEqual(self.plan("std::thread t;\n"), [f"{found} has threads: std::thread"])
        self.assertEqual(
            self.plan("auto t = std::chrono::steady_clock::now();\n"),
            [f"{found} has clocks: std::chrono"],
        )
        self.assertEqual(self.plan("auto* f = fopen(p, m);\n"), [f"{found} has I/O: fopen("])
        self.assertEqual(self.plan("#include <fstream>\n"), [f"{found} includes <fstream>"])

    def test_the_moving_half_may_have_threads(self) -> None:
        text = HEAD + "#include <thread>\nstd::thread t;\n"
        self.assertEqual(self.findings({"crossmesh/memory/copy.cc": text}), [])

    def test_long_lines_files_and_functions(self) -> None:
        self.assertEqual(
            self.plan("// " + "x" * 98 + "\n"),
            ["crossmesh/plan/plan.cc:2: length: 101 columns, over 100"],
        )
        self.assertEqual(
            self.plan("int x;\n" * 500),
            ["crossmesh/plan/plan.cc:501: length: 501 lines, over 500"],
        )
        body = "namespace a {\nint f(int p) {\n" + "  g();\n" * 69 + "}\n}\n"
        self.assertEqual(
            self.plan(body),
            ["crossmesh/plan/plan.cc:3: length: a function of 71 lines, over 70: "
             "int f(int p)"],
        )
        self.assertEqual(self.plan(body.replace("  g();\n", "", 1)), [])

    def test_a_wide_table_between_marks_and_not_after_them(self) -> None:
        wide = "x" * 101 + "\n"
        self.assertEqual(
            self.plan("// clang-format off\n" + wide + "// clang-format on\n" + wide),
            ["crossmesh/plan/plan.cc:5: length: 101 columns, over 100"],
        )

    def test_a_helper_of_tests_is_shared_among_tests_only(self) -> None:
        text = HEAD + '#include "crossmesh/base/detail/testing.h"\n#include <fstream>\n'
        self.assertEqual(self.findings({"crossmesh/plan/plan_test.cc": text}), [])
        self.assertEqual(
            self.plan('#include "crossmesh/base/detail/testing.h"\n'),
            ["crossmesh/plan/plan.cc:2: detail: crossmesh/base/detail/testing.h is private to base"],
        )

    def test_a_long_class_is_not_a_long_function(self) -> None:
        self.assertEqual(self.plan("struct A {\n" + "  int f() { return 1; }\n" * 80 + "};\n"), [])

    def test_a_file_without_its_licence_or_guard(self) -> None:
        self.assertEqual(
            self.findings({"cli/x.h": "int x;\n"}),
            [f"cli/x.h:1: spdx: the first lines have no {tidy.SPDX}",
             "cli/x.h:1: header: no #pragma once"],
        )

    def test_a_path_of_one_machine(self) -> None:
        self.assertEqual(
            self.findings({"docs/a.md": "see /home" + "/me/x and /dev/shm\n"}),
            ["docs/a.md:1: path: /home" + "/me is a path of one machine"],
        )

    def test_a_note_left_for_later(self) -> None:
        self.assertEqual(
            self.plan("// TO" + "DO: more\n"),
            ["crossmesh/plan/plan.cc:2: later: TO" + "DO is left in the tree"],
        )

    def test_a_header_that_does_not_compile_alone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "good.h").write_text("#pragma once\n#include <vector>\nstd::vector<int> f();\n")
            (root / "bad.h").write_text("#pragma once\nstd::vector<int> f();\n")
            check: Callable[[], list[tidy.Finding]] = lambda: tidy.check_headers(  # noqa: E731
                root, ["bad.h", "good.h"], root / "cache", 2
            )
            for _ in range(2):
                found = check()
                self.assertEqual([(f.file, f.rule) for f in found], [("bad.h", "header")])
            self.assertEqual(len(list((root / "cache").iterdir())), 1)


if __name__ == "__main__":
    unittest.main()
