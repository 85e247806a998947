# SPDX-License-Identifier: Apache-2.0
"""Tensors without values, that record what a loader does to them.

A `RecordingTensor` stands for a checkpoint tensor after a chain of calls. Its shape, its dtype and
the calls that chains record are answered here, from geometry that C++ keeps once for all tensors;
only copies, function spellings and what is refused enter `__torch_function__`. Where a loader does
something else, an `OpaqueTensor` goes on in its place: values unknown, but whose they are is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from crossmesh import _core
from crossmesh._error import Error
from crossmesh.torch._described import DescribedTensor
from crossmesh.torch._geometry import Node, meta_of, wire_dtype
from crossmesh.torch._refusal import SUPPORTED, Refused, as_torch_raises, error_of, refuse

__all__ = ["OpaqueTensor", "Recording", "RecordingTensor", "name_of", "opaque_of", "placeholder"]


class Recording:
    """The chains of one run, and what happens to copies and to calls that no chain records.

    On its own it is strict: a copy goes nowhere, so it is refused, as is every unrecorded call.
    """

    def __init__(self) -> None:
        self.book = _core.ChainBook()
        self.names: list[str] = []
        self._nodes: dict[int, Node] = {}
        self._starts: dict[tuple[torch.dtype, tuple[int, ...]], Node] = {}

    def start(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> RecordingTensor:
        """Returns the placeholder of a whole tensor."""
        self.names.append(name)
        return self.placed(len(self.names) - 1, tuple(shape), dtype)

    def placed(self, tensor: int, shape: tuple[int, ...], dtype: torch.dtype) -> RecordingTensor:
        """Returns the placeholder of the tensor whose name is at this place in `names`."""
        node = self._starts.get((dtype, shape))
        if node is None:
            wire = wire_dtype(dtype)
            if wire is None:
                raise Error(
                    "unsupported", "placeholder: a dtype has no wire form", {"dtype": dtype}
                )
            node = self.node(self.book.start(wire, shape))
            self._starts[dtype, shape] = node
        return _placed(self, tensor, node)

    def node(self, chain: int) -> Node:
        node = self._nodes.get(chain)
        if node is None:
            node = self._nodes[chain] = Node(self.book, chain)
        return node

    def copied(self, target: torch.Tensor, source: RecordingTensor) -> torch.Tensor:
        """Takes a copy into a tensor that is no placeholder."""
        refuse(source, "copy_", "there is no sink for copies")

    def refused(self, error: Refused, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Goes on after a call that no chain records, or raises."""
        raise error


_make = torch.Tensor._make_subclass
_nothing = torch.empty(0, device="meta")


def _placed(recording: Recording, tensor: int, node: Node) -> RecordingTensor:
    made: RecordingTensor = _make(RecordingTensor, _nothing)
    made._recording = recording
    made._tensor = tensor
    made._node = node
    return made


def placeholder(name: str, shape: Sequence[int], dtype: torch.dtype) -> RecordingTensor:
    """Returns a placeholder by itself; it refuses what no chain records, and every copy."""
    return Recording().start(name, shape, dtype)


def name_of(func: Any) -> str:
    """The name of a torch function as one would call it: `Tensor.add_`, `torch.cat`."""
    name = getattr(func, "__name__", None) or str(func)
    if name in ("__get__", "__set__", "__delete__"):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name)


