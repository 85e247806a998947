# SPDX-License-Identifier: Apache-2.0
"""Two trainers update a live vLLM model at tp=2 through crossmesh, and it is what a load makes it."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys

import move_rank
import pytest
import table


@pytest.mark.parametrize("family", ["qwen2", "deepseek_v3"])
def test_a_live_model_is_updated_to_what_a_load_makes_it(family: str) -> None:
    session = secrets.token_hex(16)
    ranks = range(move_rank.TRAINERS + move_rank.ENGINES)
    command = [
        sys.executable,
        str(table.HERE / "move_rank.py"),
        str(table.SMALL / f"{family}.json"),
    ]
    processes = [
        subprocess.Popen(
            [*command, session, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    said = []
    try:
        for rank, process in zip(ranks, processes, strict=True):
            given, errors = process.communicate(timeout=300)
            assert process.returncode == 0, f"rank {rank}: {errors}"
            said.append([json.loads(line) for line in given.splitlines()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert said[: move_rank.TRAINERS] == [[], []]
    for engine, lines in enumerate(said[move_rank.TRAINERS :]):
        *versions, computed = lines
        assert [line["version"] for line in versions] == list(move_rank.VERSIONS)
        for line in versions:
            assert line["difference"] is None, line
            assert line["bytes_fallback"] > 0, line
        assert computed == {"rank": engine, "computes": None}
