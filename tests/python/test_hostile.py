# SPDX-License-Identifier: Apache-2.0
"""What is wrong is refused with an error that says what, before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_safetensors

import crossmesh

Facts = dict[str, str]


@pytest.fixture(scope="module")
def layout(config: crossmesh.ModelConfig) -> crossmesh.Layout:
    return crossmesh.lay_out(config, "tp=2")


@pytest.fixture
def arrays(layout: crossmesh.Layout) -> dict[str, Any]:
    return {p.name: np.zeros(layout.local_shape(0, p.name), np.uint16) for p in layout.parameters}


def refusal(call: Callable[[], object]) -> tuple[str, str, Facts]:
    with pytest.raises(crossmesh.Error) as raised:
        call()
    return raised.value.code, raised.value.summary, raised.value.facts


def test_indices_that_are_none(layout: crossmesh.Layout, catalog: crossmesh.Catalog) -> None:
    wrong: list[tuple[Callable[[], object], str, Facts]] = [
        (lambda: layout.pieces(-1, 0), "layout: no such rank", {"index": "-1", "count": "2"}),
        (lambda: layout.pieces(2, 0), "layout: no such rank", {"index": "2", "count": "2"}),
        (lambda: layout.pieces(0, 35), "layout: no such tensor", {"index": "35", "count": "35"}),
        (lambda: layout.pieces(0, "x"), "layout: no such tensor", {"name": "x"}),
        (lambda: layout.local_shape(0, -1), "layout: no such parameter",
         {"index": "-1", "count": "23"}),
        (lambda: layout.parameter_bytes(9, 0), "layout: no such rank", {"index": "9", "count": "2"}),
        (lambda: catalog["x"], "catalog: no such tensor", {"tensor": "x"}),
        (lambda: crossmesh.ParameterMemory.reserve(layout, -1), "memory: no such rank",
         {"index": "-1", "count": "2"}),
        (lambda: layout.mark_opaque("x*", ""), "mark opaque: no tensor of the engine matches",
         {"pattern": "x*"}),
    ]  # fmt: skip
    for call, summary, facts in wrong:
        assert refusal(call) == ("invalid_argument", summary, facts)
    with pytest.raises(TypeError):
        layout.pieces(2**70, 0)


def test_words_that_are_none(layout: crossmesh.Layout, catalog: crossmesh.Catalog) -> None:
    plan = crossmesh.compile(crossmesh.shard(catalog, "fsdp=2"), layout)
    route: Any = "fast"
    assert refusal(lambda: crossmesh.arrange(plan, route=route)) == (
        "invalid_argument", "route: no such word", {"word": "fast", "words": "direct, packed"},
    )  # fmt: skip
    side: Any = "both"
    assert refusal(lambda: crossmesh.arrange(plan).expand(side, 0))[2] == {
        "word": "both",
        "words": "source, target",
    }
    assert refusal(lambda: crossmesh.arrange(plan).expand("source", -1)) == (
        "invalid_argument", "expand: no such rank", {"index": "-1", "count": "2"},
    )  # fmt: skip
    assert refusal(lambda: crossmesh.is_castable("F32", ""))[2] == {"name": ""}
    assert refusal(lambda: crossmesh.make_shm("x", 0))[0] == "invalid_argument"
    assert refusal(lambda: crossmesh.make_inproc(crossmesh.InprocHub(), "0" * 32, -1))[0] == (
        "invalid_argument"
    )


def test_specs_that_are_none(catalog: crossmesh.Catalog, config: crossmesh.ModelConfig) -> None:
    assert refusal(lambda: crossmesh.shard(catalog, "fsdp=0"))[0] == "invalid_argument"
    assert refusal(lambda: crossmesh.shard(catalog, ""))[0] == "invalid_argument"
    assert refusal(lambda: crossmesh.lay_out(config, "tp=3"))[0] == "mismatch"
    assert refusal(lambda: crossmesh.lay_out(config, "fsdp=2"))[0] == "invalid_argument"


def test_a_plan_that_cannot_be_proven(
    catalog: crossmesh.Catalog, config: crossmesh.ModelConfig, layout: crossmesh.Layout
) -> None:
    fewer = crossmesh.Catalog([t for t in catalog if t.name != "model.norm.weight"])
    code, summary, facts = refusal(
        lambda: crossmesh.compile(crossmesh.shard(fewer, "fsdp=2"), layout)
    )
    assert (code, facts["tensor"]) == ("mismatch", "model.norm.weight")
    other = [
        crossmesh.TensorInfo(t.name, t.dtype, [41] if t.name == "model.norm.weight" else t.shape)
        for t in catalog
    ]
    code, summary, facts = refusal(
        lambda: crossmesh.compile(crossmesh.shard(crossmesh.Catalog(other), "fsdp=2"), layout)
    )
    assert (code, facts["tensor"]) == ("mismatch", "model.norm.weight")
    assert {"[41]", "[40]"} <= set(facts.values())


def test_catalogs_that_cannot_be() -> None:
    twice = [crossmesh.TensorInfo("w", "F32", [1])] * 2
    assert refusal(lambda: crossmesh.Catalog(twice))[0] == "invalid_argument"
    assert refusal(lambda: crossmesh.TensorInfo("w", "F32", [-1]))[0] == "invalid_argument"
    assert refusal(lambda: crossmesh.TensorInfo("w", "F32", [2**62, 2**62]))[0] in (
        "invalid_argument",
        "limit_exceeded",
    )
    assert refusal(lambda: crossmesh.TensorInfo("w", "F4", [3]))[0] == "invalid_argument"


def test_files_that_are_none(tmp_path: Path) -> None:
    assert refusal(lambda: crossmesh.read(tmp_path / "x"))[0] == "invalid_argument"
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 32)
    assert refusal(lambda: crossmesh.read(tmp_path / "x.safetensors"))[0] == "corrupt_file"
    write_safetensors(tmp_path / "x.safetensors", {"w": np.zeros((2, 3), np.uint16)})
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(whole[:-1])
    assert refusal(lambda: crossmesh.read(tmp_path / "x.safetensors"))[0] == "corrupt_file"
    assert refusal(lambda: crossmesh.read_config(tmp_path)) == (
        "invalid_argument", "read config: there is no config.json", {"path": str(tmp_path)},
    )  # fmt: skip
    (tmp_path / "config.json").write_bytes(b"\xff")
    assert refusal(lambda: crossmesh.read_config(tmp_path))[0] == "io_failed"
    assert refusal(lambda: crossmesh.parse_config("{"))[0] == "corrupt_file"
    assert refusal(lambda: crossmesh.read_layout(tmp_path / "none.json"))[0] == "io_failed"


def test_layouts_that_are_none(layout: crossmesh.Layout) -> None:
    read = crossmesh.Layout.from_json
    assert refusal(lambda: read("no json")) == (
        "corrupt_file", "read layout: the text is not JSON", {},
    )  # fmt: skip
    assert refusal(lambda: read("[" * 100_000 + "]" * 100_000))[0] in ("corrupt_file", "mismatch")
    good = json.loads(layout.to_json())
    for key in good:
        broken = {k: v for k, v in good.items() if k != key}
        with pytest.raises(crossmesh.Error):
            read(json.dumps(broken))
        with pytest.raises(crossmesh.Error):
            read(json.dumps(good | {key: {"not": "this"}}))


def memory_refusal(layout: crossmesh.Layout, arrays: dict[str, Any]) -> tuple[str, str, Facts]:
    return refusal(lambda: crossmesh.ParameterMemory(layout, 0, arrays))


NAME = "model.layers.0.mlp.down_proj.weight"


def test_arrays_that_do_not_fit(layout: crossmesh.Layout, arrays: dict[str, Any]) -> None:
    good = arrays[NAME]
    at = {"parameter": NAME, "rank": "0"}
    arrays[NAME] = good.T.copy()
    assert memory_refusal(layout, arrays) == (
        "mismatch", "memory: an array has another shape",
        at | {"layout": "[40, 28]", "array": "[28, 40]"},
    )  # fmt: skip
    arrays[NAME] = np.zeros((28, 40), np.uint16).T
    assert memory_refusal(layout, arrays) == (
        "mismatch", "memory: an array has other strides",
        at | {"shape": "[40, 28]", "layout": "[28, 1]", "array": "[1, 40]"},
    )  # fmt: skip
    arrays[NAME] = np.zeros((80, 28), np.uint16)[::2]
    assert memory_refusal(layout, arrays)[2]["array"] == "[56, 1]"
    arrays[NAME] = good[::-1]
    assert memory_refusal(layout, arrays)[2]["array"] == "[-28, 1]"
    arrays[NAME] = good.view(np.int16)
    assert memory_refusal(layout, arrays) == (
        "mismatch", "memory: an array has another dtype", at | {"layout": "BF16", "array": "I16"},
    )  # fmt: skip
    arrays[NAME] = good.astype(np.float32)
    assert memory_refusal(layout, arrays)[2]["array"] == "F32"
    del arrays[NAME]
    assert memory_refusal(layout, arrays) == (
        "invalid_argument", "memory: a parameter has no array", at,
    )  # fmt: skip
    arrays[NAME] = good
    arrays["stranger"] = good
    assert memory_refusal(layout, arrays) == (
        "invalid_argument", "memory: no parameter of this rank has this name",
        {"array": "stranger", "rank": "0"},
    )  # fmt: skip


@pytest.mark.parametrize("array", [None, 7, "text", [1, 2], object()])
def test_what_is_no_array(layout: crossmesh.Layout, arrays: dict[str, Any], array: Any) -> None:
    arrays[NAME] = array
    with pytest.raises(TypeError):
        crossmesh.ParameterMemory(layout, 0, arrays)


def test_memory_by_address(layout: crossmesh.Layout, arrays: dict[str, Any]) -> None:
    array = arrays[NAME]
    strides = tuple(stride // 2 for stride in array.strides)
    arrays[NAME] = crossmesh.ParameterArray(array.ctypes.data, "BF16", array.shape, strides, array)
    memory = crossmesh.ParameterMemory(layout, 0, arrays)
    array[3, 4] = 77
    assert memory.numpy(NAME)[3, 4] == 77
    assert refusal(
        lambda: crossmesh.ParameterArray(array.ctypes.data, "BF17", array.shape, strides, array)
    )[2] == {"name": "BF17"}
    assert refusal(
        lambda: crossmesh.ParameterArray(array.ctypes.data, "BF16", array.shape, (1,), array)
    )[2] == {"shape": "[40, 28]", "strides": "[1]"}
    arrays[NAME] = crossmesh.ParameterArray(0, "BF16", array.shape, strides, array)
    assert memory_refusal(layout, arrays) == (
        "invalid_argument", "memory: an array has no address", {"parameter": NAME, "rank": "0"},
    )  # fmt: skip


def test_buffers_of_every_kind_hold_parameters(
    layout: crossmesh.Layout, arrays: dict[str, Any]
) -> None:
    norm = "model.norm.weight"
    owned = bytearray(80)
    arrays[norm] = memoryview(owned).cast("H")
    memory = crossmesh.ParameterMemory(layout, 0, arrays)
    memory.numpy(norm)[:] = 258
    assert owned == b"\x02\x01" * 40
    with pytest.raises(BufferError):
        owned.clear()  # still held
    shared = crossmesh.reserve_shared("test", 128)
    arrays[norm] = np.frombuffer(memoryview(shared), np.uint16)[24:]
    memory = crossmesh.ParameterMemory(layout, 0, arrays, enclosing=[shared])
    memory.numpy(norm)[0] = 9
    assert bytes(shared)[48:50] == b"\x09\x00"


def test_read_only_arrays_give_and_do_not_take(
    catalog: crossmesh.Catalog, config: crossmesh.ModelConfig
) -> None:
    source, target = crossmesh.shard(catalog, "fsdp=1"), crossmesh.lay_out(config, "tp=1")

    def zeros(layout: crossmesh.Layout) -> dict[str, Any]:
        made = {}
        for parameter in layout.parameters:
            array = np.zeros(layout.local_shape(0, parameter.name), np.uint16)
            array.flags.writeable = parameter.name != "model.norm.weight"
            made[parameter.name] = array
        return made

    crossmesh.ParameterMemory(source, 0, zeros(source))
    memory = crossmesh.ParameterMemory(target, 0, zeros(target))
    assert not memory.numpy("model.norm.weight").flags.writeable
    session = crossmesh.Session(
        session="0" * 32, source_count=1, target_count=1, rank=1,
        transport=crossmesh.make_shm("0" * 32, 1),
    )  # fmt: skip
    assert refusal(lambda: session.agree(memory)) == (
        "invalid_argument", "memory: an array to take into is read-only",
        {"parameter": "model.norm.weight", "rank": "0"},
    )  # fmt: skip


@pytest.mark.parametrize("rank, trainers, engines", [(2, 1, 1), (-1, 1, 1), (0, 0, 1), (0, 1, -1)])
def test_sessions_that_cannot_be(rank: int, trainers: int, engines: int) -> None:
    def make() -> crossmesh.Session:
        return crossmesh.Session(
            session="0" * 32, source_count=trainers, target_count=engines, rank=rank,
            transport=crossmesh.make_shm("0" * 32, 0),
        )  # fmt: skip

    assert refusal(make) == (
        "invalid_argument",
        "session: the rank is outside the job",
        {"rank": str(rank), "trainer ranks": str(trainers), "engine ranks": str(engines)},
    )
