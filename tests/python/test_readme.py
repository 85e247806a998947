# SPDX-License-Identifier: Apache-2.0
"""The README's Python examples run, together, as a job of four processes."""

from __future__ import annotations

import multiprocessing
import re
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from conftest import ROOT
from oracle import engine_parameters, trainer_shards

import crossmesh

PLAN, TRAINER, ENGINE = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)
LAST_VERSION = 2
EVERYWHERE = {"crossmesh": crossmesh, "last_version": LAST_VERSION}


def tensors_of(folder: str) -> dict[str, Any]:
    checkpoint = crossmesh.read(folder)
    return {name: checkpoint.numpy(name) for name in checkpoint.catalog.names}


def train(job: str, folder: str, rank: int) -> list[int]:
    steps: list[int] = []

    def train_step(memory: crossmesh.ParameterMemory) -> None:
        steps.append(len(steps) + 1)
        for name, shard in trainer_shards(tensors_of(folder), 2, rank).items():
            memory.numpy(name)[:] = shard + steps[-1]

    names = {"job": job, "checkpoint_folder": folder, "rank": rank, "train_step": train_step}
    exec(TRAINER, EVERYWHERE | names)
    return steps


def serve(job: str, folder: str, rank: int) -> list[int]:
    config = (Path(folder) / "config.json").read_text()
    zeros = engine_parameters(tensors_of(folder), config, 2, rank - 2)
    parameters = {name: np.zeros_like(array) for name, array in zeros.items()}
    served: list[int] = []

    def serve_version(version: int) -> None:
        grown = {name: tensor + np.uint16(version) for name, tensor in tensors_of(folder).items()}
        expected = engine_parameters(grown, config, 2, rank - 2)
        for name, array in expected.items():
            assert np.array_equal(parameters[name], array), name
        served.append(version)

    names = {
        "job": job,
        "checkpoint_folder": folder,
        "t": rank - 2,
        "parameters": parameters,
        "serve": serve_version,
    }
    exec(ENGINE, EVERYWHERE | names)
    return served


def test_the_plan_explains_itself(folder: Path, capsys: Any) -> None:
    exec(PLAN, {"checkpoint_folder": folder})
    assert capsys.readouterr().out.startswith("plan of model\nsource: 2 ranks, 35 tensors")


def test_trainers_and_engines_meet(folder: Path) -> None:
    job = secrets.token_hex(16)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ranks = [
            pool.apply_async(train if rank < 2 else serve, (job, str(folder), rank))
            for rank in range(4)
        ]
        assert [rank.get(timeout=120) for rank in ranks] == [[1, 2]] * 4
