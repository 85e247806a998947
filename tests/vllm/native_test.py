# SPDX-License-Identifier: Apache-2.0
"""The layout that a family's table declares, against the one that is recorded of vLLM's loader."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossmesh.torch
import engine as engines
import pytest
import table
from layout_elements import LayoutText

import crossmesh


@pytest.fixture(scope="module", autouse=True)
def vllm_is_ready() -> None:
    """Readies the process for vLLM."""
    engines.start()
    logging.disable(logging.WARNING)


def config_of(path: Path) -> Any:
    """Parses a config with crossmesh."""
    return crossmesh.parse_config(path.read_text())


def baked(path: Path, tp: int, catalog: Any, device: str = "cpu") -> Iterator[tuple[Any, float]]:
    """Yields the bake of each rank of vLLM's model of a config, and the seconds that it took."""
    from families import model_folder

    with model_folder(path) as folder:
        engine = engines.make_engine(folder, tp)
        for rank in range(tp):
            with engine.rank(rank):
                model = engine.build(device)
                started = time.perf_counter()
                recorded = crossmesh.torch.bake(model, catalog, rank=rank)
                yield recorded, time.perf_counter() - started


@pytest.mark.parametrize("tp", table.TP)
@pytest.mark.parametrize("family", table.FAMILIES)
def test_declared_and_recorded_say_the_same(family: str, tp: int) -> None:

    path = table.SMALL / f"{family}.json"
    config = config_of(path)
    catalog = crossmesh.tensors_of(config)
    declared = LayoutText(crossmesh.lay_out(config, f"tp={tp}", parameter_dtype="BF16").to_json())
    bakes = [recorded for recorded, _ in baked(path, tp, catalog)]
    recorded = LayoutText(crossmesh.torch.merge(bakes).to_json())

    number_of = {tensor.name: k for k, tensor in enumerate(catalog.tensors)}
    assert recorded.rank_count == declared.rank_count == tp
    for rank in range(tp):
        right = declared.elements(rank, number_of)
        given = recorded.elements(rank, number_of)
        assert given.keys() == right.keys()
        for name, elements in right.items():
            assert given[name].tolist() == elements.tolist(), f"rank {rank}, {name}"
        assert set(recorded.pieces(rank)) == set(declared.pieces(rank))
    # A tied head has one memory under two names; the checkpoint has no second tensor for it.
    unused = {name for name, _ in declared.json["unused"]}
    assert unused == ({"lm_head.weight"} if config.tied_embeddings else set())


def test_declaring_is_a_hundred_times_faster() -> None:
    path = table.REAL / "qwen3-30b-a3b.json"
    config = config_of(path)
    recording = sum(seconds for _, seconds in baked(path, 4, crossmesh.tensors_of(config), "meta"))
    declaring = []
    for _ in range(5):
        started = time.perf_counter()
        crossmesh.lay_out(config, "tp=4")
        declaring.append(time.perf_counter() - started)
    ratio = recording / min(declaring)
    print(json.dumps({"recording": recording, "declaring": min(declaring), "ratio": ratio}))
    assert ratio >= 100
