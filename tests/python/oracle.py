# SPDX-License-Identifier: Apache-2.0
"""What every rank holds of the small llama, by slicing with NumPy; it asks crossmesh for nothing.

Trainers split dimension 0 as torch.chunk does. Engines fuse q, k and v, and gate and up, repeat KV
heads where there are too few, and pad the vocabulary to a multiple of 64.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint16]
Tensors = dict[str, Array]


def trainer_shards(tensors: Tensors, rank_count: int, rank: int) -> Tensors:
    """Returns the rows of a rank, of the tensors of which it has any."""
    shards = {}
    for name, tensor in tensors.items():
        rows = -(-tensor.shape[0] // rank_count)
        shards[name] = tensor[rank * rows : (rank + 1) * rows]
    return shards


def engine_parameters(tensors: Tensors, config_text: str, tp: int, rank: int) -> Tensors:
    """Returns what the engine serves on a tensor-parallel rank, padding as zeros."""
    config: dict[str, Any] = json.loads(config_text)
    kv_heads, head_size = config["num_key_value_heads"], config["head_dim"]

    def rows(tensor: Array, parts: int, part: int) -> Array:
        size = tensor.shape[0] // parts
        return tensor[part * size : (part + 1) * size]

    def kv(tensor: Array) -> Array:
        first = rank * kv_heads // tp
        count = max(kv_heads // tp, 1)
        return tensor[first * head_size : (first + count) * head_size]

    def vocabulary(tensor: Array) -> Array:
        padded = np.zeros((-(-tensor.shape[0] // 64) * 64, *tensor.shape[1:]), np.uint16)
        padded[: tensor.shape[0]] = tensor
        return rows(padded, tp, rank)

    served: Tensors = {}
    for name, tensor in tensors.items():
        stem, _, leaf = name.rpartition(".")
        if stem.endswith("q_proj"):
            k, v = (tensors[f"{stem[:-6]}{x}_proj.{leaf}"] for x in "kv")
            parts = [rows(tensor, tp, rank), kv(k), kv(v)]
            served[f"{stem[:-6]}qkv_proj.{leaf}"] = np.concatenate(parts)
        elif stem.endswith("gate_proj"):
            parts = [rows(tensor, tp, rank), rows(tensors[f"{stem[:-9]}up_proj.{leaf}"], tp, rank)]
            served[f"{stem[:-9]}gate_up_proj.{leaf}"] = np.concatenate(parts)
        elif stem.endswith(("k_proj", "v_proj", "up_proj")):
            continue
        elif stem.endswith(("o_proj", "down_proj")) and leaf == "weight":
            columns = tensor.shape[1] // tp
            served[name] = tensor[:, rank * columns : (rank + 1) * columns]
        elif stem.endswith(("embed_tokens", "lm_head")):
            served[name] = vocabulary(tensor)
        else:
            served[name] = tensor
    return {name: np.ascontiguousarray(tensor) for name, tensor in served.items()}
