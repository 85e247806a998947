# SPDX-License-Identifier: Apache-2.0
"""The deciding half from Python: every noun and verb, on a small checkpoint."""

from __future__ import annotations

import html.parser
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONFIGS, Array

import crossmesh


@pytest.fixture(scope="module")
def source(catalog: crossmesh.Catalog) -> crossmesh.Layout:
    return crossmesh.shard(catalog, "fsdp=2")


@pytest.fixture(scope="module")
def target(config: crossmesh.ModelConfig, catalog: crossmesh.Catalog) -> crossmesh.Layout:
    return crossmesh.family(config, catalog, "tp=2")


@pytest.fixture(scope="module")
def plan(source: crossmesh.Layout, target: crossmesh.Layout) -> crossmesh.Plan:
    return crossmesh.compile(source, target)


def test_a_checkpoint_shows_its_bytes_where_they_lie(
    folder: Path, catalog: crossmesh.Catalog, tensors: dict[str, Array]
) -> None:
    checkpoint = crossmesh.read(folder)
    assert {t.name: t for t in checkpoint.catalog} == {t.name: t for t in catalog}
    assert [(f.path.name, f.tensor_count) for f in checkpoint.files] == [
        ("a.safetensors", 18),
        ("b.safetensors", 17),
    ]
    name = "model.layers.0.mlp.down_proj.weight"
    data, array = checkpoint.bytes(name), checkpoint.numpy(name)
    del checkpoint
    assert bytes(data) == tensors[name].tobytes()
    assert data.readonly and not array.flags.writeable
    assert array.dtype == np.uint16
    assert np.array_equal(array, tensors[name])
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_catalog_is_a_collection_of_tensors(catalog: crossmesh.Catalog) -> None:
    assert len(catalog) == len(catalog.tensors) == len(catalog.names) == 35
    assert [tensor.name for tensor in catalog] == catalog.names
    assert "lm_head.weight" in catalog and "lm_head.bias" not in catalog
    tensor = catalog["lm_head.weight"]
    assert (tensor.dtype, tensor.shape) == (crossmesh.DType.bf16, (101, 40))
    assert (tensor.element_count, tensor.byte_count) == (4040, 8080)
    assert catalog == crossmesh.Catalog(catalog.tensors)
    assert catalog != crossmesh.Catalog(catalog.tensors[1:])
    assert catalog != "catalog"
    assert crossmesh.TensorInfo("w", "bfloat16", [2]) == crossmesh.TensorInfo(
        "w", crossmesh.DType.bf16, (2,)
    )


def test_verbs_take_an_opened_checkpoint_for_its_catalog(
    folder: Path, config: crossmesh.ModelConfig
) -> None:
    checkpoint = crossmesh.read(folder)
    assert crossmesh.shard(checkpoint, "tp=2") == crossmesh.shard(checkpoint.catalog, "tp=2")
    assert crossmesh.family(config, checkpoint, "tp=2") == crossmesh.lay_out(config, "tp=2")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("small-*.json")), ids=lambda path: path.stem)
def test_every_family_is_planned_and_verified(path: Path) -> None:
    config = crossmesh.read_config(path)
    catalog = crossmesh.tensors_of(config)
    spec = "tp=1" if "fp8" in path.stem else "tp=2"
    plan = crossmesh.compile(
        crossmesh.shard(catalog, "dp_replicate=2"), crossmesh.family(config, catalog, spec)
    )
    verdict = crossmesh.verify(plan)
    assert verdict.right and verdict.faults == []
    assert "right" in verdict.explain()


def test_a_layout_answers_where_things_lie(target: crossmesh.Layout) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    (placed,) = target.pieces(1, name)
    assert target.parameters[placed.parameter].name == "model.layers.0.self_attn.qkv_proj.weight"
    assert (placed.piece.box.origin, placed.piece.box.shape) == ((10, 0), (10, 40))
    assert (placed.piece.view.offset, placed.piece.view.strides) == (20 * 40, (40, 1))
    parameter = target.parameters[placed.parameter].name
    assert target.has_parameter(0, parameter)
    assert target.local_shape(0, parameter) == (40, 40)
    assert target.local_strides(0, placed.parameter) == (40, 1)
    assert target.parameter_bytes(0, parameter) == 3200
    kinds = {r.kind for c in target.parameter_classes for r in c.reserves}
    assert kinds == {"fill"}
    assert target.replica_of_rank == [0, 0]


def test_layouts_survive_json(source: crossmesh.Layout, tmp_path: Path) -> None:
    again = crossmesh.Layout.from_json(source.to_json())
    assert again == source and again.fingerprint() == source.fingerprint()
    crossmesh.write_layout(source, tmp_path / "layout.json")
    assert crossmesh.read_layout(tmp_path / "layout.json") == source


