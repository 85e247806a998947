# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of a Hugging Face config holds: names, shapes, dtypes, and values for them.

Names come from transformers' own model of the config, built without memory, and are turned back
into those that files have: transformers 5 stacks the experts of a layer in memory, while
checkpoints, and vLLM's loaders, have a matrix for each expert and projection.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tensor:
    """A tensor that a checkpoint names."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def tensors_of(folder: Path) -> list[Tensor]:
    """Returns what a checkpoint of `folder`/config.json holds, tied twins left out.

    Source: transformers.core_model_loading.revert_weight_conversion, which is not public; tried
    with transformers 5.19.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    twins = set(model.all_tied_weights_keys)
    state = {name: value for name, value in model.state_dict().items() if name not in twins}
    in_float32 = {*model._keep_in_fp32_modules, *model._keep_in_fp32_modules_strict}
    tensors = []
    for name, value in revert_weight_conversion(model, state).items():
        dtype = torch.float32 if in_float32 & set(name.split(".")) else value.dtype
        tensors.append(Tensor(name, tuple(value.shape), dtype))
    return tensors


def random_values(tensors: list[Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    """Returns values for tensors; each depends on its name and the seed alone."""
    import torch

    values = {}
    for tensor in tensors:
        generator = torch.Generator().manual_seed(zlib.crc32(tensor.name.encode()) ^ seed)
        value = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        values[tensor.name] = value.mul_(0.3).to(tensor.dtype)
    return values


def read_values(folder: Path) -> dict[str, torch.Tensor] | None:
    """Returns the tensors of the safetensors files in a folder; None where there are none."""
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    values: dict[str, torch.Tensor] = {}
    for file in files:
        values.update(load_file(file))
    return values


def tensors_in(values: Mapping[str, torch.Tensor]) -> list[Tensor]:
    """Returns what values are values of, in their order."""
    return [Tensor(name, tuple(value.shape), value.dtype) for name, value in values.items()]
