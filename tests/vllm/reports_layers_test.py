# SPDX-License-Identifier: Apache-2.0
"""Faults that others have met in engines' own layers: real vLLM layers, in the smallest sizes that
show them, with the right values, compared in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import crossmesh.torch
import engine as engines
import pytest
import table
import torch

POISON = 99.0
Builder = Callable[[], torch.nn.Module]


class Holder(torch.nn.Module):
    """A layer, and what a model does to load it: each tensor goes to its parameter's loader."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            parameter = getattr(self.layer, name)
            parameter.weight_loader(parameter, tensor)


@pytest.fixture(scope="module")
def folder() -> Iterator[Any]:
    """A folder with the config of some model, as layers ask for one."""
    from families import model_folder

    engines.start()
    logging.disable(logging.WARNING)
    with model_folder(table.SMALL / "llama.json") as made:
        yield made


def on_ranks(folder: Any, tp: int, build: Builder, values: dict[str, torch.Tensor]) -> list[Any]:
    """Returns the layer of each rank, after a bake of its loader was applied."""
    asked = [(name, tuple(value.shape), value.dtype) for name, value in values.items()]
    engine = engines.make_engine(folder, tp)
    layers = []
    for rank in range(tp):
        with engine.rank(rank):
            holder = Holder(build().requires_grad_(False))
            for parameter in holder.parameters():
                parameter.fill_(POISON)
            recorded = crossmesh.torch.bake(holder, asked)
            assert recorded.opaque == {}
            recorded.apply(values.__getitem__)
        layers.append(holder.layer)
    return layers


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def test_a_fused_gate_up_is_cut_in_each_half(folder: Any) -> None:
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    def build() -> torch.nn.Module:
        return MergedColumnParallelLinear(
            1, [2, 2], bias=False, params_dtype=torch.float32, prefix="gate_up"
        )

    layers = on_ranks(folder, 2, build, {"weight": numbered(4, 1)})
    assert [layer.weight.flatten().tolist() for layer in layers] == [[0, 2], [1, 3]]


def test_a_fused_qkv_is_cut_in_each_segment(folder: Any) -> None:
    from vllm.model_executor.layers.linear import QKVParallelLinear

    def build() -> torch.nn.Module:
        return QKVParallelLinear(1, 1, 4, 2, bias=False, params_dtype=torch.float32, prefix="qkv")

    layers = on_ranks(folder, 2, build, {"weight": numbered(8, 1)})
    assert [layer.weight.flatten().tolist() for layer in layers] == [[0, 1, 4, 6], [2, 3, 5, 7]]


def test_kv_heads_repeat_on_ranks_that_share_them(folder: Any) -> None:
    from vllm.model_executor.layers.linear import QKVParallelLinear

    def build() -> torch.nn.Module:
        return QKVParallelLinear(1, 1, 4, 2, bias=False, params_dtype=torch.float32, prefix="qkv")

    layers = on_ranks(folder, 4, build, {"weight": numbered(8, 1)})
    assert [layer.weight.flatten().tolist() for layer in layers] == [
        [0, 4, 6],
        [1, 4, 6],
        [2, 5, 7],
        [3, 5, 7],
    ]


def test_a_bias_of_a_row_layer_is_whole_on_every_rank(folder: Any) -> None:
    from vllm.model_executor.layers.linear import RowParallelLinear

    def build() -> torch.nn.Module:
        return RowParallelLinear(4, 4, bias=True, params_dtype=torch.float32, prefix="o")

    values = {"weight": numbered(4, 4), "bias": numbered(4)}
    layers = on_ranks(folder, 2, build, values)
    for rank, layer in enumerate(layers):
        assert layer.weight.tolist() == numbered(4, 4)[:, 2 * rank : 2 * rank + 2].tolist()
        assert layer.bias.tolist() == [0, 1, 2, 3]


def test_a_bias_of_a_column_layer_is_cut_with_its_weight(folder: Any) -> None:
    from vllm.model_executor.layers.linear import ColumnParallelLinear

    def build() -> torch.nn.Module:
        return ColumnParallelLinear(2, 4, bias=True, params_dtype=torch.float32, prefix="c")

    values = {"weight": numbered(4, 2), "bias": numbered(4)}
    layers = on_ranks(folder, 2, build, values)
    assert [layer.bias.tolist() for layer in layers] == [[0, 1], [2, 3]]
    assert [layer.weight.flatten().tolist() for layer in layers] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_layer_that_does_not_split_is_whole_on_every_rank_every_time(folder: Any) -> None:
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    def build() -> torch.nn.Module:
        return MergedColumnParallelLinear(
            1, [2, 2], bias=False, params_dtype=torch.float32, prefix="a", disable_tp=True
        )

    for _ in range(2):
        layers = on_ranks(folder, 2, build, {"weight": numbered(4, 1)})
        assert [layer.weight.flatten().tolist() for layer in layers] == [[0, 1, 2, 3]] * 2


def test_rows_past_a_vocabulary_are_filled_on_the_rank_that_has_them(folder: Any) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    def build() -> torch.nn.Module:
        return VocabParallelEmbedding(100, 1, params_dtype=torch.float32, prefix="embed")

    layers = on_ranks(folder, 2, build, {"weight": numbered(100, 1) + 1})
    assert layers[0].weight.flatten().tolist() == list(range(1, 65))
    assert layers[1].weight.flatten().tolist() == [*range(65, 101), *[0] * 28]


def test_sizes_that_a_rank_cannot_have_whole_are_refused(folder: Any) -> None:
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    # 2 x 3 rows divide by 2, and yet a rank would have one and a half of each.
    with pytest.raises(AssertionError), engines.make_engine(folder, 2).rank(0):
        MergedColumnParallelLinear(1, [3, 3], bias=False, prefix="w13")


def test_a_bake_calls_no_collective(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.make_engine(folder, 2)
    import checkpoint

    asked = [(t.name, t.shape, t.dtype) for t in checkpoint.tensors_of(folder)]
    with engine.rank(1):
        model = engine.build()

        def called(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("a collective was called")

        for name in ("all_reduce", "all_gather", "broadcast", "barrier", "all_gather_object"):
            monkeypatch.setattr(torch.distributed, name, called)
        recorded = crossmesh.torch.bake(model, asked)
    assert recorded.opaque == {}
