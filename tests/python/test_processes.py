# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks are processes: trainers in shared memory, engines in NumPy's own."""

from __future__ import annotations

import multiprocessing
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import engine_parameters, trainer_shards

import crossmesh


def train(job: str, folder: str, rank: int, way: Any) -> str:
    checkpoint = crossmesh.read(folder)
    tensors = {name: checkpoint.numpy(name) for name in checkpoint.catalog.names}
    memory = crossmesh.ParameterMemory.reserve(crossmesh.shard(checkpoint, "fsdp=2"), rank)
    for name, shard in trainer_shards(tensors, 2, rank).items():
        memory.numpy(name)[:] = shard
    transport = crossmesh.make_shm(job, rank, way=way)
    with crossmesh.Session(
        session=job, source_count=2, target_count=2, rank=rank, transport=transport
    ) as session:
        session.join()
        session.agree(memory)
        session.digest(1)
        session.update(1)
    return "gave"


def serve(job: str, folder: str, rank: int, way: Any) -> str:
    checkpoint = crossmesh.read(folder)
    layout = crossmesh.family(crossmesh.read_config(folder), checkpoint, "tp=2")
    side = rank - 2
    arrays = {p.name: np.zeros(layout.local_shape(side, p.name), np.uint16)
              for p in layout.parameters}  # fmt: skip
    transport = crossmesh.make_shm(job, rank, way=way)
    with crossmesh.Session(
        session=job, source_count=2, target_count=2, rank=rank, transport=transport
    ) as session:
        session.join()
        session.agree(crossmesh.ParameterMemory(layout, side, arrays))
        session.receive()
        ways = {link.way for link in session.links().values()}
    tensors = {name: checkpoint.numpy(name) for name in checkpoint.catalog.names}
    text = (Path(folder) / "config.json").read_text()
    wrong = [
        name
        for name, bits in engine_parameters(tensors, text, 2, side).items()
        if not np.array_equal(arrays[name], bits)
    ]
    return f"took by {'+'.join(sorted(ways))}, wrong: {wrong}"


@pytest.mark.parametrize("way, taken", [("automatic", "memfd"), ("ring", "ring")])
def test_engines_serve_what_trainers_hold(folder: Path, way: str, taken: str) -> None:
    job = secrets.token_hex(16)
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        ranks = [
            pool.apply_async(train if rank < 2 else serve, (job, str(folder), rank, way))
            for rank in range(4)
        ]
        told = [rank.get(timeout=120) for rank in ranks]
    assert told == ["gave", "gave", f"took by {taken}, wrong: []", f"took by {taken}, wrong: []"]
