#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move` over models with experts, and over float8, in all the forms they have."""

from __future__ import annotations

import itertools
import json
import subprocess
import unittest
from pathlib import Path
from typing import Any

from runs import BINARY, CONFIGS, EVERY, ROUTES, Runs

EXPERT_FAMILIES = ("mixtral", "qwen3-moe", "deepseek-v2", "deepseek-v3")
EXPERT_ENGINES = (
    "tp=1", "tp=2", "tp=4", "pp=2", "pp=3,tp=2", "tp=2,pp=3", "replicas=2,pp=2,tp=2",
    "tp=2,experts=linear", "dp=2,experts=linear", "dp=2,tp=2,experts=linear",
    "tp=4,experts=linear", "tp=2,experts=round_robin", "dp=2,experts=round_robin",
    "tp=2,dp=2,experts=round_robin", "pp=2,dp=2,experts=round_robin", "dp=2", "dp=2,tp=2",
    "tp=2,pp=2,dp=2",
)
STACKED_TRAINERS = ("fsdp=3", "fsdp=2,ep=2", "ep=3,etp=2", "pp=2,fsdp=2", "etp=2,tp=2")
STACKED_ENGINES = ("tp=1", "tp=2", "pp=2,dp=2", "tp=2,experts=linear",
                   "dp=2,tp=2,experts=round_robin")
FLOAT8_FAMILIES = ("qwen3-fp8", "qwen3-moe-fp8", "deepseek-v3-fp8")
FLOAT8_ENGINES = ("tp=1", "tp=2", "replicas=2,pp=2,tp=2", "tp=2,experts=linear",
                  "dp=2,tp=2,experts=round_robin")
BLOCK = 128  # rows and columns of a float8 weight that share a scale


