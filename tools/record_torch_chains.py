#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what torch does with random chains of view operations.

Each line of the result is one chain: the calls, and torch's sizes, strides, storage offset and
dtype after them, or the exception and the call that raised it. Where torch copied, and no call
changed the dtype, the source elements are listed in order. The test of crossmesh/target/chain.h
reads the file; torch is needed only to write it anew.

    tools/record_torch_chains.py --chains 2500 tests/data/golden_torch_chains.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch

Call = list[Any]
SEVERAL = ("chunk", "unbind", "split")
DTYPES = ("bfloat16", "float32", "uint8", "float8_e4m3fn", "int64", "float16", "int8")
FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")


def decode(value: Any) -> Any:
    """Returns the Python value that a recorded argument stands for."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    (kind, inner), = value.items()
    if kind == "slice":
        return slice(*inner)
    if kind == "tuple":
        return tuple(decode(item) for item in inner)
    if kind == "ellipsis":
        return Ellipsis
    return getattr(torch, inner)


class Maker:
    """Makes calls that mostly fit the tensor at hand, in all their spellings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def dim(self, dims: int) -> int:
        """Returns a dimension, rarely one that is not there."""
        if self.random.random() < 0.04:
            return self.random.randint(-dims - 2, dims + 1)
        return self.random.randint(-dims, dims - 1) if dims else self.random.choice((-1, 0))

    def spell(self, name: str, values: list[Any], keywords: tuple[str, ...]) -> Call:
        """Returns a call with some of its last arguments by keyword."""
        by_keyword = self.random.choice((0, 0, 0, 1, len(values)))
        cut = max(len(values) - by_keyword, 0)
        return [name, values[:cut], dict(zip(keywords[cut:], values[cut:], strict=False))]

    def sequence(self, values: list[int], keyword: str) -> tuple[list[Any], dict[str, Any]]:
        """Returns integers as arguments, a tuple, a list or a keyword."""
        how = self.random.randrange(5)
        if how == 0 and values:
            return list(values), {}
        if how == 1:
            return [list(values)], {}
        if how == 2:
            return [], {keyword: {"tuple": list(values)}}
        return [{"tuple": list(values)}], {}

    def sizes(self, shape: list[int]) -> list[int]:
        """Returns sizes of as many elements, mostly."""
        count = math.prod(shape)
        if count == 0:
            return self.random.choice((shape, [0], [*shape, 1], [-1], [0, 3], [2, 0, -1]))
        sizes: list[int] = []
        rest = count
        while rest > 1 and len(sizes) < 4:
            divisors = [d for d in range(1, rest + 1) if rest % d == 0]
            sizes.append(self.random.choice(divisors[1:] if len(sizes) == 3 else divisors))
            rest //= sizes[-1]
        sizes.append(rest)
        if self.random.random() < 0.2:
            sizes[self.random.randrange(len(sizes))] = -1
        if self.random.random() < 0.04:
            sizes[self.random.randrange(len(sizes))] = self.random.choice((-2, 0, 7))
        return sizes

    def bound(self, extent: int) -> int | None:
        """Returns a start or stop of a slice."""
        return self.random.choice((None, self.random.randint(-extent - 1, extent + 1)))

    def index(self, shape: list[int]) -> Any:
        """Returns a basic index."""
        items: list[Any] = []
        for extent in shape[: self.random.randint(0, len(shape))]:
            how = self.random.random()
            if how < 0.35:
                items.append(self.random.randint(-extent, max(extent - 1, 0)))
            elif how < 0.8:
                step = self.random.choice((None, None, 1, 2, 3))
                items.append({"slice": [self.bound(extent), self.bound(extent), step]})
            elif how < 0.9:
                items.append({"slice": [None, None, None]})
            else:
                items.append(None)
        if self.random.random() < 0.25:
            items.insert(self.random.randint(0, len(items)), {"ellipsis": True})
        if self.random.random() < 0.04:
            items.append(self.random.choice((99, 1.5, "x", {"slice": [None, None, -1]})))
        if len(items) == 1 and self.random.random() < 0.7:
            return items[0]
        return {"tuple": items}

    def call(self, shape: list[int], dtype: str) -> Call:
        """Returns a call on a tensor of `shape`."""
        pick = self.random.choice
        dims = len(shape)
        name = pick(("narrow", "narrow", "view", "view", "view", "reshape", "reshape",
                     "__getitem__", "__getitem__", "__getitem__", "unsqueeze", "squeeze",
                     "transpose", "t", "permute", "permute", "flatten", "contiguous",
                     "contiguous", "chunk", "unbind", "split", "select", "dtype"))
        if name == "dtype":
            name, other = "view", pick((dtype, *DTYPES))
            value = {"dtype": other}
            return pick((["view", [value], {}], ["view", [], {"dtype": value}]))
        dim = self.dim(dims)
        extent = shape[dim] if -dims <= dim < dims else 3
        if name == "narrow":
            start = self.random.randint(-extent, extent)
            room = extent - start if start >= 0 else -start
            length = self.random.randint(0 if pick((True, False, False)) else min(1, room), room)
            if self.random.random() < 0.04:
                length += pick((-9, 1))
            return self.spell(name, [dim, start, length], ("dim", "start", "length"))
        if name == "__getitem__":
            return [name, [self.index(shape)], {}]
        if name in ("view", "reshape"):
            args, keywords = self.sequence(self.sizes(shape), "size" if name == "view" else "shape")
            return [name, args, keywords]
        if name == "permute":
            order = self.random.sample(range(dims), dims)
            order = [d - dims if pick((True, False, False)) else d for d in order]
            if order and self.random.random() < 0.05:
                order[0] = order[-1]
            args, keywords = self.sequence(order, "dims")
            return [name, args, keywords]
        if name == "squeeze":
            several = self.random.sample(range(dims), self.random.randint(0, dims))
            return pick(([name, [], {}], [name, [dim], {}], [name, [], {"dim": dim}],
                         [name, [{"tuple": several}], {}], [name, [several], {}]))
        if name == "flatten":
            ends = sorted((self.dim(dims), self.dim(dims)), key=lambda d: d % max(dims, 1))
            return self.spell(name, ends[: self.random.randint(0, 2)], ("start_dim", "end_dim"))
        if name == "contiguous":
            formats = {"memory_format": {"memory_format": pick(FORMATS)}}
            return [name, [], pick(({}, {}, {}, formats))]
        if name == "t":
            return [name, [], {}]
        if name == "chunk":
            return self.spell(name, [self.random.randint(1, 5), dim], ("chunks", "dim"))
        if name == "unbind":
            return self.spell(name, [dim], ("dim",))
        if name == "split":
            first = self.random.randint(0, extent)
            return self.spell(name, [pick((max(first, 1), [first, extent - first])), dim],
                              ("split_size", "dim"))
        if name == "select":
            return self.spell(name, [dim, self.random.randint(-extent, max(extent - 1, 0))],
                              ("dim", "index"))
        if name == "unsqueeze":
            return self.spell(name, [self.random.randint(-dims - 1, dims)], ("dim",))
        return self.spell(name, [dim, self.dim(dims)], ("dim0", "dim1"))


