#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of CONVENTIONS.md that a compiler does not.

It reads the module lines of CMakeLists.txt and fails on an include that they do not allow, on
threads, clocks and I/O in the deciding half, on long files, functions and lines, on a missing
SPDX line, on paths of one machine, on notes that were left for later, and on headers that do not
compile alone. Each finding is one line, `file:line: rule: what is wrong`. It needs the standard
library only.

    tools/tidy.py                 check the tree
    tools/tidy.py --no-compile    leave the headers uncompiled

tests/tidy_test.py plants a violation of each rule and sees it found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

DECIDING = ("catalog", "layout", "source", "target", "plan", "schedule", "verify", "profiles")
IO_FILES = tuple(
    f"crossmesh/catalog/{name}" for name in ("read.h", "read.cc", "write.h", "write.cc")
)
# What the oracle judges must not be what the oracle is made of.
ORACLE_FORBIDS = ("layout", "source", "target", "plan", "schedule", "session")

# Headers that only tests include.
TEST_HEADERS = ("testing.h", "conformance.h", "error_of.h", "golden.h", "temporary_folder.h")

CODE_SUFFIXES = (".h", ".cc")
TEXT_SUFFIXES = (".h", ".cc", ".py", ".sh", ".cmake", ".md", ".txt", ".yml", ".json", ".supp")
SPDX = "SPDX-License-Identifier: Apache-2.0"
SPDX_SUFFIXES = (".h", ".cc", ".py", ".sh", ".cmake")
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".venv", ".cache"}

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')
MODULE_LINE = re.compile(r"crossmesh_module\(\s*(\w+)\s+FLOOR\s+(\d+)\s+USES\s*([^)]*)\)", re.S)

THREADS = re.compile(
    r"\bstd::(?:this_thread|thread|jthread|async|mutex|shared_mutex|condition_variable|atomic\w*)\b"
    r"|\bpthread_\w+\s*\("
)
CLOCKS = re.compile(
    r"\bstd::chrono\b|\bclock_gettime\s*\(|\bgettimeofday\s*\(|\bstd::time\s*\(|\brandom_device\b"
)
IO_HEADERS = {
    "fstream", "iostream", "ostream", "cstdio", "stdio.h", "filesystem", "fcntl.h", "unistd.h",
    "sys/mman.h", "sys/stat.h", "sys/socket.h", "thread", "mutex", "atomic", "chrono",
    "condition_variable", "future", "random", "fmt/os.h", "fmt/ostream.h",
}
IO_CALLS = re.compile(
    r"\bstd::(?:i|o)?fstream\b|\bstd::(?:cout|cerr|cin)\b|\bf(?:open|read|write|printf)\s*\("
    r"|\bmmap\s*\(|\bgetenv\s*\(|\bfmt::print\s*\(|(?<![\w.>:])(?:::)?printf\s*\("
)
# One machine's folders; /dev/shm, /proc and /sys are the system's on every machine.
MACHINE_PATH = re.compile(r"(?<![\w./$}-])/(?:home|root|work|Users|mnt|opt|tmp)/[\w.-]+")
LEFT_FOR_LATER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


@dataclass(frozen=True)
class Finding:
    """One broken rule."""

    file: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.what}"


@dataclass
class Module:
    """A module's line of CMakeLists.txt."""

    name: str
    floor: int
    uses: list[str] = field(default_factory=list)


def modules_of(cmake_text: str) -> dict[str, Module]:
    """Returns the modules that a CMakeLists.txt names."""
    modules: dict[str, Module] = {}
    for name, floor, rest in MODULE_LINE.findall(cmake_text):
        uses = re.split(r"\bLIBS\b", rest)[0].split()
        modules[name] = Module(name, int(floor), uses)
    return modules


