# SPDX-License-Identifier: Apache-2.0
"""What a placeholder is, and what a copy from it records: rows F1 to F17 of the checklist."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from crossmesh.torch import Bake, RecordingTensor, Refused, bake, placeholder  # noqa: E402

import crossmesh  # noqa: E402

Load = Callable[[Iterable[tuple[str, Any]]], object]


def key(tensor: RecordingTensor) -> Any:
    return json.loads(tensor._recording.book.wire_key("w", tensor._node.chain))


def chain(tensor: RecordingTensor) -> Any:
    return key(tensor)[1]


def whole(*shape: int, dtype: Any = torch.float32) -> RecordingTensor:
    return placeholder("w", shape, dtype)


def test_f1_a_bare_placeholder_has_shape_dtype_and_an_empty_chain() -> None:
    bare = whole(4, 6, dtype=torch.bfloat16)
    assert (bare.shape, bare.dtype, key(bare)) == ((4, 6), torch.bfloat16, ["w", []])
    assert isinstance(bare, torch.Tensor) and not bare.is_meta
    assert (bare.stride(), bare.storage_offset(), bare.data_ptr()) == ((6, 1), 0, 0)
    assert (len(bare), bare.nbytes, bare.numel(), bare.dim()) == (4, 48, 24, 2)
    assert bare.is_contiguous() and not bare.t().is_contiguous()


F2 = [
    ("narrow", lambda t: t.narrow(0, 1, 2), (2, 6), [["narrow", [0, 1, 2], {}]]),
    ("view", lambda t: t.view(6, 4), (6, 4), [["view", [6, 4], {}]]),
    ("reshape", lambda t: t.reshape(24), (24,), [["reshape", [24], {}]]),
    ("index", lambda t: t[1], (6,), [["__getitem__", [1], {}]]),
    ("unsqueeze", lambda t: t.unsqueeze(0), (1, 4, 6), [["unsqueeze", [0], {}]]),
    ("transpose", lambda t: t.transpose(0, 1), (6, 4), [["transpose", [0, 1], {}]]),
    ("t", lambda t: t.t(), (6, 4), [["t", [], {}]]),
    ("permute", lambda t: t.permute(1, 0), (6, 4), [["permute", [1, 0], {}]]),
    ("flatten", lambda t: t.flatten(), (24,), [["flatten", [], {}]]),
    ("contiguous", lambda t: t.contiguous(), (4, 6), [["contiguous", [], {}]]),
]


@pytest.mark.parametrize(("call", "shape", "calls"), [f[1:] for f in F2], ids=[f[0] for f in F2])
def test_f2_one_call_is_recorded(call: Any, shape: Any, calls: Any) -> None:
    result = call(whole(4, 6))
    assert (tuple(result.shape), chain(result)) == (shape, calls)


def test_f3_squeeze_drops_a_dimension_of_one() -> None:
    result = whole(1, 4).squeeze(0)
    assert (tuple(result.shape), chain(result)) == ((4,), [["squeeze", [0], {}]])


def test_f4_calls_follow_each_other() -> None:
    result = whole(4, 6).t().narrow(0, 0, 3).flatten()
    assert tuple(result.shape) == (12,)
    assert [call[0] for call in chain(result)] == ["t", "narrow", "flatten"]


def test_f5_keywords_are_sorted() -> None:
    result = whole(4, 6).narrow(start=1, length=2, dim=0)
    assert chain(result) == [["narrow", [], {"dim": 0, "length": 2, "start": 1}]]
    same = whole(4, 6).narrow(0, 1, 2)
    one, other = (t._recording.book.identity(t._node.chain) for t in (result, same))
    assert one == other


@pytest.mark.parametrize(
    ("call", "name", "args"),
    [(lambda t: t.chunk(2), "chunk", [2]), (lambda t: t.unbind(), "unbind", [])],
    ids=["chunk", "unbind"],
)
def test_f6_parts_end_in_an_index(call: Any, name: str, args: Any) -> None:
    parts = call(whole(4, 6))
    assert isinstance(parts, tuple)
    for i, part in enumerate(parts):
        assert chain(part) == [[name, args, {}], ["__getitem__", [i], {}]]


def test_f7_equal_chains_are_one() -> None:
    tensor = whole(4, 6)
    one, same, other = (
        tensor.narrow(0, 1, 2).t(),
        tensor.narrow(0, 1, 2).t(),
        tensor.narrow(0, 0, 2),
    )
    assert one._node is same._node and one._node is not other._node


F8 = {
    "to": lambda t: t.to(torch.bfloat16),
    "double": lambda t: t.double(),
    "add": lambda t: t + 1,
    "mul": lambda t: t * 2,
    "sum": lambda t: t.sum(),
    "item": lambda t: t.item(),
    "bool": lambda t: bool(t),
    "clone": lambda t: t.clone(),
    "expand": lambda t: t.expand(2, 4, 6),
    "by mask": lambda t: t[t > 0],
    "by tensor": lambda t: t[torch.tensor([0])],
    "by list": lambda t: t[[0, 1]],
    "write": lambda t: t.copy_(torch.zeros(4, 6)),
    "zero_": lambda t: t.zero_(),
    "setitem": lambda t: t.__setitem__(0, 1.0),
    "cat": lambda t: torch.cat([t, t]),
    "stack": lambda t: torch.stack([torch.zeros(4, 6), t]),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "storage": lambda t: t.untyped_storage(),
    "as_strided": lambda t: t.as_strided((2,), (1,)),
    "operator": lambda t: torch.ops.aten.add.Tensor(t, t),
    "out": lambda t: torch.add(torch.ones(4, 6), t, out=torch.empty(4, 6)),
}


@pytest.mark.parametrize("call", F8.values(), ids=F8)
def test_f8_f9_f10_what_no_chain_records_is_refused_by_name(call: Any) -> None:
    tensor = whole(4, 6).narrow(0, 0, 4)
    with pytest.raises(NotImplementedError) as refused:
        call(tensor)
    assert isinstance(refused.value, crossmesh.Error) and isinstance(refused.value, Refused)
    assert refused.value.code == "unsupported"
    assert "'w'" in str(refused.value) and '"narrow",[0,0,4]' in str(refused.value)
    assert "supported  narrow, view, reshape, __getitem__" in str(refused.value)


def test_a_refusal_says_call_tensor_chain_and_what_is_recorded() -> None:
    with pytest.raises(Refused) as refused:
        torch.cat([whole(2, 2).t()])
    assert str(refused.value) == (
        "cat: no chain records this call\n"
        "  tensor  'w'\n"
        '  chain  [["t",[],{}]]\n'
        "  supported  narrow, view, reshape, __getitem__, unsqueeze, squeeze, transpose, t, "
        "permute, flatten, contiguous, chunk, unbind, split, select"
    )


SAME = {
    "to": lambda t: t.to(torch.float32),
    "to device": lambda t: t.to("cpu"),
    "to meta": lambda t: t.to(device="meta"),
    "float": lambda t: t.float(),
    "cpu": lambda t: t.cpu(),
    "type": lambda t: t.type(torch.float32),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
}


@pytest.mark.parametrize("call", SAME.values(), ids=SAME)
def test_what_changes_nothing_records_nothing(call: Any) -> None:
    tensor = whole(4, 6)
    assert chain(call(tensor)) == []


SPELLED = {
    "narrow": lambda t: (torch.narrow(t, 0, 1, 2), t.narrow(0, 1, 2)),
    "select": lambda t: (torch.select(t, 0, 1), t[1]),
    "transpose": lambda t: (torch.transpose(t, 0, 1), t.t()),
    "permute": lambda t: (torch.permute(t, (1, 0)), t.t()),
    "t": lambda t: (torch.t(t), t.t()),
    "T": lambda t: (t.T, t.t()),
    "mT": lambda t: (t.mT, t.t()),
    "swapaxes": lambda t: (t.swapaxes(0, 1), t.t()),
    "reshape": lambda t: (torch.reshape(t, (24,)), t.view(24)),
    "flatten": lambda t: (torch.flatten(t), t.view(24)),
    "ravel": lambda t: (t.ravel(), t.view(24)),
    "unsqueeze": lambda t: (torch.unsqueeze(t, 0), t[None]),
    "squeeze": lambda t: (torch.squeeze(t[:1]), t[0]),
    "view_as": lambda t: (t.view_as(torch.empty(6, 4)), t.view(6, 4)),
    "input": lambda t: (torch.narrow(input=t, dim=0, start=1, length=2), t[1:3]),
    "chunk": lambda t: (torch.chunk(t, 2)[1], t[2:]),
    "split": lambda t: (torch.split(t, 2)[1], t[2:]),
    "split by sizes": lambda t: (t.split([1, 3])[1], t[1:]),
    "unbind": lambda t: (torch.unbind(t)[1], t[1]),
    "iteration": lambda t: (list(t)[1], t[1]),
}


@pytest.mark.parametrize("spelled", SPELLED.values(), ids=SPELLED)
def test_function_spellings_mean_the_same(spelled: Any) -> None:
    ours, same = spelled(whole(4, 6))
    book = ours._recording.book
    assert book.identity(ours._node.chain) == book.identity(same._node.chain)
    assert ours.shape == same.shape


# -- Copies ------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self, dtype: Any = torch.float32, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            values = torch.full(shape, 7, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))


def baked(
    module: Any, tensors: dict[str, tuple[int, ...]], load: Any, dtype: Any = torch.float32
) -> Bake:
    """Bakes a loader that is told as a function of the tensors by name."""

    def load_weights(weights: Iterable[tuple[str, Any]]) -> None:
        load(module, dict(weights))

    return bake(module, [(name, shape, dtype) for name, shape in tensors.items()], load_weights)


def test_f11_a_copy_tells_where_it_lands() -> None:
    bake = baked(Layer(p=(8, 6)), {"w": (4, 6)}, lambda m, w: m.p.narrow(0, 4, 4).copy_(w["w"]))
    (copy,) = bake.scatters
    assert copy == ("w", [], "p", 24, (4, 6), (6, 1), torch.float32)


def test_f12_copied_names_are_live() -> None:
    bake = baked(Layer(p=(4,)), {"w": (4,), "v": (4,)}, lambda m, w: m.p.copy_(w["w"]))
    assert (bake.live, bake.baked, bake.never_copied) == (["w"], ["w"], ["v"])


def test_f13_a_copy_that_no_parameter_takes_is_live_and_opaque() -> None:
    bake = baked(Layer(p=(4,)), {"w": (4,)}, lambda m, w: torch.empty(4).copy_(w["w"]))
    assert (bake.live, bake.scatters) == (["w"], [])
    assert bake.opaque == {"w": "copy_: into a tensor that is no parameter"}


def test_f14_copies_are_in_the_order_of_the_calls() -> None:
    def load(module: Any, w: Any) -> None:
        module.p[:2].copy_(w["a"])
        module.p[2:].copy_(w["b"])

    bake = baked(Layer(p=(4, 2)), {"b": (2, 2), "a": (2, 2)}, load)
    assert [(copy.tensor, copy.offset) for copy in bake.scatters] == [("a", 0), ("b", 4)]


def test_f15_a_slice_is_a_chain_and_the_destination_is_whole() -> None:
    bake = baked(Layer(p=(2, 6)), {"w": (4, 6)}, lambda m, w: m.p.copy_(w["w"].narrow(0, 1, 2)))
    (copy,) = bake.scatters
    assert copy[1:5] == ([["narrow", [0, 1, 2], {}]], "p", 0, (2, 6))


def test_f16_a_view_as_another_dtype_is_that_dtype() -> None:
    bake = baked(
        Layer(p=(2,)),
        {"w": (4,)},
        lambda m, w: m.p.copy_(w["w"].view(torch.float32)),
        torch.bfloat16,
    )
    (copy,) = bake.scatters
    assert (copy.dtype, copy.shape, bake.baked) == (torch.float32, (2,), ["w"])


def test_f17_a_broadcasting_copy_is_opaque() -> None:
    bake = baked(Layer(p=(4, 6)), {"w": (1, 6)}, lambda m, w: m.p.copy_(w["w"]))
    assert bake.opaque == {"w": "the copy repeats elements"}


def test_setitem_of_equal_sizes_is_a_copy() -> None:
    def load(module: Any, w: Any) -> None:
        module.p.data[2:] = w["w"]

    bake = baked(Layer(p=(4, 2)), {"w": (2, 2)}, load)
    assert (bake.baked, bake.scatters[0].offset) == (["w"], 4)


def test_sizes_that_torch_refuses_are_refused_as_torch_does() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        baked(Layer(p=(2, 3)), {"w": (6,)}, lambda m, w: m.p.copy_(w["w"]))
