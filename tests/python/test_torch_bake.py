# SPDX-License-Identifier: Apache-2.0
"""What a bake makes of loaders, good and bad: it does what they do, or leaves it to them."""

from __future__ import annotations

import doctest
import threading
import types
from collections.abc import Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from crossmesh.torch import Bake, bake, merge  # noqa: E402
from crossmesh.torch._session import LoadSession, Outcome  # noqa: E402

import crossmesh  # noqa: E402

Sizes = dict[str, tuple[int, ...]]


class Layer(torch.nn.Module):
    """Parameters of given sizes, and a loader that is told as a function."""

    def __init__(self, load: Any, dtype: Any = torch.float32, **shapes: Any) -> None:
        super().__init__()
        self.load = load
        self.notes: dict[str, Any] = {}
        for name, shape in shapes.items():
            values = torch.full(shape, 7, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        for name, tensor in weights:
            self.load(self, name, tensor)


def checkpoint(tensors: Sizes, dtype: Any = torch.float32) -> dict[str, Any]:
    made, at = {}, 1
    for name, shape in tensors.items():
        count = torch.Size(shape).numel()
        made[name] = (torch.arange(at, at + count) % 199).to(dtype).reshape(shape)
        at += count
    return made


def state_of(module: Any) -> Any:
    """All that a bake must leave alone: objects, memory, values, attributes."""
    state = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        attributes = dict(tensor.__dict__)
        state.append((name, id(tensor), tensor.data_ptr(), type(tensor), attributes))
        state.append(tensor.detach().clone().flatten().tolist())
    return state, {name: dict(m.__dict__) for name, m in module.named_modules()}


def judged(module: Any, tensors: Sizes, dtype: Any = torch.float32) -> Bake:
    """Bakes, and proves: the module is as it was, and `apply` does what its loader does."""
    given = checkpoint(tensors, dtype)
    before = state_of(module)
    result = bake(module, [(name, t.shape, t.dtype) for name, t in given.items()])
    assert state_of(module) == before
    for other in (0, 7):  # what was there before must not matter, or alike to both
        results = []
        for way in (
            lambda: module.load_weights(iter(given.items())),
            lambda: result.apply(given.__getitem__),
        ):
            for parameter in module.parameters():
                parameter.data.fill_(other)
            way()
            results.append({name: p.detach().clone() for name, p in module.named_parameters()})
        for name, right in results[0].items():
            assert torch.equal(results[1][name], right), f"{name}: {results[1][name]}, not {right}"
    return result


def into(name: str, part: Any = lambda p: p, of: Any = lambda t: t) -> Any:
    """A loader that copies a part of a tensor into a part of a parameter."""

    def load(module: Any, _: str, tensor: Any) -> None:
        part(getattr(module, name).data).copy_(of(tensor))

    return load


# -- The gaps of the system described (its Z rows), closed -------------------------------------------


def test_z1_what_torch_refuses_for_strides_is_refused_at_the_bake() -> None:
    module = Layer(into("p", of=lambda t: t.t().view(-1)), p=(24,))
    with pytest.raises(RuntimeError, match="view"):
        bake(module, [("w", (4, 6), torch.float32)])
    with pytest.raises(RuntimeError, match="view"):
        module.load_weights([("w", torch.zeros(4, 6))])


def test_z2_the_storage_decides_where_a_copy_goes() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.weight_loader(module.p, tensor)

    def outer(parameter: Any, tensor: Any) -> None:
        module.q.weight_loader(module.q, tensor[2:])
        parameter.data.copy_(tensor[:2])  # after a nested loader
        module.r.data.copy_(tensor[1:3])  # into a parameter that it was not called for

    def inner(parameter: Any, tensor: Any) -> None:
        parameter.data.copy_(tensor)

    module = Layer(load, p=(2,), q=(2,), r=(2,))
    module.p.weight_loader, module.q.weight_loader = outer, inner
    loaders = module.p.weight_loader, module.q.weight_loader
    result = bake(module, [("w", (4,), torch.float32)])
    assert [copied[2] for copied in result.scatters] == ["q", "p", "r"]
    assert (result.baked, result.kept) == (["w"], [])
    assert (module.p.weight_loader, module.q.weight_loader) == loaders
    result.apply({"w": torch.arange(4.0)}.__getitem__)
    assert [p.tolist() for p in module.parameters()] == [[0, 1], [2, 3], [1, 2]]


def test_z3_an_overlap_does_not_mask_a_hole() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        at = {"a": 0, "b": 1}[name]
        module.p.data[at : at + 3].copy_(tensor)

    module = Layer(load, p=(6,))
    result = judged(module, {"a": (3,), "b": (3,)})
    assert result.opaque == {
        "a": "later writes hide a part of the copy",
        "b": "shares elements of p: later writes hide a part of the copy",
    }
    # Both may write any of the parameter, so that nothing of it is said to be covered by pieces.
    layout = result.layout()
    assert [p.piece.box.shape for n in "ab" for p in layout.pieces(0, n)] == [(6,), (6,)]


def test_z3_padding_that_the_loader_fills_is_a_constant() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p[:5].data.copy_(tensor)
        module.p[5:].data.fill_(3)

    result = judged(Layer(load, p=(8, 2)), {"w": (5, 2)})
    assert (result.baked, result.opaque, result.kept) == (["w"], {}, [])
    (fill,) = result.fills
    assert (fill.offset, fill.shape, fill.value_bits) == (10, (6,), 0x40400000)


def test_z3_padding_that_nothing_fills_is_kept() -> None:
    result = bake(Layer(into("p", lambda p: p[:, :2]), p=(2, 4)), [("w", (2, 2), torch.float32)])
    assert [(r.parameter, r.reason) for r in result.kept] == [("p", "no tensor feeds it")]
    assert (result.kept[0].offset, result.kept[0].shape, result.kept[0].strides) == (
        2,
        (2, 2),
        (4, 1),
    )


def test_z4_a_slice_of_no_elements_is_opaque() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data[:0].copy_(tensor[4:])
        module.p.data.copy_(tensor)

    result = judged(Layer(load, p=(4,)), {"w": (4,)})
    assert result.opaque == {"w": "a copy of no elements"}


def test_z5_a_transform_of_the_parameter_after_the_copy_is_the_loaders() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        parameter = getattr(module, name)
        parameter.data.copy_(tensor)
        if name == "a":
            parameter.data.copy_(-torch.exp(parameter.data.float()))

    result = judged(Layer(load, a=(4,), b=(4,)), {"a": (4,), "b": (4,)})
    assert result.baked == ["b"]
    assert result.opaque == {"a": "copy_ writes values that are not the tensor's"}


def test_z6_a_name_that_feeds_two_modules_feeds_both() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.copy_(tensor)
        module.q.data.copy_(tensor.t())

    result = judged(Layer(load, p=(2, 3), q=(3, 2)), {"w": (2, 3)})
    assert result.baked == ["w"]
    assert sorted(p.parameter for p in result.layout().pieces(0, "w")) == [0, 1]


Z11 = {
    "index": lambda t: t[torch.tensor([0, 1])],
    "mask": lambda t: t[torch.tensor([True, True, False])],
    "start": lambda t: t.narrow(0, torch.tensor(1), 2),
    "list": lambda t: t[[0, 1]],
}


@pytest.mark.parametrize("of", Z11.values(), ids=Z11)
def test_z11_tensors_as_arguments_are_refused_and_go_to_the_loader(of: Any) -> None:
    result = judged(Layer(into("p", of=of), p=(2, 2), q=(1,)), {"w": (3, 2)})
    assert list(result.opaque) == ["w"]


def test_z11_slices_and_lists_of_sizes_are_recorded() -> None:
    module = Layer(into("p", of=lambda t: t[..., 1:3].permute([1, 0]).reshape([4])), p=(4,))
    assert judged(module, {"w": (2, 4)}).baked == ["w"]


def test_z12_a_tensor_that_is_loaded_twice_counts_once() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        for _ in range(2):
            module.p.data[:2].copy_(tensor)

    result = judged(Layer(load, p=(4,)), {"w": (2,)})
    assert result.baked == ["w"]
    assert [(r.offset, r.shape) for r in result.kept] == [(2, (2,))]


def test_z19_a_loader_that_raises_leaves_the_module_as_it_was() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.notes["seen"] = name
        module.p.data.copy_(tensor)
        module.extra = torch.nn.Parameter(torch.zeros(1))
        del module.q
        raise KeyError("unknown name")

    module = Layer(load, p=(4,), q=(2,))
    module.p.weight_loader = lambda parameter, tensor: None
    before = state_of(module)
    with pytest.raises(KeyError, match="unknown name"):
        bake(module, [("w", (4,), torch.float32)])
    assert state_of(module) == before


def test_z20_one_slice_may_go_to_two_shapes() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.copy_(tensor)
        module.q.data.copy_(tensor.view(6))

    result = judged(Layer(load, p=(2, 3), q=(6,)), {"w": (2, 3)})
    assert result.baked == ["w"]


def test_z21_names_of_two_gather_groups_move_tensor_by_tensor() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        at = 0 if name.startswith("layers.0") else 2
        module.p.data[at : at + 2].copy_(tensor)

    result = judged(Layer(load, p=(4,)), {"layers.0.w": (2,), "layers.1.w": (2,)})
    assert result.baked == ["layers.0.w", "layers.1.w"]
    layout = result.layout()
    assert [len(layout.pieces(0, name)) for name in result.baked] == [1, 1]


def test_z22_shards_in_the_wrong_slots_are_recorded_as_they_happen() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        # Told shards 1 and 2, the loader places them as shards 0 and 1.
        module.p.data[0:2].copy_(tensor.narrow(0, 0, 2))
        module.p.data[2:4].copy_(tensor.narrow(0, 2, 2))

    result = judged(Layer(load, p=(6,)), {"w": (4,)})
    assert result.baked == ["w"]
    assert [(r.offset, r.shape) for r in result.kept] == [(4, (2,))]


# -- What loaders do that no chain records -----------------------------------------------------------


def scale(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(tensor * 2)


def scale_of_two(module: Any, name: str, tensor: Any) -> None:
    module.notes[name] = tensor
    if len(module.notes) == 2:
        module.p.data.copy_(module.notes.pop("w") * module.notes.pop("v"))


def convert(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(tensor.to(torch.float16).float())


def concatenate(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(torch.cat([tensor[2:], tensor[:2]]))


def stack(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(torch.stack(tensor.chunk(4)).view(4))


def zero_source(module: Any, name: str, tensor: Any) -> None:
    tensor.zero_()
    module.p.data.copy_(tensor)


def write_source(module: Any, name: str, tensor: Any) -> None:
    tensor[1:] = 5.0
    module.p.data.copy_(tensor)


def through_memory(module: Any, name: str, tensor: Any) -> None:
    held = torch.empty(4)
    held.copy_(tensor)
    module.p.data.copy_(held + 1)


def add_in_place(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(tensor)
    module.p.data.add_(1)


def operator(module: Any, name: str, tensor: Any) -> None:
    torch.ops.aten.copy_.default(module.p.data, torch.ops.aten.neg.default(tensor))


def out(module: Any, name: str, tensor: Any) -> None:
    torch.add(tensor, 1, out=module.p.data)


def setitem(module: Any, name: str, tensor: Any) -> None:
    module.p.data[:] = 0
    module.p.data[torch.tensor([0, 1, 2, 3])] = tensor


def foreach(module: Any, name: str, tensor: Any) -> None:
    module.p.data.copy_(tensor)
    torch._foreach_mul_([module.p.data], 2.0)


def item(module: Any, name: str, tensor: Any) -> None:
    module.p.weight_loader(module.p, tensor)


def replace_data(module: Any, name: str, tensor: Any) -> None:
    module.p.data = tensor.clone()


def replace_parameter(module: Any, name: str, tensor: Any) -> None:
    module.p = torch.nn.Parameter(tensor + 1, requires_grad=False)


UNRECORDED = [
    *(scale, convert, concatenate, stack, zero_source, write_source, through_memory),
    *(add_in_place, operator, out, setitem, foreach, replace_data, replace_parameter),
]


@pytest.mark.parametrize("load", UNRECORDED, ids=[load.__name__ for load in UNRECORDED])
def test_what_no_chain_records_goes_to_the_loader(load: Any) -> None:
    def both(module: Any, name: str, tensor: Any) -> None:
        if name == "w":
            load(module, name, tensor)
        else:
            module.q.data.copy_(tensor)

    result = judged(Layer(both, p=(4,), q=(2,)), {"w": (4,), "v": (2,)})
    assert (result.baked, list(result.opaque)) == (["v"], ["w"])
    assert result.direct_bytes_share == pytest.approx(1 / 3)


def test_tensors_that_are_put_together_are_opaque_together() -> None:
    result = judged(Layer(scale_of_two, p=(4,)), {"w": (4,), "v": (4,)})
    assert set(result.opaque) == {"w", "v"}


def test_a_placeholder_that_is_kept_and_copied_later_is_still_its_tensors() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.notes[name] = tensor
        if name == "v":
            module.p.data.copy_(module.notes["w"])
            module.q.data.copy_(tensor)

    result = judged(Layer(load, p=(4,), q=(2,)), {"w": (4,), "v": (2,)})
    assert result.baked == ["w", "v"]


def test_a_loader_of_a_parameter_that_needs_values_makes_the_parameter_its_own() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        if name == "w":
            module.p.weight_loader(module.p, tensor)
        else:
            module.p.data[1:].copy_(tensor)

    def weight_loader(parameter: Any, tensor: Any) -> None:
        parameter.data[0] = tensor.item()

    module = Layer(load, p=(4,))
    module.p.weight_loader = weight_loader
    result = judged(module, {"w": (), "v": (3,)})
    assert set(result.opaque) == {"w", "v"}
    assert result.opaque["w"] == "item: needs values, and a placeholder has none"


def test_a_loader_that_needs_values_elsewhere_is_refused() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.fill_(tensor[0].item())

    module = Layer(load, p=(4,))
    before = state_of(module)
    with pytest.raises(NotImplementedError) as refused:
        bake(module, [("w", (4,), torch.float32)])
    assert state_of(module) == before
    assert str(refused.value) == (
        "item: needs values, and a placeholder has none\n"
        "  tensor  'w'\n"
        '  chain  [["__getitem__",[0],{}]]\n'
        "  supported  narrow, view, reshape, __getitem__, unsqueeze, squeeze, transpose, t, "
        "permute, flatten, contiguous, chunk, unbind, split, select"
    )


def test_a_loader_that_stops_early_is_refused() -> None:
    module = Layer(None, p=(4,))
    before = state_of(module)
    with pytest.raises(crossmesh.Error) as refused:
        bake(
            module,
            [("w", (4,), torch.float32), ("v", (4,), torch.float32)],
            lambda weights: module.p.data.copy_(next(iter(weights))[1]),
        )
    assert state_of(module) == before
    assert str(refused.value) == (
        "bake: the loader stopped before it had seen all tensors\n"
        "  tensors  2\n  seen  1\n  next  v"
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_leaves_the_module_as_it_was(error: Any) -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.zero_()
        module.running.add_(1)
        raise error

    module = Layer(load, p=(4,))
    module.register_buffer("running", torch.ones(2))
    before = state_of(module)
    with pytest.raises(error):
        bake(module, [("w", (4,), torch.float32)])
    assert state_of(module) == before


BAD = {
    "a dtype without a wire form": (
        [("w", (4,), torch.complex128)],
        "bake: a dtype has no wire form\n  tensor  w\n  dtype  torch.complex128",
    ),
    "an unknown dtype": (
        [("w", (4,), "float33")],
        "bake: torch has no such dtype\n  tensor  w\n  dtype  float33",
    ),
    "a name twice": (
        [("w", (4,), "BF16"), ("w", (4,), "BF16")],
        "bake: a tensor is named twice\n  tensor  w",
    ),
}


@pytest.mark.parametrize(("tensors", "text"), BAD.values(), ids=BAD)
def test_bad_tensors_are_refused_before_anything_is_run(tensors: Any, text: str) -> None:
    with pytest.raises(crossmesh.Error) as refused:
        bake(Layer(None, p=(4,)), tensors)
    assert str(refused.value) == text


def test_a_tensor_that_is_not_as_announced_is_refused() -> None:
    result = bake(Layer(into("p"), p=(4,)), [("w", (4,), torch.float32)])
    with pytest.raises(crossmesh.Error) as refused:
        result.apply({"w": torch.zeros(5)}.__getitem__)
    assert str(refused.value) == (
        "apply: a tensor is not as it was announced\n  tensor  w\n"
        "  announced  torch.float32 [4]\n  given  torch.float32 [5] on cpu"
    )


# -- Parameters --------------------------------------------------------------------------------------


def test_of_tied_parameters_the_last_copy_stays_as_in_a_load() -> None:
    module = Layer(lambda m, name, t: getattr(m, name).data.copy_(t), embed=(4, 2))
    module.register_parameter("head", module.embed)
    result = judged(module, {"embed": (4, 2), "head": (4, 2)})
    assert result.baked == ["head"]
    assert result.overwritten == {"embed": "later copies hide it in embed"}
    assert [p.storage for p in result.layout().parameters] == [0, 0]


def test_parameters_that_share_memory_share_it_while_recording() -> None:
    whole = torch.zeros(6)

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.nn.Parameter(whole, requires_grad=False)
            self.part = torch.nn.Parameter(whole[2:4], requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            for name, tensor in weights:
                if name == "part":
                    self.part.data.copy_(tensor)
                else:
                    self.whole.data[int(name) : int(name) + 2].copy_(tensor)

    module = Shared()
    given = {"0": torch.ones(2), "part": torch.full((2,), 2.0), "4": torch.full((2,), 3.0)}
    result = bake(module, [(n, t.shape, t.dtype) for n, t in given.items()])
    assert result.baked == ["0", "part", "4"] and result.kept == []
    result.apply(given.__getitem__)
    assert whole.tolist() == [1, 1, 2, 2, 3, 3]


def test_a_scalar_and_an_empty_parameter_are_loaded_like_others() -> None:
    module = Layer(lambda m, name, t: getattr(m, name).data.copy_(t), s=(), e=(0, 4))
    result = judged(module, {"s": (), "e": (0, 4)})
    assert result.baked == ["s", "e"]


def test_buffers_take_tensors_too_and_are_left_as_they_were() -> None:
    module = Layer(lambda m, name, t: m.mean.copy_(t))
    module.register_buffer("mean", torch.ones(3))
    result = bake(module, [("w", (3,), torch.float32)])
    assert module.mean.tolist() == [1, 1, 1]
    result.apply({"w": torch.arange(3.0)}.__getitem__)
    assert module.mean.tolist() == [0, 1, 2]


def test_a_conversion_is_a_cast_where_the_table_has_it() -> None:
    module = Layer(into("p"), torch.bfloat16, p=(4,))
    assert judged(module, {"w": (4,)}).baked == ["w"]
    module = Layer(into("p"), torch.int32, p=(4,))
    assert judged(module, {"w": (4,)}).opaque == {"w": "no conversion from F32 to I32"}


def test_loaders_of_parameters_see_their_own_parameter() -> None:
    def weight_loader(self: Any, tensor: Any) -> None:
        self.data.copy_(tensor)

    module = Layer(lambda m, name, t: m.p.weight_loader(t), p=(4,))
    module.p.weight_loader = types.MethodType(weight_loader, module.p)
    assert judged(module, {"w": (4,)}).baked == ["w"]


def test_what_load_computes_by_itself_is_derived_and_needs_the_loader() -> None:
    class Derived(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
            self.twice = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

        def load_weights(self, weights: Any) -> None:
            for _, tensor in weights:
                self.p.data.copy_(tensor)
            self.twice.data.copy_(self.p.data * 2)

    module = Derived()
    result = bake(module, [("w", (4,), torch.float32)])
    assert (result.baked, result.opaque, result.needs_loader) == (["w"], {}, True)
    assert [(r.parameter, r.reason) for r in result.derived] == [
        ("twice", "copy_ writes values that are not the tensor's")
    ]
    result.apply({"w": torch.arange(4.0)}.__getitem__)
    assert module.twice.tolist() == [0, 2, 4, 6]


# -- All ranks ---------------------------------------------------------------------------------------


def test_bakes_of_ranks_merge_into_classes() -> None:
    bakes = []
    for rank in range(2):

        def load(module: Any, name: str, tensor: Any, rank: int = rank) -> None:
            if name == "norm":
                module.norm.data.copy_(tensor)
            else:
                getattr(module, name).data.copy_(tensor.narrow(0, 2 * rank, 2))

        module = Layer(load, a=(2, 3), b=(2, 3), norm=(3,))
        tensors = [("a", (4, 3), "F32"), ("b", (4, 3), "F32"), ("norm", (3,), "F32")]
        bakes.append(bake(module, tensors, rank=rank))
    layout = merge(bakes)
    assert (layout.rank_count, len(layout.classes), len(layout.instances)) == (2, 2, 3)
    plan = crossmesh.compile(crossmesh.shard(crossmesh.Catalog(layout.tensors), "fsdp=2"), layout)
    assert crossmesh.verify(plan).right


def test_every_write_is_seen_by_a_mode_as_by_the_key() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.copy_(tensor)
        module.p.data[1:].mul_(2)
        module.q.data.zero_()

    events = []
    for by_mode in (False, True):
        module = Layer(load, p=(4,), q=(2,))
        session = LoadSession(module, [("w", (4,), torch.float32)])
        assert session.run(module.load_weights, by_mode=by_mode) is Outcome.recorded
        events.append([(e.kind, e.offset, e.shape, e.reason) for e in session.record.events])
    assert events[0] == events[1]
    assert [event[0] for event in events[0]] == ["copy", "write", "fill"]


# -- Every route by which torch writes ---------------------------------------------------------------


def custom(parameter: Any) -> None:
    """An operator that is registered while the bake is under way."""
    if not hasattr(torch.ops.crossmesh_test, "double_"):

        @torch.library.custom_op("crossmesh_test::double_", mutates_args=("x",))
        def double_(x: torch.Tensor) -> None:
            x.mul_(2)

        double_.register_fake(lambda x: None)
    torch.ops.crossmesh_test.double_(parameter.data)


def increase(parameter: Any) -> None:
    data = parameter.data
    data += 1


ROUTES = {
    "method": lambda p: p.data.mul_(2),
    "operator": increase,
    "no grad": lambda p: p.add_(1),
    "unbound": lambda p: torch.Tensor.neg_(p.data),
    "of a view": lambda p: p.data.view(2, 2).t()[0].mul_(2),
    "out": lambda p: torch.mul(p.data, 2, out=p.data),
    "packet": lambda p: torch.ops.aten.mul_(p.data, 2),
    "overload": lambda p: torch.ops.aten.mul_.Scalar(p.data, 2),
    "foreach": lambda p: torch._foreach_mul_([p.data], 2.0),
    "setitem of a tensor": lambda p: p.data.__setitem__(slice(0, 2), p.data[2:] * 1),
    "index_put_": lambda p: p.data.index_put_((torch.tensor([1]),), torch.tensor(9.0)),
    "masked_fill_": lambda p: p.data.masked_fill_(torch.tensor([True, False, True, False]), 3.0),
    "scatter_": lambda p: p.data.scatter_(0, torch.tensor([1]), 5.0),
    "init": lambda p: torch.nn.init.uniform_(p),
    "detached": lambda p: p.detach().mul_(2),
    "an alias": lambda p: torch.ops.aten.alias(p.data).mul_(2),
    "as_strided": lambda p: p.data.as_strided((2,), (2,)).mul_(2),
    "another dtype": lambda p: p.data.view(torch.int32).bitwise_not_(),
    "clamp": lambda p: torch.clamp_(p.data, 0, 1),
    "a custom operator": custom,
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("write", ROUTES.values(), ids=ROUTES)
def test_a_write_is_seen_by_whatever_route(write: Any, inference: bool) -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.copy_(tensor)
        with torch.inference_mode() if inference else torch.no_grad():
            write(module.p)

    result = bake(Layer(load, p=(4,)), [("w", (4,), torch.float32)])
    assert (result.baked, list(result.opaque)) == ([], ["w"])


def test_what_reads_is_not_taken_for_a_write() -> None:
    def load(module: Any, name: str, tensor: Any) -> None:
        module.p.data.copy_(tensor)
        module.p.data.t().clone().mul_(2)
        module.p.data.view(-1)[0:2].unsqueeze(0).squeeze_(0)
        torch.empty(2).fill_(3)

    assert judged(Layer(load, p=(2, 2)), {"w": (2, 2)}).baked == ["w"]


def test_the_example_of_bake_runs() -> None:
    globs = {"crossmesh": crossmesh}
    test = doctest.DocTestParser().get_doctest(bake.__doc__ or "", globs, "bake", None, None)
    said: list[str] = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert test.examples and not said


# -- What others tried -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.1, torch.float64),
        (1e300, torch.float64),
        (16777217.0, torch.int64),
        (0.1, torch.float32),
        (0.1, torch.bfloat16),
    ],
)
def test_a_fill_has_the_bits_that_torch_gives_it(value: float, dtype: Any) -> None:
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.zeros(4, dtype=dtype), requires_grad=False)

    def load(weights: Any) -> None:
        for _, tensor in weights:
            module.p.data[:2].copy_(tensor)
            module.p.data[2:].fill_(value)

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        baked = bake(module, [("w", (2,), dtype)], load)
    finally:
        torch.set_default_dtype(default)
    given = torch.arange(1, 3).to(dtype)
    baked.apply(lambda name: given)
    expected = torch.empty(4, dtype=dtype)
    expected[:2].copy_(given)
    expected[2:].fill_(value)
    assert torch.equal(module.p.data.view(torch.uint8), expected.view(torch.uint8))


def test_zeros_of_two_signs_are_no_constant() -> None:
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.ones(4), requires_grad=False)

    def load(weights: Any) -> None:
        for _, tensor in weights:
            module.p.data[:2].copy_(tensor)
            module.p.data[2:].copy_(torch.tensor([0.0, -0.0]))

    baked = bake(module, [("w", (2,), torch.float32)], load)
    assert baked.fills == []


@pytest.mark.parametrize("change", ["half", "smaller", "transposed", "gone", "untied"])
def test_a_module_that_changed_since_is_not_written(change: str) -> None:
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    module.tied = module.p if change == "untied" else None

    def load(weights: Any) -> None:
        for _, tensor in weights:
            module.p.data.copy_(tensor)

    baked = bake(module, [("w", (2, 3), torch.float32)], load)
    if change == "half":
        module.half()
    elif change == "smaller":
        module.p = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    elif change == "transposed":
        module.p.data = torch.zeros(3, 2).t()
    elif change == "untied":
        module.tied = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
    else:
        del module.p
    with pytest.raises(crossmesh.Error) as raised:
        baked.apply(lambda name: torch.ones(2, 3))
    assert raised.value.code == "mismatch"
    assert all(float(p.abs().sum()) == 0 for p in module.parameters())


def test_a_copy_in_another_thread_is_refused() -> None:
    module = torch.nn.Module()
    module.p = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    raised: list[Exception] = []

    def load(weights: Any) -> None:
        def work(tensor: Any) -> None:
            try:
                module.p.data.copy_(tensor)
            except crossmesh.Error as error:
                raised.append(error)

        for _, tensor in weights:
            thread = threading.Thread(target=work, args=(tensor,))
            thread.start()
            thread.join()
        if raised:
            raise raised[0]

    with pytest.raises(crossmesh.Error) as error:
        bake(module, [("w", (2,), torch.float32)], load)
    assert str(error.value) == (
        "bake: the loader copies in another thread, whose writes are not seen\n"
        "  tensor  w\n"
        "  hint  load in the thread that bakes"
    )
    assert float(module.p.abs().sum()) == 0