def files_of(root: Path) -> list[str]:
    """Returns the tree's text files, relative to its root, sorted."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in names:
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            if relative.startswith("tests/data/") or path.is_symlink():
                continue
            if path.suffix in TEXT_SUFFIXES or name in ("run", "CMakeLists.txt"):
                found.append(relative)
    return sorted(found)


def without_comments(text: str) -> str:
    """Returns C++ text with comments, and what strings hold, blanked; lines stay where they are."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^\s()\\]{0,16})\((?:.*?)\)(?P=d)"'
        r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
        re.S,
    )

    def blank(match: re.Match[str]) -> str:
        kept = re.sub(r"[^\n]", " ", match.group(0))
        return kept if match.group(0).startswith("/") else '"' + kept[1:-1] + '"'

    return pattern.sub(blank, text)


# -- Rules ----------------------------------------------------------------------------------------


def check_modules(modules: dict[str, Module]) -> Iterable[Finding]:
    """Checks that a module uses only modules that exist, on lower floors."""
    if not modules:
        yield Finding("CMakeLists.txt", 1, "floors", "no crossmesh_module line was found")
    for module in modules.values():
        for used in module.uses:
            if used not in modules:
                yield Finding("CMakeLists.txt", 1, "floors", f"{module.name} uses {used}, unknown")
            elif modules[used].floor >= module.floor:
                yield Finding(
                    "CMakeLists.txt", 1, "floors",
                    f"{module.name} (floor {module.floor}) uses {used} "
                    f"(floor {modules[used].floor})",
                )


def included(text: str) -> Iterable[tuple[int, str]]:
    """Yields (line, path) of each include."""
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def is_test(name: str) -> bool:
    """Whether a file is a part of the tests and of nothing else."""
    return name.endswith("_test.cc") or name.split("/")[-1] in TEST_HEADERS


def check_includes(name: str, text: str, modules: dict[str, Module]) -> Iterable[Finding]:
    """Checks a C++ file's includes against the modules' lines, detail/ and the oracle's rule."""
    parts = name.split("/")
    own = parts[1] if parts[0] == "crossmesh" and len(parts) > 2 else None
    module = modules.get(own) if own else None
    if own and not module:
        yield Finding(name, 1, "includes", f"folder {own} has no crossmesh_module line")
    for line, path in included(text):
        target = path.split("/")
        shared = is_test(name) and is_test(path)
        if target[0] in ("cli", "python", "bench", "tests") and own and not shared:
            yield Finding(name, line, "includes", f"a module includes the front end's {path}")
        if target[0] != "crossmesh" or len(target) < 3:
            continue
        used = target[1]
        if "detail" in target[2:] and used != own and not shared:
            yield Finding(name, line, "detail", f"{path} is private to {used}")
        if module and used != own and used not in module.uses:
            yield Finding(
                name, line, "includes",
                f"{own} includes {path}, and its line in CMakeLists.txt does not name {used}",
            )
        if name.startswith("tests/oracle/") and used in ORACLE_FORBIDS:
            yield Finding(name, line, "oracle", f"the oracle includes {path}")


def check_purity(name: str, text: str) -> Iterable[Finding]:
    """Checks that the deciding half starts no thread, reads no clock and does no I/O."""
    parts = name.split("/")
    if parts[0] != "crossmesh" or len(parts) < 3 or parts[1] not in DECIDING:
        return
    if name in IO_FILES or is_test(name):
        return
    for line, path in included(text):
        if path in IO_HEADERS:
            yield Finding(name, line, "purity", f"the deciding half includes <{path}>")
    for number, line_text in enumerate(without_comments(text).splitlines(), 1):
        if INCLUDE.match(line_text):
            continue
        for rule, what in ((THREADS, "threads"), (CLOCKS, "clocks"), (IO_CALLS, "I/O")):
            match = rule.search(line_text)
            if match:
                yield Finding(name, number, "purity", f"the deciding half has {what}: {match[0]}")


def is_table(name: str) -> bool:
    """Whether a file's length is its data's."""
    return "/tests/" in f"/{name}" or name.endswith("_test.cc") or name.endswith("_table.cc")


