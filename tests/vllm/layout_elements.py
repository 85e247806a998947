# SPDX-License-Identifier: Apache-2.0
"""What a layout says, element by element: which element of which tensor lies where.

It reads the JSON that layouts are exchanged as, and knows nothing of how pieces are cut, so that
two layouts can be compared that cut the same elements in other ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

HOLE = -1  # nothing says what lies there
NEXT = 1 << 40  # between the numbers of two tensors' first elements


@dataclass(frozen=True)
class Piece:
    """A box of a tensor's refined space, and where it lies in a parameter's storage."""

    tensor: str
    parameter: str
    factors: tuple[int, ...]
    origin: tuple[int, ...]
    extent: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


class LayoutText:
    """A layout in its JSON form, looked at by rank."""

    def __init__(self, text: str) -> None:
        self.json: dict[str, Any] = json.loads(text)
        self.roles = [_runs(runs) for runs in self.json["bindings"]]
        self.rank_count: int = self.json["rank_count"]

    def pieces(self, rank: int) -> Iterator[Piece]:
        """Yields what a rank holds, instance by instance; opaque regions are left out."""
        parameters, tensors = self.json["parameters"], self.json["tensors"]
        for tensor, parameter, kind, binding, base, opaque in self.json["instances"]:
            role = self.roles[binding][rank]
            if role < 0 or opaque >= 0:
                continue
            for origin, extent, offset, strides in self.json["classes"][kind]["roles"][role]:
                yield Piece(
                    tensors[tensor][0],
                    parameters[parameter][0],
                    tuple(self.json["classes"][kind]["factors"]),
                    tuple(origin),
                    tuple(extent),
                    base + offset,
                    tuple(strides),
                )

    def shape(self, rank: int, parameter: int) -> tuple[int, ...] | None:
        """Returns a parameter's shape on a rank; None where it is not there."""
        _, kind, binding, _ = self.json["parameters"][parameter]
        role = self.roles[binding][rank]
        if role < 0:
            return None
        return tuple(self.json["parameter_classes"][kind]["roles"][role][0])

    def elements(self, rank: int, number_of: dict[str, int]) -> dict[str, numpy.ndarray]:
        """Returns, for each parameter that pieces or fills reach, what each place of its storage holds.

        An element of a tensor is numbered by the tensor's number and its own, a fill by -2 less its
        bits. Names that share a storage share an entry: that of the owner. Raises: AssertionError:
        a place is said twice.
        """
        parameters = self.json["parameters"]
        owner_of = {name: owner for name, _, _, owner in parameters}
        storages: dict[int, numpy.ndarray] = {}
        for k, (_, kind, binding, owner) in enumerate(parameters):
            role = self.roles[binding][rank]
            if owner == k and role >= 0:
                shape, strides = self.json["parameter_classes"][kind]["roles"][role]
                reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
                storages[k] = numpy.full(0 if 0 in shape else reach, HOLE, numpy.int64)

        def put(storage: int, places: numpy.ndarray, what: numpy.ndarray | int) -> None:
            memory = storages[storage]
            assert (memory[places] == HOLE).all(), (
                f"{parameters[storage][0]}: a place is said twice"
            )
            memory[places] = what

        for piece in self.pieces(rank):
            places, elements = _expand(piece)
            put(owner_of[piece.parameter], places, number_of[piece.tensor] * NEXT + elements)
        for k in storages:
            _, kind, binding, _ = parameters[k]
            reserves = self.json["parameter_classes"][kind]["reserves"]
            for what, role, shape, offset, strides, bits, _ in reserves:
                if what == "fill" and role == self.roles[binding][rank]:
                    put(k, _places(tuple(shape), offset, tuple(strides)), -2 - bits)
        return {
            parameters[k][0]: memory
            for k, memory in storages.items()
            if memory.size == 0 or (memory != HOLE).any()
        }


def _runs(runs: list[list[int]]) -> list[int]:
    return [first + step * k for first, count, step in runs for k in range(count)]


def _places(extent: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> numpy.ndarray:
    places = numpy.full(extent, offset, numpy.int64)
    for d, (n, stride) in enumerate(zip(extent, strides, strict=True)):
        shape = [1] * len(extent)
        shape[d] = n
        places += numpy.arange(n, dtype=numpy.int64).reshape(shape) * stride
    return places.reshape(-1)


def _expand(piece: Piece) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Returns the places of a piece's elements, and their indices in the whole tensor."""
    steps = [1] * len(piece.factors)
    for d in reversed(range(len(steps) - 1)):
        steps[d] = steps[d + 1] * piece.factors[d + 1]
    first = sum(o * s for o, s in zip(piece.origin, steps, strict=True))
    return (
        _places(piece.extent, piece.offset, piece.strides),
        _places(piece.extent, first, tuple(steps)),
    )
