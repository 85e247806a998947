# SPDX-License-Identifier: Apache-2.0
"""Faults that others have met where loaders are recorded or replayed, in the smallest data that
shows them, with the right values, compared in order. Test names tell the fault's family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import crossmesh.torch
import pytest
import torch

Loader = Callable[["Engine", str, torch.Tensor], None]
POISON = 99.0


class Engine(torch.nn.Module):
    """Parameters, and a loader that is called for each checkpoint tensor."""

    def __init__(self, load: Loader, **parameters: torch.Tensor) -> None:
        super().__init__()
        self.load = load
        for name, value in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.load(self, name, tensor)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, POISON, dtype=dtype)


def numbered(*shape: int) -> torch.Tensor:
    count = 1
    for extent in shape:
        count *= extent
    return torch.arange(count, dtype=torch.float32).reshape(shape)


def bake(engine: torch.nn.Module, values: dict[str, torch.Tensor]) -> Any:
    asked = [(name, tuple(value.shape), value.dtype) for name, value in values.items()]
    return crossmesh.torch.bake(engine, asked)


def moved(engine: torch.nn.Module, values: dict[str, torch.Tensor]) -> Any:
    """Bakes and applies; nothing may take the fallback."""
    recorded = bake(engine, values)
    assert recorded.opaque == {}
    recorded.apply(values.__getitem__)
    return recorded


# -- Fused, interleaved, segmented ----------------------------------------------------------------


def test_query_groups_in_one_tensor_come_apart_by_group() -> None:
    # Rows [q0 q1 k0 v0 q2 q3 k1 v1] of two groups.
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        groups = tensor.view(2, 4, 1)
        engine.q.view(2, 2, 1).copy_(groups[:, :2])
        engine.k.view(2, 1, 1).copy_(groups[:, 2:3])
        engine.v.view(2, 1, 1).copy_(groups[:, 3:])

    engine = Engine(load, q=empty(4, 1), k=empty(2, 1), v=empty(2, 1))
    moved(engine, {"qkv": numbered(8, 1)})
    assert engine.q.flatten().tolist() == [0, 1, 4, 5]
    assert engine.k.flatten().tolist() == [2, 6]
    assert engine.v.flatten().tolist() == [3, 7]


def test_gates_of_groups_are_four_outputs() -> None:
    # Two groups of rows q q g g k v.
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        if name != "qgkv":
            raise ValueError(f"no parameter takes {name}")
        parts = tensor.view(2, 6).split([2, 2, 1, 1], dim=1)
        for parameter, part in zip((engine.q, engine.g, engine.k, engine.v), parts, strict=True):
            parameter.view(2, -1).copy_(part)

    engine = Engine(load, q=empty(4), g=empty(4), k=empty(2), v=empty(2))
    moved(engine, {"qgkv": numbered(12)})
    assert engine.q.tolist() == [0, 1, 6, 7]
    assert engine.g.tolist() == [2, 3, 8, 9]
    assert engine.k.tolist() == [4, 10]
    assert engine.v.tolist() == [5, 11]
    with pytest.raises(Exception, match="no parameter takes other"):
        bake(engine, {"other": numbered(12)})


def test_halves_of_a_fused_matrix_are_whole_segments() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        gate, up = tensor.chunk(2)
        engine.gate.copy_(gate)
        engine.up.copy_(up)

    engine = Engine(load, gate=empty(3, 1), up=empty(3, 1))
    moved(engine, {"gate_up": numbered(6, 1)})
    assert engine.gate.flatten().tolist() == [0, 1, 2]
    assert engine.up.flatten().tolist() == [3, 4, 5]


def test_every_rank_splits_each_half_and_not_the_whole() -> None:
    # gate_up [g0 g1 u0 u1], equal in name and shape to what a plain split would give.
    def load_on(rank: int) -> Loader:
        def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
            for half, part in enumerate(tensor.chunk(2)):
                engine.gate_up.narrow(0, half, 1).copy_(part.narrow(0, rank, 1))

        return load

    engines = [Engine(load_on(rank), gate_up=empty(2, 1)) for rank in range(2)]
    for engine in engines:
        moved(engine, {"gate_up": numbered(4, 1)})
    assert [engine.gate_up.flatten().tolist() for engine in engines] == [[0, 2], [1, 3]]


def test_segments_of_one_tensor_keep_their_order_on_every_rank() -> None:
    # [Q(4) K(2) V(2)] over two ranks.
    def load_on(rank: int) -> Loader:
        def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
            place = 0
            for segment in tensor.split([4, 2, 2]):
                part = segment.chunk(2)[rank]
                engine.qkv[place : place + part.shape[0]].copy_(part)
                place += part.shape[0]

        return load

    engines = [Engine(load_on(rank), qkv=empty(4)) for rank in range(2)]
    for engine in engines:
        moved(engine, {"qkv": numbered(8)})
    assert [engine.qkv.tolist() for engine in engines] == [[0, 1, 4, 6], [2, 3, 5, 7]]


def test_interleaved_gates_and_ups_come_apart_by_steps() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.gate.copy_(tensor[::2])
        engine.up.copy_(tensor[1::2])

    engine = Engine(load, gate=empty(3, 2), up=empty(3, 2))
    moved(engine, {"gate_up": numbered(6, 2)})
    assert engine.gate.tolist() == [[0, 1], [4, 5], [8, 9]]
    assert engine.up.tolist() == [[2, 3], [6, 7], [10, 11]]


# -- Tied weights, aliases, names -----------------------------------------------------------------


def plain(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    parameters = dict(engine.named_parameters(remove_duplicate=False))
    if name in parameters:
        parameters[name].copy_(tensor)


def test_a_tied_head_reads_what_the_embedding_was_given() -> None:
    engine = Engine(plain, embed=empty(3), head=empty(3))
    engine.head = engine.embed
    recorded = moved(engine, {"embed": numbered(3)})
    assert engine.head.tolist() == [0, 1, 2]
    assert engine.head is engine.embed
    assert recorded.never_copied == []


def test_an_untied_head_keeps_its_own_bytes() -> None:
    engine = Engine(plain, embed=empty(1), head=empty(1))
    moved(engine, {"embed": torch.tensor([1.0]), "head": torch.tensor([2.0])})
    assert (engine.embed.tolist(), engine.head.tolist()) == ([1], [2])


def test_a_head_that_nothing_fills_is_said_to_be_kept() -> None:
    engine = Engine(plain, embed=empty(2), head=empty(2))
    recorded = moved(engine, {"embed": numbered(2)})
    assert engine.head.tolist() == [POISON, POISON]
    text = recorded.explain()
    assert "head" in text and "kept" in text


def test_a_twin_that_no_parameter_takes_is_listed_and_no_error() -> None:
    engine = Engine(plain, embed=empty(2))
    recorded = moved(engine, {"embed": numbered(2), "head": numbered(2)})
    assert recorded.never_copied == ["head"]
    assert recorded.live == ["embed"]


def test_a_name_that_comes_twice_is_refused() -> None:
    engine = Engine(plain, weight0=empty(2))
    with pytest.raises(Exception, match="weight0"):
        crossmesh.torch.bake(engine, [("weight0", (2,), torch.float32)] * 2)


def test_a_buffer_that_shares_a_childs_storage_still_shares_it() -> None:
    child = torch.nn.Module()
    child.weight = torch.nn.Parameter(empty(3), requires_grad=False)

    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.child.weight.copy_(tensor)

    engine = Engine(load)
    engine.child = child
    engine.register_buffer("conv", child.weight.data.view(3))
    moved(engine, {"conv1d.weight": torch.tensor([7.0, 8.0, 9.0])})
    assert engine.conv.tolist() == child.weight.tolist() == [7, 8, 9]
    assert engine.conv.data_ptr() == child.weight.data_ptr()


# -- Scalars --------------------------------------------------------------------------------------


def test_a_scalar_and_a_vector_of_one_take_each_other() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        getattr(engine, name).copy_(tensor if name == "vector" else tensor.reshape(()))

    engine = Engine(load, vector=empty(1), scalar=empty())
    moved(engine, {"vector": torch.tensor(5.0), "scalar": torch.tensor([6.0])})
    assert (engine.vector.tolist(), engine.scalar.item()) == ([5], 6)


def test_four_scalars_of_a_layer_are_four_loads() -> None:
    names = ["k_scale", "v_scale", "q_scale", "prob_scale"]
    engine = Engine(plain, **{name: empty() for name in names})
    recorded = moved(engine, {name: torch.tensor(float(k)) for k, name in enumerate(names)})
    assert recorded.baked == names
    assert [getattr(engine, name).item() for name in names] == [0, 1, 2, 3]


def test_a_bias_is_cut_as_its_weight_is_and_a_scalar_is_not() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        cut = tensor.dim() > 0
        getattr(engine, name).copy_(tensor.narrow(0, 2, 2) if cut else tensor)

    engine = Engine(load, weight=empty(2, 2), bias=empty(2), scale=empty())
    moved(engine, {"weight": numbered(4, 2), "bias": numbered(4), "scale": torch.tensor(3.0)})
    assert engine.weight.tolist() == [[4, 5], [6, 7]]
    assert engine.bias.tolist() == [2, 3]
    assert engine.scale.item() == 3


# -- Strides --------------------------------------------------------------------------------------


def test_a_strided_parameter_holds_the_same_elements_in_the_same_order() -> None:
    engine = Engine(plain, scale=empty(3, 2).t())
    assert engine.scale.stride() == (1, 2)
    moved(engine, {"scale": numbered(2, 3)})
    assert engine.scale.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert engine.scale.t().contiguous().flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_columns_of_a_matrix_arrive_as_columns() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.columns.copy_(tensor[:, 1:3])

    engine = Engine(load, columns=empty(4, 2))
    moved(engine, {"stored": numbered(4, 4)})
    assert engine.columns.tolist() == [[1, 2], [5, 6], [9, 10], [13, 14]]


def test_a_transpose_arrives_transposed() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.weight.copy_(tensor.t())

    engine = Engine(load, weight=empty(3, 2))
    moved(engine, {"weight": numbered(2, 3)})
    assert engine.weight.tolist() == [[0, 3], [1, 4], [2, 5]]


# -- Buffers --------------------------------------------------------------------------------------


def test_a_buffer_that_is_not_in_the_stream_keeps_its_value() -> None:
    engine = Engine(plain, weight=empty(2))
    engine.register_buffer("root", torch.tensor(0.0188), persistent=False)
    moved(engine, {"weight": numbered(2)})
    assert engine.root.item() == torch.tensor(0.0188).item()


def test_a_buffer_that_the_loader_fills_follows() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        getattr(engine, name).copy_(tensor)

    engine = Engine(load)
    engine.register_buffer("running_mean", empty(4))
    engine.register_buffer("correction", empty(2))
    values = {"running_mean": numbered(4), "correction": torch.tensor([0.1, 0.2])}
    recorded = moved(engine, values)
    assert engine.running_mean.tolist() == [0, 1, 2, 3]
    values["correction"] += 0.1  # as the trainer changes it, step by step
    recorded.apply(values.__getitem__)
    assert engine.correction.tolist() == values["correction"].tolist()


# -- Biases ---------------------------------------------------------------------------------------


def test_a_module_that_has_only_a_bias_gets_it() -> None:
    engine = Engine(plain, bias=empty(2))
    moved(engine, {"bias": numbered(2)})
    assert engine.bias.tolist() == [0, 1]


# -- What recorders miss --------------------------------------------------------------------------


def test_a_bare_copy_into_a_prefix_is_recorded() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.sinks.data[: tensor.shape[0]].copy_(tensor)

    engine = Engine(load, sinks=empty(8))
    moved(engine, {"sinks": numbered(4)})
    assert engine.sinks.tolist() == [0, 1, 2, 3] + [POISON] * 4


def test_a_broadcasting_copy_is_never_direct() -> None:
    engine = Engine(plain, weight=empty(4))
    recorded = bake(engine, {"weight": torch.tensor([3.0])})
    assert list(recorded.opaque) == ["weight"]
    recorded.apply({"weight": torch.tensor([3.0])}.__getitem__)
    assert engine.weight.tolist() == [3, 3, 3, 3]


def test_a_view_of_another_dtype_has_as_many_bytes() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        engine.packed.copy_(tensor.view(torch.int8))

    engine = Engine(load, packed=empty(16, dtype=torch.int8))
    value = torch.tensor([1, 256, -1, 7], dtype=torch.int32)
    moved(engine, {"packed": value})
    assert engine.packed.tolist() == value.view(torch.int8).tolist()


def test_what_takes_the_fallback_does_not_undo_what_is_direct() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        getattr(engine, name).copy_(tensor if name == "direct" else tensor * 2)

    engine = Engine(load, direct=empty(2), scaled=empty(2))
    values = {"direct": numbered(2), "scaled": numbered(2)}
    recorded = bake(engine, values)
    assert list(recorded.opaque) == ["scaled"]
    recorded.apply(values.__getitem__)
    assert (engine.direct.tolist(), engine.scaled.tolist()) == ([0, 1], [0, 2])


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_the_result_does_not_depend_on_the_order_of_tensors(order: list[str]) -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        place = "ab".index(name)
        engine.both[2 * place : 2 * place + 2].copy_(tensor)

    engine = Engine(load, both=empty(4))
    values = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([2.0, 3.0])}
    moved(engine, {name: values[name] for name in order})
    assert engine.both.tolist() == [0, 1, 2, 3]


def test_chunks_of_chunks_keep_the_order_of_rows() -> None:
    def load(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        for k, chunk in enumerate(tensor.chunk(4)):
            for half, row in enumerate(chunk.chunk(2)):
                engine.fc1[2 * k + half].copy_(row[0])

    engine = Engine(load, fc1=empty(8, 1))
    moved(engine, {"fc1": numbered(8, 1)})
    assert engine.fc1.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_patch_of_a_tied_embedding_is_one_of_the_head() -> None:
    engine = Engine(plain, embed=empty(2), head=empty(2))
    engine.head = engine.embed
    values = {"embed": torch.tensor([1.0, 1.0])}
    recorded = moved(engine, values)
    values["embed"][0] = 5.0
    recorded.apply(values.__getitem__)
    assert engine.head.tolist() == [5, 1]


def test_what_moves_is_listed_and_no_other_buffer_is() -> None:
    engine = Engine(plain, weight=empty(2))
    engine.register_buffer("cache", torch.zeros(3))
    recorded = moved(engine, {"weight": numbered(2)})
    assert [parameter.name for parameter in recorded.layout().parameters] == ["weight"]


def test_a_tensor_of_another_size_than_announced_is_refused() -> None:
    engine = Engine(plain, x=empty(4))
    recorded = bake(engine, {"x": numbered(4)})
    with pytest.raises(crossmesh.Error) as raised:
        recorded.apply({"x": numbered(6)}.__getitem__)
    assert str(raised.value) == (
        "apply: a tensor is not as it was announced\n"
        "  tensor  x\n"
        "  announced  torch.float32 [4]\n"
        "  given  torch.float32 [6] on cpu"
    )
    assert engine.x.tolist() == [POISON] * 4