def _first_recording(values: Any) -> RecordingTensor | None:
    for value in values:
        if isinstance(value, RecordingTensor):
            return value
        if isinstance(value, (list, tuple)):
            found = _first_recording(value)
            if found is not None:
                return found
    return None


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether arguments are integers by position; True and 1.0 are equal to 1, and are not."""
    return not kwargs and all(type(arg) is int for arg in args)


def _one(name: str) -> Callable[..., Any]:
    """A method that yields one tensor. Calls of integers that were met before are looked up here,
    since loaders make the same few over and over: each frame that is saved counts."""

    def call(self: RecordingTensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            for arg in args:
                if type(arg) is not int:
                    break
            else:
                step = self._node.steps.get((name, args))
                if step is not None:
                    made = _make(RecordingTensor, _nothing)
                    made._recording = self._recording
                    made._tensor = self._tensor
                    made._node = step
                    return made
        return self._call(name, args, kwargs)

    call.__name__ = name
    return call


def _many(name: str) -> Callable[..., Any]:
    """A method that yields several tensors."""

    def call(self: RecordingTensor, *args: Any, **kwargs: Any) -> Any:
        if _is_plain(args, kwargs):
            steps = self._node.steps.get((name, args))
            if steps is not None:
                recording, tensor = self._recording, self._tensor
                return tuple([_placed(recording, tensor, step) for step in steps])
        return self._several(name, args, kwargs)

    call.__name__ = name
    return call


class RecordingTensor(DescribedTensor):
    """A checkpoint tensor after a chain of calls, without values."""

    _recording: Recording

    # -- What chains record ----------------------------------------------------------------------

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One more call that was not met before, or that does more than name integers."""
        recording, node = self._recording, self._node
        try:
            step = recording.node(recording.book.apply(node.chain, name, args, kwargs))
        except Error as error:
            return self._failed(error, name, args, kwargs)
        if _is_plain(args, kwargs):
            node.steps[name, args] = step
        return _placed(recording, self._tensor, step)

    def _several(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording, node = self._recording, self._node
        try:
            chains = recording.book.apply_several(node.chain, name, args, kwargs)
        except Error as error:
            return self._failed(error, name, args, kwargs)
        steps = [recording.node(chain) for chain in chains]
        if _is_plain(args, kwargs):
            node.steps[name, args] = steps
        return tuple([_placed(recording, self._tensor, step) for step in steps])

    def _failed(self, error: Error, name: str, args: Any, kwargs: Any) -> Any:
        if error.code != "unsupported":
            raise as_torch_raises(error) from None
        facts = {
            "tensor": repr(self._recording.names[self._tensor]),
            **error.facts,
            "supported": SUPPORTED,
        }
        refused = Refused("unsupported", error.summary, facts, error.hint)
        func = getattr(torch.Tensor, name)
        return self._recording.refused(refused, func, (self, *args), kwargs)

    narrow = _one("narrow")
    view = _one("view")
    reshape = _one("reshape")
    unsqueeze = _one("unsqueeze")
    squeeze = _one("squeeze")
    transpose = _one("transpose")
    t = _one("t")
    permute = _one("permute")
    flatten = _one("flatten")
    contiguous = _one("contiguous")
    select = _one("select")
    __getitem__ = _one("__getitem__")
    chunk = _many("chunk")
    unbind = _many("unbind")
    split = _many("split")

    def __iter__(self) -> Iterator[Any]:
        if not self._node.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    # Other spellings of the same.

    @property
    def T(self) -> Any:  # type: ignore[override]
        return self.t() if self.dim() == 2 else self.permute(*reversed(range(self.dim())))

    @property
    def mT(self) -> Any:  # type: ignore[override]
        return self.transpose(-2, -1)

    def swapaxes(self, axis0: int, axis1: int) -> Any:
        return self.transpose(axis0, axis1)

    def swapdims(self, dim0: int, dim1: int) -> Any:
        return self.transpose(dim0, dim1)

    def view_as(self, other: torch.Tensor) -> Any:
        return self.view(other.shape)

    def reshape_as(self, other: torch.Tensor) -> Any:
        return self.reshape(other.shape)

    def ravel(self) -> Any:
        return self.reshape(-1)

    # -- What changes nothing --------------------------------------------------------------------

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        if requires_grad:
            refuse(self, "requires_grad_", "a placeholder has no gradient")
        return self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if func is _copy_:
            if len(args) > 1 and type(args[1]) is cls and type(args[0]) not in _STAND_INS:
                return args[1]._recording.copied(args[0], args[1])
            return _copied(func, args, kwargs)
        name = name_of(func)
        if name in ("copy_", "copy_.default"):
            return _copied(func, args, kwargs)
        if name == "__setitem__":
            return _set(func, args, kwargs)
        tensor = _first_recording((*args, *kwargs.values()))
        if tensor is None:
            return NotImplemented
        if any(issubclass(kind, OpaqueTensor) for kind in types):
            return _refused(tensor, func, args, kwargs)
        if args and args[0] is tensor:
            if name in _SPELLINGS:
                return getattr(tensor, name)(*args[1:], **kwargs)
            if name in _CONVERSIONS and _keeps(tensor, name, args[1:], kwargs):
                return tensor
        elif kwargs.get("input", kwargs.get("tensor")) is tensor and name in _SPELLINGS:
            rest = {key: value for key, value in kwargs.items() if value is not tensor}
            return getattr(tensor, name)(*args, **rest)
        return _refused(tensor, func, args, kwargs)


class OpaqueTensor(torch.Tensor):
    """What a loader made of placeholders by calls that no chain records: whose values it holds."""

    _recording: Any
    _tensors: frozenset[int]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, (OpaqueTensor, RecordingTensor)):
                session: Any = value._recording
                return session.go_on(func, args, kwargs or {})
        for value in (*args, *(kwargs or {}).values()):
            for item in value if isinstance(value, (list, tuple)) else ():
                if isinstance(item, (OpaqueTensor, RecordingTensor)):
                    session = item._recording
                    return session.go_on(func, args, kwargs or {})
        return NotImplemented