def experts_held(count: int, ranks: int) -> list[int]:
    """Returns how many whole experts each rank holds: the first ranks take the remainder."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


Weights = list[tuple[int, int]]  # rows and columns of each


def mlp(inner: int, hidden: int) -> Weights:
    """Returns gate, up and down."""
    return [(inner, hidden), (inner, hidden), (hidden, inner)]


def attention(config: dict[str, Any], tp: int) -> tuple[Weights, int]:
    """Returns a rank's linear weights, and the elements of its norms."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"] // tp
    if config["model_type"].startswith("deepseek"):
        plain, rotary = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        value, rank, query = config["v_head_dim"], config["kv_lora_rank"], config["q_lora_rank"]
        weights = [(rank + rotary, hidden), (heads * (plain + value), rank),
                   (hidden, heads * value)]
        if query:
            return [*weights, (query, hidden), (heads * (plain + rotary), query)], rank + query
        return [*weights, (heads * (plain + rotary), hidden)], rank
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    kv_heads = max(1, config["num_key_value_heads"] // tp)
    keys = [(kv_heads * size, hidden)] * 2
    norms = 2 * size if config["model_type"].startswith("qwen3") else 0
    return [(heads * size, hidden), *keys, (hidden, heads * size)], norms


def experts_of(config: dict[str, Any]) -> int:
    """Returns how many experts are routed to."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((config[key] for key in keys if config.get(key)), 0)


def feed_forward(
    config: dict[str, Any], layer: int, mesh: dict[str, int], spread: bool
) -> tuple[Weights, Weights, int]:
    """Returns a rank's linear weights, those of an expert that it holds, and other elements."""
    hidden, tp, dp = config["hidden_size"], mesh.get("tp", 1), mesh.get("dp", 1)
    first = config.get("first_k_dense_replace", 0)
    if not experts_of(config) or layer < first or layer in config.get("mlp_only_layers", []):
        return mlp(config["intermediate_size"] // tp, hidden), [], 0
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    router = experts_of(config) * (hidden + (config.get("topk_method") == "noaux_tc"))
    shared = config.get("n_shared_experts", 0) * inner
    # Where tokens are dealt out to the ranks of tp, each runs the shared experts whole.
    shared //= 1 if spread and dp > 1 and tp > 1 else tp
    expert = mlp(inner // (1 if spread else dp * tp), hidden)
    return mlp(shared, hidden) if shared else [], expert, router


def instance_elements(config: dict[str, Any], mesh: dict[str, int], spread: bool) -> int:
    """Returns the elements of all ranks of one serving instance."""
    pp, dp, tp = (mesh.get(axis, 1) for axis in ("pp", "dp", "tp"))
    count, ranks, hidden = experts_of(config), dp * tp, config["hidden_size"]

    def size(weights: Weights) -> int:
        blocks = [-(-rows // BLOCK) * -(-columns // BLOCK) for rows, columns in weights]
        scales = sum(blocks) if "quantization_config" in config else 0
        return sum(rows * columns for rows, columns in weights) + scales

    held = experts_held(count, ranks) if spread else [count] * ranks
    table = -(-config["vocab_size"] // 64) * 64 // tp * hidden
    tables = 1 if config["tie_word_embeddings"] and pp == 1 else 2
    total = ranks * (tables * table + hidden)
    weights, norms = attention(config, tp)
    for layer in range(config["num_hidden_layers"]):
        more, expert, router = feed_forward(config, layer, mesh, spread)
        total += ranks * (size(weights) + size(more) + norms + router + 2 * hidden)
        total += sum(held) * size(expert)
    return total


class Experts(Runs):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for family in EXPERT_FAMILIES + FLOAT8_FAMILIES:
            cls.synth(family, family, "--shards", "2")
        for family in EXPERT_FAMILIES + FLOAT8_FAMILIES[1:]:
            cls.synth(family + "-stacked", family, "--stacked-experts")
        cls.synth("qwen3", "qwen3")

    def check_experts(
        self, family: str, engine: str, *words: str, trainer: str = "fsdp=3"
    ) -> None:
        config = json.loads(
            (CONFIGS / f"small-{family.removesuffix('-stacked')}.json").read_text()
        )
        axes = dict(word.split("=") for word in engine.split(","))
        spread = axes.pop("experts", "")
        mesh = {axis: int(size) for axis, size in axes.items()}
        found = self.move(
            self.model(family), "--trainer", trainer, "--engine", engine, "--iterations", "2",
            "--no-floor", *words,
        )
        self.assertIs(found["verified"], True)
        self.assertEqual(
            found["elements_checked"],
            2 * mesh.get("replicas", 1) * instance_elements(config, mesh, bool(spread)),
        )

    def test_every_family_with_experts_and_engine_is_verified(self) -> None:
        everything = [*itertools.product(EXPERT_FAMILIES, EXPERT_ENGINES)]
        for family, engine in everything[::EVERY]:
            with self.subTest(family=family, engine=engine):
                self.check_experts(family, engine, "--transport", "inproc")

    def test_stacked_experts_are_verified_from_every_trainer_into_every_engine(self) -> None:
        everything = [*itertools.product(EXPERT_FAMILIES, STACKED_TRAINERS, STACKED_ENGINES)]
        for family, trainer, engine in everything[:: 3 * EVERY]:
            with self.subTest(family=family, trainer=trainer, engine=engine):
                self.check_experts(family + "-stacked", engine, "--transport", "inproc",
                                   trainer=trainer)
        for family in FLOAT8_FAMILIES[1:]:
            for engine in ("tp=2", "dp=2,tp=2,experts=linear"):
                with self.subTest(family=family, engine=engine):
                    self.check_experts(family + "-stacked", engine, "--transport", "inproc",
                                       trainer="fsdp=2,ep=2")
        self.check_experts("qwen3-moe-stacked", "tp=2", *ROUTES["packed"])
        self.check_experts("mixtral-stacked", "tp=2", "--opaque", "*.gate_up_proj")

    def test_experts_of_every_coordinate_arrive_once_on_one_rank(self) -> None:
        for form, trainer in itertools.product(("", "-stacked"), ("ep=4", "ep=2,tp=2", "ep=2,etp=2")):
            with self.subTest(form=form, trainer=trainer):
                self.check_experts("mixtral" + form, "tp=1", "--transport", "inproc",
                                   trainer=trainer)

    def test_redundant_experts_are_verified_in_every_slot(self) -> None:
        # deepseek-v3 has three layers with six experts, each of them on one of two ranks or both.
        tables = {
            "one-row": [[5, 0, 1, 5, 2, 3, 4, 0]],
            "twice-on-a-rank": [[5, 0, 1, 5, 2, 3, 4, 4]],
            "row-by-row": [[0, 1, 2, 3, 4, 5, 0, 1], [5, 4, 3, 2, 1, 0, 1, 2],
                           [1, 0, 1, 0, 2, 3, 4, 5]],
        }
        everything = [*itertools.product(("", "-stacked"), tables.items())]
        for form, (name, table) in everything[::EVERY]:
            file = Path(self.folder.name) / f"{name}.json"
            file.write_text(json.dumps(table))
            for engine in ("tp=2,experts=linear", "dp=2,tp=2,experts=linear"):
                with self.subTest(form=form, table=name, engine=engine):
                    found = self.move(
                        self.model("deepseek-v3") + form, "--trainer", "fsdp=2,ep=2", "--engine",
                        engine, "--iterations", "2", "--no-floor", "--expert-slots", str(file),
                        "--transport", "inproc" if engine.startswith("dp") else "shm",
                    )
                    self.assertIs(found["verified"], True)
                    config = json.loads((CONFIGS / "small-deepseek-v3.json").read_text())
                    mesh = {"tp": 2, "dp": 2 if engine.startswith("dp") else 1}
                    more = 3 * 2 * 3 * config["moe_intermediate_size"] * config["hidden_size"]
                    self.assertEqual(found["elements_checked"],
                                     2 * (instance_elements(config, mesh, True) + more))

    def test_slots_that_do_not_fit_are_refused_before_anything_starts(self) -> None:
        file = Path(self.folder.name) / "slots.json"
        model = (self.model("deepseek-v3"), "--trainer", "fsdp=2", "--engine",
                 "tp=2,experts=linear", "--expert-slots", str(file))
        file.write_text("[[0, 1, 2, 3, 4, 4]]")
        self.assert_refused("invalid_argument",
                            "lay out: no slot holds an expert\n  expert  5\n  slots  6", *model)
        file.write_text("[0, 1, 2]")
        self.assert_refused(
            "corrupt_file",
            "read expert slots: it is no list of rows of experts\n"
            "  file  DIR/slots.json\n"
            "  hint  write [[0, 1, 2, 0]]: a row for all layers, or one for each that has experts",
            *model,
        )

    def test_a_checkpoint_of_one_file_is_that_of_several(self) -> None:
        layouts = []
        for files in ("1", "3"):
            self.synth(f"files-{files}", "qwen3-moe", "--stacked-experts", "--shards", files)
            for side in (("--trainer", "ep=2"), ("--engine", "tp=2")):
                words = [BINARY, "layout", self.model(f"files-{files}"), *side]
                layouts.append(subprocess.run(words, check=True, capture_output=True).stdout)
        self.assertEqual(layouts[:2], layouts[2:])
        self.assertIn(b"experts.gate_up_proj", layouts[0])

    def test_a_checkpoint_without_experts_is_refused(self) -> None:
        dense = Path(self.model("qwen3"))
        copy = Path(self.model("qwen3-without-experts"))
        copy.mkdir()
        for file in dense.glob("*.safetensors*"):
            (copy / file.name).symlink_to(file)
        (copy / "config.json").write_bytes((CONFIGS / "small-qwen3-moe.json").read_bytes())
        self.assert_refused(
            "mismatch",
            "find experts: the checkpoint has none of them\n"
            "  missing  model.layers.0.mlp.experts.0.gate_proj.weight\n"
            "  or  model.layers.0.mlp.experts.gate_up_proj\n"
            "  folder  DIR/qwen3-without-experts",
            str(copy), "--trainer", "fsdp=2", "--engine", "tp=2",
        )

    def test_float8_and_its_scales_are_verified(self) -> None:
        everything = [*itertools.product(FLOAT8_FAMILIES, FLOAT8_ENGINES)]
        for family, engine in everything[::EVERY]:
            if family == "qwen3-fp8" and "experts" in engine:
                continue
            with self.subTest(family=family, engine=engine):
                self.check_experts(family, engine, "--transport", "inproc")
        self.check_experts("qwen3-moe-fp8", "tp=2", *ROUTES["packed"])
        self.check_experts("deepseek-v3-fp8", "tp=2", "--opaque", "*_scale_inv")

    def test_float8_that_a_cut_would_part_is_refused_before_anything_starts(self) -> None:
        self.assert_refused(
            "unsupported",
            "lay out: a cut falls inside a block of scales\n"
            "  box  [0:64, 0:200]\n"
            "  weight  [256, 200]\n"
            "  block  128\n"
            "  tensor  model.layers.{}.mlp.gate_proj.weight_scale_inv",
            self.model("qwen3-fp8"), "--trainer", "fsdp=2", "--engine", "tp=4",
        )

    def test_processes_move_experts_on_both_routes(self) -> None:
        for family, route in itertools.product(EXPERT_FAMILIES, ROUTES):
            for engine in ("pp=3,tp=2", "dp=2,tp=2,experts=round_robin"):
                with self.subTest(family=family, route=route, engine=engine):
                    self.check_experts(family, engine, *ROUTES[route])


if __name__ == "__main__":
    unittest.main()
