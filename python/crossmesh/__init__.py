# SPDX-License-Identifier: Apache-2.0
"""Moves updated model weights from trainer ranks into the live parameters of engine ranks."""

from __future__ import annotations

from crossmesh._core import (
    DType,
    bit_size,
    dtype_from_name,
    is_castable,
    name_of,
)
from crossmesh._error import Error

__all__ = [
    "DType",
    "Error",
    "bit_size",
    "dtype_from_name",
    "is_castable",
    "name_of",
]
