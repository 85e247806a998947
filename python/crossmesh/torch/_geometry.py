# SPDX-License-Identifier: Apache-2.0
"""Geometry as placeholders show it, and how torch's dtypes are called in crossmesh."""

from __future__ import annotations

import math
from typing import Any

import torch

from crossmesh import _core

__all__ = ["Node", "meta_of", "torch_dtype", "wire_dtype"]

_DTYPE_OF_TORCH: dict[torch.dtype, _core.DType] = {}
_TORCH_OF_DTYPE: dict[_core.DType, torch.dtype] = {}
for _value in vars(torch).values():
    if isinstance(_value, torch.dtype):
        _dtype = _core.dtype_from_name(str(_value))
        # float4_e2m1fn_x2 holds two elements; crossmesh counts each.
        if _dtype is not None and _core.bit_size(_dtype) == 8 * _value.itemsize:
            _DTYPE_OF_TORCH[_value] = _dtype
            _TORCH_OF_DTYPE[_dtype] = _value


def wire_dtype(dtype: torch.dtype) -> _core.DType | None:
    """Returns crossmesh's dtype, or None where there is no wire form."""
    return _DTYPE_OF_TORCH.get(dtype)


def torch_dtype(dtype: _core.DType) -> torch.dtype | None:
    """Returns torch's dtype, or None where torch has none."""
    return _TORCH_OF_DTYPE.get(dtype)


class Node:
    """A chain, as all tensors of one geometry share it."""

    __slots__ = ("chain", "dtype", "numel", "offset", "shape", "steps", "strides", "wire")

    def __init__(self, book: _core.ChainBook, chain: int) -> None:
        self.chain = chain
        self.wire, sizes, self.strides, self.offset = book.geometry(chain)
        self.shape = torch.Size(sizes)
        self.dtype = _TORCH_OF_DTYPE[self.wire]
        self.numel = math.prod(sizes)
        self.steps: dict[Any, Any] = {}


def meta_of(node: Node) -> torch.Tensor:
    """A meta tensor of the same geometry, with a storage of its own."""
    last = node.offset + sum((n - 1) * s for n, s in zip(node.shape, node.strides, strict=True))
    size = last + 1 if node.numel else node.offset
    base = torch.empty((size,), dtype=node.dtype, device="meta")
    return base.as_strided(node.shape, node.strides, node.offset)
