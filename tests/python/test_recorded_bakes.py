# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.32's own recorder saw of its loaders, replayed: families, and layers by themselves.

Each run of a loader is a group of lines: its copies, its fills, its writes of other values, and what
nothing reached. Where the old recorder gave up (a module that is not whole, a fill, a transform
after the copy), the same events are pieces, constants, kept regions, or opaque, as they should be.
"""

from __future__ import annotations

import collections
import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from crossmesh import DType, _core, dtype_from_name

DATA = Path(__file__).resolve().parent.parent / "data"
Line = dict[str, Any]
RUN = ("family", "vocab", "tp", "rank", "expert_placement")


def runs() -> list[tuple[str, list[Line]]]:
    with gzip.open(DATA / "golden_bake.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    grouped = collections.defaultdict(list)
    for line in lines:
        grouped[" ".join(str(line[key]) for key in RUN if key in line)].append(line)
    return list(grouped.items())


RUNS = runs()


def value_of(value: Any) -> Any:
    if isinstance(value, list):
        return [value_of(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "slice":
        return slice(*map(value_of, inner))
    return tuple(map(value_of, inner)) if kind == "tuple" else Ellipsis


def dtype_named(name: str) -> DType:
    dtype = dtype_from_name(name)
    assert dtype is not None
    return dtype


def chain_of(book: _core.ChainBook, dtype: DType, line: Line) -> int:
    chain, parts = book.start(dtype, tuple(line["source_shape"])), None
    for name, args, kwargs in line["chain"]:
        given = tuple(map(value_of, args))
        if parts is not None:
            chain, parts = parts[given[0]], None
        elif name in ("chunk", "unbind"):
            parts = book.apply_several(chain, name, given, kwargs)
        else:
            chain = book.apply(chain, name, given, kwargs)
    return chain


class Replay:
    """A run's events as a record. Elements are as wide as the copies into their parameter."""

    def __init__(self, lines: list[Line]) -> None:
        self.record, self.book = _core.BakeRecord(), _core.ChainBook()
        scatters = [line for line in lines if line["kind"] == "scatter"]
        shapes = {line["parameter"]: line for line in lines if "parameter_shape" in line}
        dtypes = {line["parameter"]: dtype_named(line["dtype"]) for line in scatters}
        self.dtypes = {name: dtypes.get(name, DType.bf16) for name in shapes}
        self.storages = {name: index for index, name in enumerate(shapes)}
        for name, line in shapes.items():
            shape = tuple(line["parameter_shape"])
            strides = tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
            self.record.add_parameter(
                name, self.dtypes[name], shape, strides, self.storages[name], 0, False
            )
        self.sources: dict[str, int] = {}
        for line in scatters:
            if line["source"] not in self.sources:
                self.sources[line["source"]] = len(self.sources)
                self.record.add_tensor(line["source"], self.dtype_of(line), line["source_shape"])
        last: dict[str, int] = {}
        for line in scatters:
            source = last[line["parameter"]] = self.sources[line["source"]]
            target = _core.TargetGeometry(
                dtype_named(line["dtype"]), tuple(line["shape"]), tuple(line["strides"])
            )
            chain = chain_of(self.book, self.dtype_of(line), line)
            self.record.copy(
                source, source, chain, self.storages[line["parameter"]], target, line["offset"]
            )
        for line in lines:
            name = str(line.get("parameter"))
            if line["kind"] not in ("fill", "write") or name not in self.storages:
                continue
            where = (
                self.storages[name],
                self.dtypes[name],
                tuple(line["shape"]),
                tuple(line["strides"]),
                line["offset"],
            )
            if line["kind"] == "fill":
                assert line["value"] == 0
                self.record.fill(last[name], 0, *where)
            else:
                self.record.write(last[name], [], line["op"], *where)

    def dtype_of(self, line: Line) -> DType:
        """Of the source: the chain's end, as no recorded chain views another dtype."""
        assert not any("dtype" in str(call) for call in line["chain"])
        return dtype_named(line["dtype"])

    def bake(self) -> _core.BakeResult:
        return _core.lay_out_record(self.record, self.book)


def elements(region: Any) -> set[int]:
    shape, strides, offset = region
    return {
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, shape))
    }


FATES: collections.Counter[str] = collections.Counter()


@pytest.mark.parametrize("lines", [lines for _, lines in RUNS], ids=[name for name, _ in RUNS])
def test_a_recorded_run_is_laid_out(lines: list[Line]) -> None:
    replay = Replay(lines)
    if not replay.sources:
        assert any(line["kind"] == "error" for line in lines)
        return  # the old recorder refused the first call
    result = replay.bake()
    written = {line["parameter"] for line in lines if line["kind"] == "write"}
    opaque = set()
    for name, index in replay.sources.items():
        FATES[result.fates[index]] += 1
        if result.fates[index] == "opaque":
            opaque.add(name)
            FATES[result.reason_of(index).partition(":")[0]] += 1
    transformed = {
        line["source"]
        for line in lines
        if line["kind"] == "scatter" and line["parameter"] in written
    }
    assert transformed <= opaque
    if any(line["kind"] == "error" for line in lines):
        return  # what followed is not known
    kept: dict[str, set[int]] = collections.defaultdict(set)
    for parameter, kind, region, _, _ in result.reserves:
        if kind == "kept":
            kept[parameter] |= elements(region)
    unreached = {line["parameter"]: line for line in lines if line["kind"] == "unreached"}
    whole_opaque = {
        p
        for p in unreached
        if any(
            "shares elements" in result.reason_of(replay.sources[n])
            or "overlap" in result.reason_of(replay.sources[n])
            for n in opaque
        )
    }
    for parameter, line in unreached.items():
        if parameter in whole_opaque:
            continue  # copies overlap there: all of it is the loader's
        assert len(kept[parameter]) == line["count"]
        for first, count in line["runs"]:
            assert set(range(first, first + count)) <= kept[parameter]
    assert all(p in unreached for p, places in kept.items() if places)


def test_recorded_runs_were_all_seen() -> None:
    if FATES.total() < 1000:
        pytest.skip("only some of the runs were replayed")
    assert dict(FATES) == {
        "baked": 6853,
        "opaque": 22,
        "aten.copy_.default": 21,  # the reasons: a transform after the copy,
        "a copy of no elements": 1,  # and a slice of nothing
        "overwritten": 17,
    }
