# SPDX-License-Identifier: Apache-2.0
"""The memory of a model: poisoned before a load, pictured after it, compared byte by byte.

Two patterns that differ in every byte make a load's whole effect visible: what it wrote is the same
after both, and what it left alone, or made of what lay there, is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PATTERNS = (0x5A, 0xA5)

Picture = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Place:
    """A tensor of a model: a parameter, a buffer, or an attribute of a module."""

    kind: str
    name: str
    tensor: torch.Tensor


def places_of(model: torch.nn.Module, *, attributes: bool = False) -> Iterator[Place]:
    """Yields parameters and buffers, twins included, and with `attributes` other tensors too."""
    import torch

    for name, tensor in model.named_parameters(remove_duplicate=False):
        yield Place("parameter", name, tensor)
    for name, tensor in model.named_buffers(remove_duplicate=False):
        yield Place("buffer", name, tensor)
    if not attributes:
        return
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield Place("attribute", f"{path}.{name}", value)


def named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields parameters and buffers by name, twins included."""
    for place in places_of(model):
        yield place.name, place.tensor


def picture(model: torch.nn.Module, *, attributes: bool = False) -> Picture:
    """Returns the bytes of every tensor's elements, in their order, by kind and name."""
    import torch

    taken = {}
    for place in places_of(model, attributes=attributes):
        elements = place.tensor.detach().contiguous().reshape(-1)
        taken[f"{place.kind} {place.name}"] = elements.view(torch.uint8).clone()
    return taken


def storages_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns the bytes of each storage once, of parameters and of floating-point buffers.

    Loaders read integers and truth values, as maps of experts: those are nobody's to poison.
    """
    import torch

    found = {}
    for place in places_of(model):
        storage = place.tensor.untyped_storage()
        if storage.nbytes() and (place.kind == "parameter" or place.tensor.is_floating_point()):
            raw = torch.tensor([], dtype=torch.uint8).set_(storage)
            found.setdefault(storage.data_ptr(), raw)
    return list(found.values())


def poison(model: torch.nn.Module, pattern: int) -> None:
    """Fills storages with bytes that tell places apart; patterns differ in every byte."""
    import torch

    for raw in storages_of(model):
        place = torch.arange(raw.numel(), dtype=torch.int32)
        raw.copy_((place % 251 ^ place // 251 % 241 ^ pattern) & 0xFF)


def save(model: torch.nn.Module) -> list[torch.Tensor]:
    """Returns what storages hold, for `restore`."""
    return [raw.clone() for raw in storages_of(model)]


def restore(model: torch.nn.Module, saved: list[torch.Tensor]) -> None:
    """Puts back what `save` saw."""
    for raw, value in zip(storages_of(model), saved, strict=True):
        raw.copy_(value)


def difference(expected: Picture, actual: Picture) -> str | None:
    """Says where two pictures differ first, and how much; None where they are equal."""
    import torch

    if list(expected) != list(actual):
        names = sorted(set(expected) ^ set(actual))
        return f"not the same tensors: {', '.join(names) or 'another order'}"
    found = []
    for name, right in expected.items():
        given = actual[name]
        if right.numel() != given.numel():
            found.append(f"{name} has {given.numel()} bytes and not {right.numel()}")
        elif not torch.equal(right, given):
            unequal = right != given
            first = int(unequal.nonzero()[0])
            found.append(
                f"{name} differs in {int(unequal.sum())} of {right.numel()} bytes, first in byte "
                f"{first}: 0x{int(given[first]):02x} and not 0x{int(right[first]):02x}"
            )
    if not found:
        return None
    return found[0] + (f"; and {len(found) - 1} more tensors" if len(found) > 1 else "")
