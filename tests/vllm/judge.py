# SPDX-License-Identifier: Apache-2.0
"""Whether what was recorded of a loader does what the loader does, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import forward
import memory
from checkpoint import Tensor, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from engine import Engine


class Recorded(Protocol):
    """What `crossmesh.torch.bake` gives, as far as it is judged."""

    opaque: dict[str, str]
    direct_bytes_share: float

    def apply(self, get_tensor: Callable[[str], torch.Tensor]) -> None: ...


Bake = Callable[["torch.nn.Module", list[tuple[str, tuple[int, ...], Any]]], Recorded]


@dataclass
class Judgement:
    """One rank's line."""

    family: str
    tp: int
    rank: int
    outcome: str = "baked"  # or fallback, refused; engine_failed where its own loader raises
    identical: bool | None = None  # None where there is nothing to compare
    direct_bytes_share: float | None = None
    reasons: list[str] = field(default_factory=list)
    seconds: dict[str, float | None] = field(  # of the processor: other processes do not count
        default_factory=lambda: {"bake": None, "load_weights": None}
    )
    layers_run: int = 0
    layers_not_run: list[str] = field(default_factory=list)


@dataclass
class Effects:
    """What a way of loading does to a model, and what the model then computes."""

    over_patterns: list[memory.Picture]
    processed: memory.Picture
    outputs: forward.Outputs
    seconds: float


Values = Mapping[str, "torch.Tensor"]


def judge(engine: Engine, family: str, rank: int, values: Values, bake: Bake) -> Judgement:
    """Loads, bakes and applies on one rank, and compares.

    Raises: what the bake raises that is no refusal, and what `apply` raises: both are our faults.
    """
    line = Judgement(family, engine.tp, rank)
    try:
        with engine.rank(rank), _told_apart():
            model = engine.build()
        fresh = memory.picture(model)
        expected = _effects(engine, rank, model, lambda: model.load_weights(iter(values.items())))
    except Exception as error:  # noqa: BLE001 (the engine's own failure is a result)
        return failed(line, error)
    line.seconds["load_weights"] = expected.seconds
    del model

    with engine.rank(rank), _told_apart():
        model = engine.build()
    wrong = memory.difference(fresh, memory.picture(model))
    if wrong is not None:
        raise AssertionError(f"a second build of the same model differs: {wrong}")
    recorded = _bake(engine, rank, model, values, bake, line)
    if recorded is None:
        return line
    _note(recorded, line)
    actual = _effects(engine, rank, model, lambda: recorded.apply(values.__getitem__))
    _compare(expected, actual, line)
    return line


def failed(line: Judgement, error: Exception) -> Judgement:
    """Notes that the engine fails by itself, before crossmesh has a part in it."""
    line.outcome = "engine_failed"
    line.reasons = [f"{type(error).__name__}: {error}"]
    return line


def bake_alone(
    engine: Engine, family: str, rank: int, tensors: list[Tensor], bake: Bake
) -> Judgement:
    """Bakes a model that has no memory; nothing is loaded or compared."""
    line = Judgement(family, engine.tp, rank)
    with engine.rank(rank):
        model = engine.build("meta")
        started = time.process_time()
        try:
            recorded = bake(model, _as_asked(tensors))
        except NotImplementedError as error:
            line.outcome = "refused"
            line.reasons = [str(error)]
            return line
        line.seconds["bake"] = time.process_time() - started
    _note(recorded, line)
    return line


def _as_asked(tensors: list[Tensor]) -> list[tuple[str, tuple[int, ...], Any]]:
    return [(tensor.name, tensor.shape, tensor.dtype) for tensor in tensors]


def _note(recorded: Recorded, line: Judgement) -> None:
    line.outcome = "fallback" if recorded.opaque else "baked"
    line.reasons += [f"{name}: {why}" for name, why in recorded.opaque.items()]
    line.direct_bytes_share = recorded.direct_bytes_share


def _bake(
    engine: Engine, rank: int, model: torch.nn.Module, values: Values, bake: Bake, line: Judgement
) -> Recorded | None:
    """Bakes; returns None where it is refused. The model must be left as it was in either case."""
    tensors = _as_asked(tensors_in(values))
    before = memory.picture(model)
    objects = _objects(model)
    recorded = None
    with engine.rank(rank):
        for _ in range(2):  # a first run pays for caches
            started = time.process_time()
            try:
                recorded = bake(model, tensors)
            except NotImplementedError as error:
                line.outcome = "refused"
                line.reasons = [str(error)]
                recorded = None
            line.seconds["bake"] = time.process_time() - started
    wrong = memory.difference(before, memory.picture(model))
    if wrong is None and _objects(model) != objects:
        wrong = "parameters, buffers or loaders are other objects"
    if wrong is not None:
        raise AssertionError(f"the bake left the model changed: {wrong}")
    return recorded


def _effects(
    engine: Engine, rank: int, model: torch.nn.Module, load: Callable[[], object]
) -> Effects:
    saved = memory.save(model)
    pictures = []
    seconds = []
    with engine.rank(rank):
        for pattern in memory.PATTERNS:
            memory.poison(model, pattern)
            started = time.process_time()
            load()
            seconds.append(time.process_time() - started)
            pictures.append(memory.picture(model))
        memory.restore(model, saved)
        load()
        engine.process(model)
    outputs = forward.run_layers(engine, model)
    return Effects(pictures, memory.picture(model, attributes=True), outputs, min(seconds))


def _compare(expected: Effects, actual: Effects, line: Judgement) -> None:
    found = []
    for pattern, right, given in zip(
        memory.PATTERNS, expected.over_patterns, actual.over_patterns, strict=True
    ):
        wrong = memory.difference(right, given)
        if wrong is not None:
            found.append(f"over 0x{pattern:02X}: {wrong}")
    wrong = memory.difference(expected.processed, actual.processed)
    if wrong is not None:
        found.append(f"after processing: {wrong}")
    wrong = memory.difference(expected.outputs.bytes_of, actual.outputs.bytes_of)
    if wrong is not None:
        found.append(f"what layers compute: {wrong}")
    if expected.outputs.not_run != actual.outputs.not_run:
        found.append("not the same layers run")
    line.identical = not found
    line.reasons += found
    line.layers_run = len({name.split(" of ")[1] for name in expected.outputs.bytes_of})
    line.layers_not_run = [f"{name}: {why}" for name, why in expected.outputs.not_run.items()]


def _objects(model: torch.nn.Module) -> list[tuple[str, int, int, int]]:
    """Tells whether a model still has the same parameters, buffers and loaders."""
    found = []
    for place in memory.places_of(model):
        loader = getattr(place.tensor, "weight_loader", None)
        loader = getattr(loader, "__func__", loader)  # bound methods are made on each access
        found.append((place.name, id(place.tensor), place.tensor.data_ptr(), id(loader)))
    return found


@contextmanager
def _told_apart() -> Iterator[None]:
    """Fills what models are built in with NaN, so that two builds are the same."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
