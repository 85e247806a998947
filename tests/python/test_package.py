# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: its stubs, what it imports, and what it leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import ROOT

import crossmesh


def python(program: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_the_stubs_are_those_of_the_extension(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "--quiet", "--module", "crossmesh._core",
         "--output-file", made],
        check=True,
    )  # fmt: skip
    golden = ROOT / "python" / "crossmesh" / "_core.pyi"
    assert made.read_text() == golden.read_text(), "tools/regolden.py writes the stubs anew"


def test_public_names_are_sorted_and_there() -> None:
    assert sorted(set(crossmesh.__all__)) == list(crossmesh.__all__)
    assert set(crossmesh.__all__) <= set(dir(crossmesh))


def test_importing_it_imports_no_framework() -> None:
    program = (
        "import sys, crossmesh; "
        "print(sorted({'torch', 'numpy', 'vllm', 'json'} & set(sys.modules)))"
    )
    assert python(program) == (0, "[]\n", "")


def test_nothing_is_left_behind() -> None:
    config = ROOT / "tests" / "data" / "configs" / "small-llama.json"
    program = f"""
import crossmesh, threading
config = crossmesh.read_config({str(config)!r})
catalog = crossmesh.tensors_of(config)
plan = crossmesh.compile(crossmesh.shard(catalog, "fsdp=1"), crossmesh.lay_out(config, "tp=1"))
pieces = plan.source.classes[0].pieces_of_role[0]
hub, job = crossmesh.InprocHub(), "0123456789abcdef" * 2
def run(rank, layout):
    memory = crossmesh.ParameterMemory.reserve(layout, 0)
    session = crossmesh.Session(
        session=job, source_count=1, target_count=1, rank=rank, on_phase=lambda phase: memory,
        transport=crossmesh.make_inproc(hub, job, rank))
    with session:
        session.join()
        session.agree(memory, loader=lambda tensor, data: session)
        session.update(1) if rank == 0 else session.receive()
    try:
        session.receive()
    except crossmesh.Error as error:
        return error
threads = [threading.Thread(target=run, args=(0, plan.source))]
threads[0].start()
kept = run(1, plan.target)
threads[0].join()
array = crossmesh.ParameterMemory.reserve(plan.target, 0).numpy("model.norm.weight")
print(kept)
"""
    told = "receive: the session is closed\n  rank  1\n"
    assert python(program) == (0, told, "")
