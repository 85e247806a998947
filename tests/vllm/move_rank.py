# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that updates a real vLLM model: two trainers, two engine ranks, four processes.

    move_rank.py CONFIG SESSION RANK

Ranks 0 and 1 train: torch tensors, cut on dimension 0. Ranks 2 and 3 serve: vLLM's model at tp=2,
whose own loader was baked. An engine rank prints a line of JSON for each version: where its memory
differs from a model that was loaded with the same weights.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoint
import engine as engines
import forward
import memory
from families import model_folder

TRAINERS = 2
ENGINES = 2
VERSIONS = (1, 2)
BY_THE_LOADER = "model.norm.weight"  # goes whole to vLLM's loader, beside what goes as pieces


def values_of(tensors: list[checkpoint.Tensor], version: int) -> dict[str, Any]:
    """Returns the weights of a version; 0 is what engines start with."""
    return checkpoint.random_values(tensors, seed=version)


def session_of(name: str, rank: int) -> Any:
    """Makes a rank's session."""
    import crossmesh

    return crossmesh.Session(
        session=name,
        source_count=TRAINERS,
        target_count=ENGINES,
        rank=rank,
        transport=crossmesh.make_shm(name, rank),
        timeout=60.0,
        agree_timeout=120.0,
        digest="on",
    )


def train(session: Any, tensors: list[checkpoint.Tensor], rank: int) -> None:
    """Gives two versions from private tensors."""
    import crossmesh

    catalog = crossmesh.Catalog(
        [crossmesh.TensorInfo(t.name, str(t.dtype), t.shape) for t in tensors]
    )
    layout = crossmesh.shard(catalog, f"fsdp={TRAINERS}")

    def shards(version: int) -> dict[str, Any]:
        cut = {}
        for name, value in values_of(tensors, version).items():
            parts = value.chunk(TRAINERS)
            if rank < len(parts):
                cut[name] = parts[rank].clone()
        return cut

    held = shards(0)
    parameters = crossmesh.ParameterMemory(layout, rank, held)
    session.exchange("layouts", "")
    session.agree(parameters)
    for version in VERSIONS:
        for name, part in shards(version).items():
            held[name].copy_(part)
        session.update(version)


def serve(session: Any, folder: Path, tensors: list[checkpoint.Tensor], rank: int) -> None:
    """Takes two versions into a live model, and compares."""
    import crossmesh.torch
    import torch

    import crossmesh

    engine = engines.make_engine(folder, ENGINES)
    asked = [(t.name, t.shape, t.dtype) for t in tensors]
    with engine.rank(rank):
        model = engine.build()
        model.load_weights(iter(values_of(tensors, 0).items()))
        recorded = crossmesh.torch.bake(model, asked, rank=rank)
    texts = session.exchange("layouts", recorded.layout().to_json())[TRAINERS:]
    layouts = [crossmesh.Layout.from_json(text) for text in texts]
    layout = crossmesh.torch.merge([SimpleNamespace(layout=lambda own=own: own) for own in layouts])
    layout = layout.mark_opaque(BY_THE_LOADER, "to try the fallback")
    live = dict(memory.named(model))
    arrays = {p.name: live[p.name] for p in layout.parameters if layout.has_parameter(rank, p.name)}

    def load(tensor: Any, data: memoryview) -> None:
        dtype = next(t.dtype for t in tensors if t.name == tensor.name)
        value = torch.frombuffer(bytearray(data), dtype=dtype).reshape(tuple(tensor.shape))
        with engine.rank(rank):
            model.load_weights([(tensor.name, value)])

    session.agree(crossmesh.ParameterMemory(layout, rank, arrays), loader=load)
    for version in VERSIONS:
        report = session.receive()
        with engine.rank(rank):
            right = engine.build()
            right.load_weights(iter(values_of(tensors, version).items()))
        told = {
            "rank": rank,
            "version": report.version,
            "bytes_fallback": report.bytes_fallback,
            "difference": memory.difference(*(_parameters(m) for m in (right, model))),
        }
        print(json.dumps(told), flush=True)
    outputs = []
    for ready in (right, model):
        with engine.rank(rank):
            engine.process(ready)
        outputs.append(forward.run_layers(engine, ready).bytes_of)
    print(json.dumps({"rank": rank, "computes": memory.difference(*outputs)}), flush=True)


def _parameters(model: Any) -> memory.Picture:
    return {
        name: taken for name, taken in memory.picture(model).items() if name.startswith("parameter")
    }


def main(config: str, session_name: str, rank: int) -> None:
    """Runs one rank."""
    engines.start()
    logging.disable(logging.WARNING)
    with model_folder(Path(config)) as folder, session_of(session_name, rank) as session:
        tensors = checkpoint.tensors_of(folder)
        session.join()
        if rank < TRAINERS:
            train(session, tensors, rank)
        else:
            serve(session, folder, tensors, rank - TRAINERS)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