def opaque_of(tensor: RecordingTensor) -> torch.Tensor:
    """A meta tensor as the placeholder is."""
    with torch._C.DisableTorchFunctionSubclass():
        return meta_of(tensor._node)


def _copied(func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0] if args else kwargs["self"]
    source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if isinstance(source, RecordingTensor) and not isinstance(
        target, (RecordingTensor, OpaqueTensor)
    ):
        return source._recording.copied(target, source)
    tensor = target if isinstance(target, RecordingTensor) else source
    return _refused(tensor, func, args, kwargs)


def _set(func: Any, args: Any, kwargs: Any) -> Any:
    """`target[index] = source`, which is a copy where the sizes are equal."""
    target, index, source = args
    whole = isinstance(source, RecordingTensor) and not isinstance(
        target, (RecordingTensor, OpaqueTensor)
    )
    if whole and _is_basic(index):
        part = target[index]
        if part.shape == source.shape:
            source._recording.copied(part, source)
            return None
    tensor = _first_recording((*args,))
    if tensor is None:
        tensor = _first_recording(index if isinstance(index, (list, tuple)) else (index,))
    assert tensor is not None
    return _refused(tensor, func, args, kwargs)


def _is_basic(index: Any) -> bool:
    if isinstance(index, tuple):
        return all(_is_basic(item) for item in index)
    return index is None or index is Ellipsis or type(index) is int or isinstance(index, slice)


def _keeps(tensor: RecordingTensor, name: str, args: Any, kwargs: Any) -> bool:
    """Whether a conversion changes nothing but the device."""
    wanted = _CONVERSIONS[name]
    if wanted is not None:
        return wanted == tensor.dtype
    if name in ("cpu", "cuda"):
        return True
    if kwargs.get("memory_format", torch.preserve_format) is not torch.preserve_format:
        return False
    if kwargs.get("copy"):
        return False
    for value in (*args, kwargs.get("dtype"), kwargs.get("other")):
        if isinstance(value, torch.Tensor):
            value = value.dtype
        if isinstance(value, torch.dtype) and value != tensor.dtype:
            return False
        if name == "type" and isinstance(value, (str, type)):
            return False
    return name != "type" or bool(args or kwargs)


def _refused(tensor: RecordingTensor, func: Any, args: Any, kwargs: Any) -> Any:
    error = error_of(tensor, name_of(func), "no chain records this call")
    return tensor._recording.refused(error, func, args, kwargs)


_SPELLINGS = {
    *(
        [
            "narrow",
            "view",
            "reshape",
            "unsqueeze",
            "squeeze",
            "transpose",
            "t",
            "permute",
            "flatten",
            "chunk",
            "unbind",
            "split",
        ]
    ),
    *(["select", "swapaxes", "swapdims", "ravel", "numel", "is_floating_point", "is_complex"]),
}
_CONVERSIONS: dict[str, torch.dtype | None] = {
    "to": None,
    "type": None,
    "type_as": None,
    "cpu": None,
    "cuda": None,
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
}
_STAND_INS = (RecordingTensor, OpaqueTensor)
_copy_ = torch.Tensor.copy_
