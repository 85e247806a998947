# SPDX-License-Identifier: Apache-2.0
"""Moves updated model weights from trainer ranks into the live parameters of engine ranks."""

from __future__ import annotations

from crossmesh._core import (
    Box,
    Catalog,
    Checkpoint,
    CheckpointFile,
    DType,
    Space,
    StridedRegion,
    TensorInfo,
    View,
    bit_size,
    dtype_from_name,
    find_config,
    is_castable,
    name_of,
    read,
)
from crossmesh._error import Error

__all__ = [
    "Box",
    "Catalog",
    "Checkpoint",
    "CheckpointFile",
    "DType",
    "Error",
    "Space",
    "StridedRegion",
    "TensorInfo",
    "View",
    "bit_size",
    "dtype_from_name",
    "find_config",
    "is_castable",
    "name_of",
    "read",
]