def test_a_marked_tensor_is_opaque_and_the_layout_before_is_not(target: crossmesh.Layout) -> None:
    marked = target.mark_opaque("*.layers.0.*norm.weight", "asked for")
    assert marked.reasons == ["asked for"] and target.reasons == []
    opaque = [marked.tensors[i.tensor].name for i in marked.instances if i.opaque_reason == 0]
    assert opaque == [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
    ]


def test_a_plan_and_its_schedule_add_up(plan: crossmesh.Plan) -> None:
    assert plan.copy_count == sum(
        len(steps) for rank in range(2) for steps in crossmesh.arrange(plan).expand("target", rank)
    )
    schedule = crossmesh.arrange(plan, route="packed", staging_bytes_max=4096)
    totals = schedule.totals()
    assert (schedule.options.route, schedule.options.staging_bytes_max) == ("packed", 4096)
    assert sum(totals.egress_bytes) == sum(totals.ingress_bytes) == totals.bytes_needed
    given = [s for steps in schedule.expand("source", 0) for s in steps if s.peer == 1]
    taken = [s for steps in schedule.expand("target", 1) for s in steps if s.peer == 0]
    assert [(s.counts, s.source, s.target) for s in given] == [
        (s.counts, s.source, s.target) for s in taken
    ]
    assert schedule.plan == plan
    assert schedule.fingerprint() != crossmesh.arrange(plan).fingerprint()


def test_nouns_explain_themselves_alike_each_time(
    catalog: crossmesh.Catalog, source: crossmesh.Layout, plan: crossmesh.Plan
) -> None:
    for noun in (catalog, source, plan, crossmesh.arrange(plan), crossmesh.verify(plan)):
        assert noun.explain() == noun.explain() != ""
    assert catalog.explain().splitlines()[0] == "model.embed_tokens.weight  BF16  [101, 40]"


def html_of(noun: Any) -> str:
    """Asks as a notebook does."""
    text: str = noun._repr_html_()
    return text


class Table(html.parser.HTMLParser):
    """Reads the rows of a table, and fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {"caption": [], "th": [], "td": []}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[self.open[-1]].append(data)


def test_nouns_show_themselves_in_notebooks(plan: crossmesh.Plan, source: crossmesh.Layout) -> None:
    assert repr(plan) == (
        "Plan(source_ranks=2, target_ranks=2, classes=10, instances=35, copies=98)"
    )
    assert Table(html_of(plan)).texts == {
        "caption": ["Plan"],
        "th": ["source_ranks", "target_ranks", "classes", "instances", "copies"],
        "td": ["2", "2", "10", "35", "98"],
    }
    hostile = crossmesh.TensorInfo('<b>&"', "F32", [1])
    assert Table(html_of(hostile)).texts["td"] == ['<b>&"', "F32", "[1]"]
    schedule = crossmesh.arrange(plan)
    shown = [
        source, source.classes[0], source.bindings[0], source.parameter_classes[0],
        source.parameters[0], source.instances[0], source.classes[0].space,
        source.classes[0].pieces_of_role[0][0], source.classes[0].pieces_of_role[0][0].box,
        source.classes[0].pieces_of_role[0][0].view, plan.classes[0], plan.classes[0].copies[0],
        plan.instances[0], schedule, schedule.groups[0], schedule.options, schedule.totals(),
        schedule.expand("target", 0)[0][0], crossmesh.verify(plan), crossmesh.InprocHub(),
    ]  # fmt: skip
    for noun in shown:
        assert Table(html_of(noun)).texts["caption"] == [type(noun).__name__]
        assert repr(noun).startswith(f"{type(noun).__name__}(") and "\n" not in repr(noun)


def test_an_error_tells_its_parts_and_survives_pickling() -> None:
    with pytest.raises(crossmesh.Error) as raised:
        crossmesh.TensorInfo("w", "BF17", [1])
    error = raised.value
    text = (
        "dtype: no dtype has this name\n"
        "  name  BF17\n"
        "  hint  give a safetensors name such as BF16, or torch's such as bfloat16"
    )
    for seen in (error, pickle.loads(pickle.dumps(error))):
        assert str(seen) == text
        assert (seen.code, seen.summary, seen.facts, seen.hint) == (
            "invalid_argument",
            "dtype: no dtype has this name",
            {"name": "BF17"},
            "give a safetensors name such as BF16, or torch's such as bfloat16",
        )
    assert str(crossmesh.Error(error.code, error.summary, error.facts, error.hint)) == text
