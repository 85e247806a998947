# SPDX-License-Identifier: Apache-2.0
"""Calls of loaders as data, made on placeholders and on real tensors alike."""

from __future__ import annotations

import random
from typing import Any

import torch
from crossmesh.torch import RecordingTensor
from crossmesh.torch._geometry import torch_dtype

from crossmesh import _core

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

SEVERAL = ("chunk", "unbind", "split")


def value_of(value: Any) -> Any:
    """An argument from the JSON of recorded cases."""
    if isinstance(value, list):
        return [value_of(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        dtype = value.get("dtype")
        return torch.tensor(value["tensor"], dtype=dtype and getattr(torch, dtype))
    ((kind, inner),) = value.items()
    if kind == "slice":
        return slice(*(value_of(part) for part in inner))
    if kind == "tuple":
        return tuple(value_of(item) for item in inner)
    if kind == "ellipsis":
        return Ellipsis
    return getattr(torch, inner)  # a dtype or a memory format


def call_of(call: list[Any]) -> Call:
    name, args, kwargs = call
    return name, tuple(map(value_of, args)), {key: value_of(v) for key, v in kwargs.items()}


def do(tensor: Any, call: Call) -> Any:
    """Makes one call: a method, `.name` for an attribute, `torch.name` for a function."""
    name, args, kwargs = call
    if isinstance(tensor, (tuple, list)):
        assert name == "__getitem__"
        return tensor[args[0]]
    if name.startswith("."):
        return getattr(tensor, name[1:])
    if name.startswith("torch."):
        return getattr(torch, name[len("torch.") :])(tensor, *args, **kwargs)
    if name == "__iter__":
        return tuple(tensor)
    if name == "__len__":
        return len(tensor)
    return getattr(tensor, name)(*args, **kwargs)


def numbered(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of which no two elements are alike, as far as its bits go."""
    count = torch.Size(shape).numel()
    numbers = torch.arange(count * dtype.itemsize, dtype=torch.int64) * 40503 % 251
    if dtype is torch.bool:
        numbers %= 2
    return (
        numbers.to(torch.uint8).view(dtype).reshape(shape)
        if count
        else torch.empty(shape, dtype=dtype)
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in order. One element alone would keep its stride in `contiguous`."""
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format)


def replay(book: _core.ChainBook, chain: int, whole: torch.Tensor) -> torch.Tensor:
    """What a chain shows of a whole tensor, from the geometry of its layers."""
    storage = _dense(whole)
    for wire, sizes, strides, offset in book.layers(chain):
        dtype = torch_dtype(wire)
        assert dtype is not None
        if torch.Size(sizes).numel() == 0:
            return torch.empty(sizes, dtype=dtype)
        view = storage.view(dtype).as_strided(sizes, strides, offset)
        storage = _dense(view)
    return storage.view(view.shape)


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return _dense(tensor).view(torch.uint8)


def shows(tensor: RecordingTensor, whole: torch.Tensor) -> torch.Tensor:
    return replay(tensor._recording.book, tensor._node.chain, whole)


# -- Random chains -----------------------------------------------------------------------------------

DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.float16)


class ChainMaker:
    """Draws calls that are mostly legal on the tensor at hand, in every spelling."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def start(self) -> tuple[tuple[int, ...], torch.dtype]:
        dims = self.random.choice((0, 1, 2, 2, 2, 3, 3, 4))
        sizes = tuple(self.random.choice((1, 2, 2, 3, 4, 4, 6, 8)) for _ in range(dims))
        if dims and self.random.random() < 0.03:
            at = self.random.randrange(dims)
            sizes = sizes[:at] + (0,) + sizes[at + 1 :]
        return sizes, self.random.choice(DTYPES)

    def dim(self, dims: int) -> int:
        if self.random.random() < 0.02:
            return self.random.choice((dims, -dims - 1, dims + 3))
        return self.random.randrange(-dims, dims) if dims else self.random.choice((0, -1))

    def index(self, size: int) -> int:
        if size == 0 or self.random.random() < 0.02:
            return self.random.choice((size, -size - 1))
        return self.random.randrange(-size, size)

    def slice(self, size: int) -> slice:
        draw = self.random
        start = draw.choice((None, draw.randint(-size - 1, size + 1)))
        stop = draw.choice((None, draw.randint(-size - 1, size + 1)))
        step = draw.choice((None, None, 1, 2, 3, draw.choice((0, -1, 1, 2))))
        return slice(start, stop, step)

    def item(self, tensor: torch.Tensor) -> Any:
        draw, items = self.random, []
        kinds = "dddsn" if tensor.dim() else "n."
        for size in tensor.shape[: draw.randint(0, tensor.dim())]:
            kind = draw.choice(kinds)
            if kind == "n":
                items.append(None)
            items.append(self.slice(size) if kind != "d" or size == 0 else self.index(size))
        if draw.random() < 0.2:
            items.insert(draw.randint(0, len(items)), Ellipsis)
        if len(items) == 1 and draw.random() < 0.7:
            return items[0]
        return tuple(items)

    def sizes(self, tensor: torch.Tensor) -> tuple[int, ...]:
        draw, left, sizes = self.random, tensor.numel(), []
        if draw.random() < 0.04:
            return tuple(draw.choice((-1, 2, 3, 5)) for _ in range(draw.randint(1, 3)))
        for _ in range(draw.randint(0, 3)):
            factors = [n for n in (1, 2, 3, 4, 6, 8) if left and left % n == 0]
            sizes.append(draw.choice(factors or [0]))
            left = left // sizes[-1] if sizes[-1] else 0
        if left != 1 or not sizes:
            sizes.append(draw.choice((left, -1)) if 0 not in sizes else left)
        draw.shuffle(sizes)
        return tuple(sizes)

    def call(self, tensor: torch.Tensor) -> Call:
        draw, dims = self.random, tensor.dim()
        name = draw.choice(_NAMES)
        args: tuple[Any, ...] = ()
        keys: tuple[str, ...] = ()
        if name == "narrow":
            dim = self.dim(dims)
            size = tensor.shape[dim] if -dims <= dim < dims else 2
            start = draw.randint(0, size) if draw.random() < 0.9 else -draw.randint(1, size + 1)
            rest = size - (start if start >= 0 else start + size)
            length = draw.randint(0, max(rest, 0)) if draw.random() < 0.97 else size + 1
            args, keys = (dim, start, length), ("dim", "start", "length")
        elif name == "view" and draw.random() < 0.25:
            args, keys = (draw.choice(DTYPES),), ("dtype",)
        elif name in ("view", "reshape"):
            sizes = self.sizes(tensor)
            args = (sizes,) if draw.random() < 0.5 else sizes
            keys = ("size" if name == "view" else "shape",) if args == (sizes,) else ()
        elif name == "__getitem__":
            args = (self.item(tensor),)
        elif name == "select":
            dim = self.dim(dims)
            args = (dim, self.index(tensor.shape[dim] if -dims <= dim < dims else 2))
            keys = ("dim", "index")
        elif name == "unsqueeze":
            args, keys = (self.dim(dims + 1),), ("dim",)
        elif name == "squeeze" and draw.random() < 0.6:
            args, keys = (self.dim(dims),), ("dim",)
        elif name == "transpose":
            args, keys = (self.dim(dims), self.dim(dims)), ("dim0", "dim1")
        elif name == "permute":
            order = list(range(dims))
            draw.shuffle(order)
            if draw.random() < 0.03:
                order.append(0)
            args, keys = (tuple(o - dims if draw.random() < 0.3 else o for o in order),), ("dims",)
        elif name == "flatten" and draw.random() < 0.7:
            args, keys = tuple(sorted((self.dim(dims), self.dim(dims)))), ("start_dim", "end_dim")
        elif name == "chunk":
            args, keys = (
                (draw.randint(0 if draw.random() < 0.05 else 1, 4), self.dim(dims)),
                (
                    "chunks",
                    "dim",
                ),
            )
        elif name == "split":
            args, keys = (draw.randint(1, 4), self.dim(dims)), ("split_size", "dim")
        elif name == "unbind":
            args, keys = (self.dim(dims),), ("dim",)
        return self.spelled(name, args, keys)

    def spelled(self, name: str, args: tuple[Any, ...], keys: tuple[str, ...]) -> Call:
        draw = self.random
        kwargs = {}
        by_function = name in _FUNCTIONS and draw.random() < 0.3
        if name == "reshape" and by_function and keys == ():
            args = (args,)
        if name == "split" and by_function:
            keys = ("split_size_or_sections", "dim")
        if len(keys) == len(args) and draw.random() < 0.3:
            first = draw.randrange(len(args) + 1)
            kwargs = dict(zip(keys[first:], args[first:], strict=True))
            args = args[:first]
        return ("torch." + name if by_function else name), args, kwargs


_FUNCTIONS = {
    *("narrow", "reshape", "select", "unsqueeze", "squeeze", "transpose", "t", "permute"),
    *("flatten", "chunk", "split", "unbind"),
}
_NAMES = (
    *("narrow", "narrow", "view", "view", "reshape", "__getitem__", "__getitem__", "select"),
    *("unsqueeze", "squeeze", "transpose", "t", "permute", "flatten", "contiguous"),
    *("chunk", "split", "unbind"),
)