def functions_of(text: str) -> Iterable[tuple[int, int, str]]:
    """Yields (first line, line count, head) of each function body, by counting braces.

    A body is a brace that follows `)`, perhaps with const, noexcept, override, a return type or an
    initialiser list between, outside any other body.
    """
    code = without_comments(text)
    code = re.sub(r"(?m)^[ \t]*#.*(?:\\\n.*)*$", lambda m: re.sub(r"[^\n]", " ", m[0]), code)
    depth = 0
    body_at: int | None = None
    head_from = 0
    head = ""
    start_line = 1
    line = 1
    for at, mark in enumerate(code):
        if mark == "\n":
            line += 1
        elif mark == "{":
            if body_at is None:
                head = code[head_from:at]
                if is_function_head(head):
                    body_at = depth
                    start_line = line - head.rstrip().count("\n", head.rstrip().rfind(")") + 1)
            depth += 1
            if body_at is None:
                head_from = at + 1
        elif mark == "}":
            depth -= 1
            if body_at == depth:
                yield start_line, line - start_line + 1, " ".join(head.split())
                body_at = None
            if body_at is None:
                head_from = at + 1
        elif mark == ";" and body_at is None:
            head_from = at + 1


def is_function_head(head: str) -> bool:
    """Whether the text before a brace begins a function's body."""
    words = head.split()
    if not words or ")" not in head:
        return False
    first = words[0]
    if first in ("namespace", "struct", "class", "enum", "union", "extern"):
        return False
    # `int x = f(1), y{` and brace initialisers follow `=`; an operator's own `=` does not count.
    before = re.sub(r"operator\s*[=!<>+\-*/]+", "operator", head)
    before = re.sub(r"\([^()]*\)", "()", before)
    while re.search(r"\([^()]*\([^()]*\)[^()]*\)", before):
        before = re.sub(r"\(([^()]*)\([^()]*\)([^()]*)\)", r"(\1\2)", before)
    before = re.sub(r"\([^()]*\)", "()", before)
    before = re.sub(r"<[^<>]*>", "", before)
    return "=" not in before


def check_lengths(name: str, text: str) -> Iterable[Finding]:
    """Checks the lengths of a file, its functions and its lines; tables that clang-format leaves
    alone may be wide."""
    lines = text.splitlines()
    suffix = Path(name).suffix
    if suffix in CODE_SUFFIXES + (".py", ".sh") and len(lines) > FILE_LINES_MAX:
        if not is_table(name):
            yield Finding(name, len(lines), "length", f"{len(lines)} lines, over {FILE_LINES_MAX}")
    if suffix in CODE_SUFFIXES + (".py", ".sh", ".cmake") and not is_table(name):
        table = False
        for number, line in enumerate(lines, 1):
            if "clang-format o" in line:
                table = "clang-format off" in line
            if len(line) > LINE_COLUMNS_MAX and not table:
                yield Finding(
                    name, number, "length", f"{len(line)} columns, over {LINE_COLUMNS_MAX}"
                )
    if suffix in CODE_SUFFIXES and not is_table(name):
        for number, count, head in functions_of(text):
            if count > FUNCTION_LINES_MAX:
                short = head if len(head) <= 60 else head[:57] + "..."
                yield Finding(
                    name, number, "length",
                    f"a function of {count} lines, over {FUNCTION_LINES_MAX}: {short}",
                )


def check_text(name: str, text: str) -> Iterable[Finding]:
    """Checks the SPDX line, paths of one machine, notes for later, tabs and trailing blanks."""
    head = text.splitlines()[:2]
    needs_spdx = Path(name).suffix in SPDX_SUFFIXES or name.endswith("CMakeLists.txt")
    if needs_spdx and not any(SPDX in line for line in head):
        yield Finding(name, 1, "spdx", f"the first lines have no {SPDX}")
    if Path(name).suffix == ".h" and not re.search(r"^#pragma once$", text, re.M):
        yield Finding(name, 1, "header", "no #pragma once")
    is_code = Path(name).suffix in CODE_SUFFIXES
    for number, line in enumerate(text.splitlines(), 1):
        match = MACHINE_PATH.search(line)
        if match:
            yield Finding(name, number, "path", f"{match[0]} is a path of one machine")
        match = LEFT_FOR_LATER.search(line)
        if match and name != "CONVENTIONS.md":
            yield Finding(name, number, "later", f"{match[0]} is left in the tree")
        if is_code and "\t" in line:
            yield Finding(name, number, "blank", "a tab")
        if is_code and line != line.rstrip():
            yield Finding(name, number, "blank", "a trailing blank")


