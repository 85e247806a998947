# SPDX-License-Identifier: Apache-2.0
"""What layers compute that run alone: linears, embeddings, norms, experts.

Attention needs a cache and is left out; another layer that does not run is named.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from engine import Engine

TOKENS = 5


@dataclass
class Outputs:
    """What each layer gave for the same probe, as bytes by name; and layers that did not run."""

    bytes_of: dict[str, torch.Tensor] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


def run_layers(engine: Engine, model: torch.nn.Module) -> Outputs:
    """Runs every layer that has parameters, and every block of experts, on a fixed probe.

    Sums over ranks are of this rank alone. Requires: weights were processed; outside `rank`.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    outputs = Outputs()
    engine.enter(model)
    config = engine.vllm_config
    with (
        torch.inference_mode(),
        set_current_vllm_config(config),
        set_forward_context(None, config, num_tokens=TOKENS),
    ):
        for name, call in _calls(model, engine.dtype):
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 (whatever a layer raises, it did not run)
                outputs.not_run[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            for k, tensor in enumerate(_tensors_in(result)):
                flat = tensor.detach().contiguous().reshape(-1)
                outputs.bytes_of[f"output {k} of {name}"] = flat.view(torch.uint8).clone()
    return outputs


def _calls(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    def probe(name: str, *shape: int, of: torch.dtype = dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=generator).to(of)

    for name, module in model.named_modules():
        if isinstance(module, MoERunner):
            x = probe(name, TOKENS, module.moe_config.hidden_dim)
            logits = probe(name + ".logits", TOKENS, module.moe_config.num_logical_experts)
            yield name, lambda module=module, x=x, logits=logits: module(x, logits)
        elif isinstance(module, ParallelLMHead):
            x = probe(name, TOKENS, module.embedding_dim)
            yield name, lambda module=module, x=x: module.quant_method.apply(module, x, module.bias)
        elif isinstance(module, VocabParallelEmbedding):
            ids = torch.arange(module.org_vocab_size)
            yield name, lambda module=module, ids=ids: module(ids)
        elif isinstance(module, LinearBase):
            row = isinstance(module, RowParallelLinear) and module.input_is_parallel
            width = module.input_size_per_partition if row else module.input_size
            x = probe(name, TOKENS, width)
            yield name, lambda module=module, x=x: module(x)
        elif isinstance(module, RoutedExperts | AttentionLayerBase):
            continue  # the former is a part of MoERunner, the latter needs a cache
        elif any(True for _ in module.parameters(recurse=False)):
            weight = next(module.parameters(recurse=False))
            x = probe(name, TOKENS, weight.shape[-1] if weight.dim() else 1)
            yield name, lambda module=module, x=x: module(x)


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for part in result:
            yield from _tensors_in(part)