def apply(tensor: Any, call: Call) -> Any:
    """Makes one call on a tensor, or picks from a tuple."""
    name, args, keywords = call
    return getattr(tensor, name)(*[decode(value) for value in args],
                                 **{key: decode(value) for key, value in keywords.items()})


def record(maker: Maker, length: int) -> dict[str, Any]:
    """Returns one chain with what torch makes of it."""
    pick = maker.random.choice
    dims = pick((0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5))
    shape = [pick((0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 6, 8)) for _ in range(dims)]
    dtype = pick(DTYPES)
    line: dict[str, Any] = {"shape": shape, "dtype": dtype, "ops": []}
    tensor: Any = torch.zeros(shape, dtype=getattr(torch, dtype))
    numbered: Any = torch.arange(math.prod(shape)).reshape(shape)
    storage = tensor.untyped_storage()
    while len(line["ops"]) < length:
        call = maker.call(list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        line["ops"].append(call)
        try:
            tensor = apply(tensor, call)
            if call[0] in SEVERAL:
                if not tensor:
                    line["parts"] = 0
                    return line
                at = maker.random.randrange(len(tensor))
                line["ops"].append(["__getitem__", [at], {}])
                line["parts"] = len(tensor)
                tensor = tensor[at]
        except Exception as error:  # noqa: BLE001  whatever torch raises is what is recorded
            line["error_at"] = len(line["ops"]) - 1
            line["error_type"] = type(error).__name__
            return line
    line |= {"sizes": list(tensor.shape), "strides": list(tensor.stride()),
             "offset": tensor.storage_offset(), "result": str(tensor.dtype).removeprefix("torch.")}
    if tensor.untyped_storage()._cdata != storage._cdata:
        line["copied"] = True
        if all("dtype" not in json.dumps(call) for call in line["ops"]):
            for call in line["ops"]:
                numbered = apply(numbered, call)
            line["elements"] = numbered.flatten().tolist()
    return line


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--chains", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    maker = Maker(options.seed)
    lines: dict[str, None] = {}  # a set that keeps its order
    while len(lines) < options.chains:
        line = record(maker, maker.random.randint(1, 5))
        lines[json.dumps(line, separators=(",", ":"))] = None
    options.file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
