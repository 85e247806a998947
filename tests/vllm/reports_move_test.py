# SPDX-License-Identifier: Apache-2.0
"""Faults that others have met between trainers' shards and engines' loaders, in the smallest data
that shows them: what trainers hold is cut without regard to what the loader makes of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crossmesh.torch
import pytest
import torch

import crossmesh

Load = Callable[[torch.nn.Module, torch.Tensor, int], None]


def update(trainer: str, engines: list[torch.nn.Module], load: Load, fused: torch.Tensor) -> None:
    """Moves one tensor, `fused`, from the shards of trainer ranks into all engine ranks.

    Each rank is a thread. `load` is what an engine rank does with the whole tensor; it is recorded.
    """
    catalog = crossmesh.Catalog([crossmesh.TensorInfo("fused", "F32", tuple(fused.shape))])
    source = crossmesh.shard(catalog, trainer)
    bakes = []
    for rank, engine in enumerate(engines):

        def load_all(weights: Any, engine: Any = engine, rank: int = rank) -> None:
            for _, tensor in weights:
                load(engine, tensor, rank)

        bakes.append(crossmesh.torch.bake(engine, catalog, load_all, rank=rank))
        assert bakes[-1].opaque == {}
    target = crossmesh.torch.merge(bakes)
    hub, job = crossmesh.InprocHub(), secrets.token_hex(16)

    def memory_of(rank: int) -> Any:
        if rank >= source.rank_count:
            engine = engines[rank - source.rank_count]
            return crossmesh.ParameterMemory(
                target, rank - source.rank_count, dict(engine.named_parameters())
            )
        held = {"fused": torch.empty(source.local_shape(rank, "fused"))}
        for placed in source.pieces(rank, "fused"):
            box = placed.piece.box
            part = fused
            for dim, (begin, extent) in enumerate(zip(box.origin, box.shape, strict=True)):
                part = part.narrow(dim, begin, extent)
            held["fused"] = part.clone()
        return crossmesh.ParameterMemory(source, rank, held)

    def run(rank: int) -> None:
        with crossmesh.Session(
            session=job,
            source_count=source.rank_count,
            target_count=len(engines),
            rank=rank,
            transport=crossmesh.make_inproc(hub, job, rank),
            digest="on",
        ) as session:
            session.join()
            session.agree(memory_of(rank))
            if rank < source.rank_count:
                session.update(1)
            else:
                session.receive()

    ranks = range(source.rank_count + len(engines))
    with ThreadPoolExecutor(len(ranks)) as pool:
        list(pool.map(run, ranks))


def engine_of(**sizes: tuple[int, ...]) -> torch.nn.Module:
    engine = torch.nn.Module()
    for name, size in sizes.items():
        value = torch.full(size, 99.0)
        engine.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    return engine


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@pytest.mark.parametrize("trainer", ["fsdp=1", "fsdp=2", "fsdp=3", "fsdp=6"])
def test_shards_across_the_border_of_two_segments_keep_their_rows(trainer: str) -> None:
    # [g0 g1 g2 u0 u1 u2]: three shards are [g0 g1][g2 u0][u1 u2].
    def load(engine: Any, tensor: torch.Tensor, rank: int) -> None:
        gate, up = tensor.split(3)
        engine.gate.copy_(gate)
        engine.up.copy_(up)

    engine = engine_of(gate=(3, 2), up=(3, 2))
    update(trainer, [engine], load, numbered(6, 2))
    assert engine.gate.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert engine.up.tolist() == [[6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("trainer", ["fsdp=1", "fsdp=2", "fsdp=3", "fsdp=4"])
def test_each_engine_rank_gets_its_part_of_each_segment_in_order(trainer: str) -> None:
    # [Q(4) K(2) V(2)] for two engine ranks.
    def load(engine: Any, tensor: torch.Tensor, rank: int) -> None:
        place = 0
        for segment in tensor.split([4, 2, 2]):
            part = segment.chunk(2)[rank]
            engine.qkv[place : place + part.shape[0]].copy_(part)
            place += part.shape[0]

    engines = [engine_of(qkv=(4, 1)) for _ in range(2)]
    update(trainer, engines, load, numbered(8, 1))
    assert [engine.qkv.flatten().tolist() for engine in engines] == [[0, 1, 4, 6], [2, 3, 5, 7]]


@pytest.mark.parametrize("trainer", ["fsdp=1", "fsdp=3", "fsdp=5"])
def test_query_groups_come_apart_whatever_shards_they_lie_in(trainer: str) -> None:
    # Rows [q0 q1 k0 v0 q2 q3 k1 v1] of two groups.
    def load(engine: Any, tensor: torch.Tensor, rank: int) -> None:
        groups = tensor.view(2, 4, 1)
        engine.q.view(2, 2, 1).copy_(groups[:, :2])
        engine.k.view(2, 1, 1).copy_(groups[:, 2:3])
        engine.v.view(2, 1, 1).copy_(groups[:, 3:])

    engine = engine_of(q=(4, 1), k=(2, 1), v=(2, 1))
    update(trainer, [engine], load, numbered(8, 1))
    assert engine.q.flatten().tolist() == [0, 1, 4, 5]
    assert engine.k.flatten().tolist() == [2, 6]
    assert engine.v.flatten().tolist() == [3, 7]


@pytest.mark.parametrize("trainer", ["fsdp=1", "fsdp=2", "fsdp=3"])
def test_a_transpose_of_shards_has_the_order_of_the_whole(trainer: str) -> None:
    def load(engine: Any, tensor: torch.Tensor, rank: int) -> None:
        engine.weight.copy_(tensor.t())

    engine = engine_of(weight=(2, 3))
    update(trainer, [engine], load, numbered(3, 2))
    assert engine.weight.tolist() == [[0, 2, 4], [1, 3, 5]]
