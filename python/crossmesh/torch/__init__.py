# SPDX-License-Identifier: Apache-2.0
"""What a model's own weight loader does, recorded once.

`bake` runs a module's `load_weights` on placeholders that have a name, a shape and a dtype but no
values. Each copy that the loader makes becomes pieces of a target layout; what cannot be said as
pieces stays with the loader (opaque) and is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Bake", "bake", "merge"]


class Bake:
    """What one rank's loader does with each tensor.

    `scatters`: recorded copies, each (tensor, chain as JSON, parameter, offset, shape, strides,
    source dtype, stamps). `fills`: (parameter, offset, shape, strides, value). `live`: names that
    were copied. `baked`: names whose copies are all pieces. `never_copied`: names that no parameter
    takes here. `opaque`: tensor -> reason. `refused`: (tensor, reason) of what could not even be
    given back to the loader. `direct_bytes_share`: bytes of live tensors that are baked, of the
    bytes of all live tensors.
    """

    scatters: list[Any]
    fills: list[Any]
    live: list[str]
    baked: list[str]
    never_copied: list[str]
    opaque: dict[str, str]
    refused: list[tuple[str, str]]
    direct_bytes_share: float

    def layout(self) -> Any:
        """This rank's crossmesh Layout, of one rank."""
        raise NotImplementedError

    def explain(self) -> str:
        """A stable text: totals, opaque tensors and kept regions with reasons, then copies."""
        raise NotImplementedError

    def apply(self, get_tensor: Callable[[str], torch.Tensor]) -> None:
        """Put checkpoint tensors in place: pieces by copy kernels, fills, the rest by the loader.

        `get_tensor(name)` returns a CPU tensor of the announced shape and dtype.
        """
        raise NotImplementedError


def bake(
    module: torch.nn.Module,
    tensors: Iterable[tuple[str, Sequence[int], Any]],
    load: Callable[[Iterable[tuple[str, torch.Tensor]]], object] | None = None,
    *,
    rank: int = 0,
) -> Bake:
    """Record what `load` (by default `module.load_weights`) does with `tensors`.

    `tensors` is a Catalog, or (name, shape, dtype) in the order in which the loader shall see them;
    a dtype is torch's or a name. The module is left exactly as it was, also after an exception.
    Raises: crossmesh.Error (also a NotImplementedError) where the loader needs values.
    """
    raise NotImplementedError


def merge(bakes: Sequence[Bake]) -> Any:
    """The layout of all ranks, from the bake of each in order of rank; equal geometry is told once."""
    raise NotImplementedError