# -- Headers --------------------------------------------------------------------------------------


def closure(root: Path, name: str, seen: dict[str, str]) -> None:
    """Collects the texts of a header and of ours that it includes."""
    if name in seen or not (root / name).is_file():
        return
    seen[name] = (root / name).read_text()
    for _, path in included(seen[name]):
        closure(root, path, seen)


def compile_flags() -> list[str]:
    """Returns what a lone header needs to compile."""
    flags = ["-std=c++20", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Werror"]
    flags.append('-DCROSSMESH_TEST_DATA="tests/data"')
    for package in ("fmt", "libzmq", "libxxhash", "nlohmann_json", "CLI11"):
        shown = subprocess.run(
            ["pkg-config", "--cflags", package], capture_output=True, text=True, check=False
        )
        if shown.returncode == 0:
            flags += shown.stdout.split()
    return list(dict.fromkeys(flags))


def binding_flags(root: Path) -> list[str] | None:
    """Returns what the headers of the bindings need too; None where nothing has nanobind."""
    python = root / "build" / "venv" / "bin" / "python"
    asks = (
        "import nanobind, sysconfig; print(nanobind.include_dir(), sysconfig.get_path('include'))"
    )
    if not python.exists():
        return None
    shown = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        return None
    includes = [word for folder in shown.stdout.split() for word in ("-isystem", folder)]
    return ["-fvisibility=hidden", *includes]


def check_headers(root: Path, names: list[str], cache: Path, jobs: int) -> list[Finding]:
    """Compiles each header alone; one that passed with the same text is not compiled again."""
    cache.mkdir(parents=True, exist_ok=True)
    common_flags = compile_flags()
    flags_of_bindings = binding_flags(root)
    compiler = os.environ.get("CXX", "g++")

    def check(name: str) -> Finding | None:
        flags = common_flags
        if name.startswith("python/"):
            if flags_of_bindings is None:
                return None
            flags = common_flags + flags_of_bindings
        texts: dict[str, str] = {}
        closure(root, name, texts)
        key = hashlib.sha256(repr((compiler, flags, sorted(texts.items()))).encode()).hexdigest()
        passed = cache / key
        if passed.exists():
            return None
        source = f'#include "{name}"\n'
        done = subprocess.run(
            [compiler, *flags, "-I", str(root), "-"],
            input=source, capture_output=True, text=True, check=False,
        )
        if done.returncode == 0:
            passed.touch()
            return None
        first = next((t for t in done.stderr.splitlines() if "error" in t), done.stderr.strip())
        return Finding(name, 1, "header", f"does not compile alone: {first}")

    headers = [n for n in names if n.endswith(".h")]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return [found for found in pool.map(check, headers) if found]


# -- Running --------------------------------------------------------------------------------------


def check_tree(root: Path, names: list[str] | None = None) -> list[Finding]:
    """Returns what breaks the rules, compilation of headers aside."""
    modules = modules_of((root / "CMakeLists.txt").read_text())
    findings = list(check_modules(modules))
    for name in files_of(root) if names is None else names:
        try:
            text = (root / name).read_text()
        except UnicodeDecodeError:
            findings.append(Finding(name, 1, "text", "is not UTF-8"))
            continue
        if Path(name).suffix in CODE_SUFFIXES:
            findings += check_includes(name, text, modules)
            findings += check_purity(name, text)
        findings += check_lengths(name, text)
        findings += check_text(name, text)
    return findings


def main() -> int:
    """Checks the tree, or itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--cache", type=Path, help="folder for the headers that passed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    names = files_of(options.root)
    findings = check_tree(options.root, names)
    if not options.no_compile:
        cache = options.cache or options.root / "build" / "tidy"
        findings += check_headers(options.root, names, cache, options.jobs)
    for found in findings:
        print(found)
    print(f"tidy: {len(names)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
