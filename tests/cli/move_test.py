#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move` over families, meshes and routes, small enough to run them all.

The binary is named by the environment variable CROSSMESH. What happens when a rank dies is tested
elsewhere.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

BINARY = os.path.abspath(os.environ.get("CROSSMESH", "build/dev/bin/crossmesh"))
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DONE, FAILED, USAGE = 0, 1, 2

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
TRAINERS = {"fsdp=3": 3, "fsdp=2,tp=2": 4, "dp_replicate=2,fsdp=2": 4}
ENGINES = {"tp=1": (1, 1), "tp=2": (1, 2), "tp=4": (1, 4), "replicas=2,tp=2": (2, 2)}
STAGING = 2048
# Under a sanitizer a move takes long; every seventh still meets each family, mesh and route.
EVERY = 7 if os.environ.get("CROSSMESH_SANITIZER") else 1
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
ROUTES = {"direct": (), "packed": ("--route", "packed", "--staging-bytes-max", str(STAGING))}


def rank_elements(config: dict[str, Any], tp: int) -> int:
    """Returns the elements of one engine rank's parameters, counted by hand from the config."""
    hidden = config["hidden_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    heads = config["num_attention_heads"] // tp
    kv_heads = max(1, config["num_key_value_heads"] // tp)
    inner = config["intermediate_size"] // tp
    vocabulary = -(-config["vocab_size"] // 64) * 64 // tp
    family = config["model_type"]
    qkv, out = (heads + 2 * kv_heads) * size, heads * size
    layer = (qkv + out + 3 * inner + 2) * hidden
    if family == "qwen3":
        layer += 2 * size
    if family == "qwen2" or (family == "llama" and config["attention_bias"]):
        layer += qkv
    if family == "llama" and config["attention_bias"]:
        layer += hidden
    if family == "llama" and config["mlp_bias"]:
        layer += 2 * inner + hidden
    tables = 1 if config["tie_word_embeddings"] else 2
    return tables * vocabulary * hidden + config["num_hidden_layers"] * layer + hidden


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


class Moves(unittest.TestCase):
    """Every run is judged by the command itself; the tests look at what it says."""

    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        for family in FAMILIES + EXPERT_FAMILIES + FLOAT8_FAMILIES:
            subprocess.run(
                [BINARY, "synth", cls.model(family), "--config", CONFIGS / f"small-{family}.json",
                 "--shards", "2"],
                check=True, capture_output=True,
            )
        for family in EXPERT_FAMILIES + FLOAT8_FAMILIES[1:]:
            subprocess.run(
                [BINARY, "synth", cls.model(family) + "-stacked", "--stacked-experts", "--config",
                 CONFIGS / f"small-{family}.json"],
                check=True, capture_output=True,
            )

    def setUp(self) -> None:
        self.maxDiff = None

    @classmethod
    def model(cls, family: str) -> str:
        return f"{cls.folder.name}/{family}"

    def run_binary(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [BINARY, "move", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=300,
        )
        hide = self.folder.name
        return done.returncode, done.stdout.replace(hide, "DIR"), done.stderr.replace(hide, "DIR")

    def move(self, *words: str) -> dict[str, Any]:
        """Returns the JSON of a move that must succeed and say nothing else."""
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (DONE, ""))
        return json.loads(output)

    def assert_refused(self, error_code: str, text: str, *words: str) -> None:
        self.assertEqual(self.run_binary(*words), (FAILED, "", f"crossmesh: {text}\n"))
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (FAILED, f"crossmesh: {text}\n"))
        self.assertEqual(json.loads(output)["error"], {"code": error_code, "text": text})

    def check(self, found: dict[str, Any], family: str, engine: str, route: str) -> None:
        """Checks the numbers that follow from the config and the meshes."""
        config = json.loads((CONFIGS / f"small-{family}.json").read_text())
        replicas, tp = ENGINES[engine]
        versions = len(found["iterations"])
        self.assertIs(found["verified"], True)
        self.assertEqual(found["elements_checked"],
                         versions * replicas * tp * rank_elements(config, tp))
        self.assertEqual([i["version"] for i in found["iterations"]], [*range(1, versions + 1)])
        self.assertEqual({i["bytes"] for i in found["iterations"]}, {found["bytes_needed"]})
        self.assertTrue(all(i["seconds"] > 0 for i in found["iterations"]))
        if route == "packed":
            self.assertGreater(found["staging_bytes_peak"], 0)
            self.assertLessEqual(found["staging_bytes_peak"], STAGING)
        else:
            self.assertEqual(found["staging_bytes_peak"], 0)
        for read, held in zip(found["source_bytes_read"], found["source_bytes_held"]):
            self.assertLessEqual(read, 1.1 * held)

    def test_every_family_mesh_and_route_is_verified(self) -> None:
        everything = [*itertools.product(FAMILIES, TRAINERS, ENGINES, ROUTES)]
        for family, trainer, engine, route in everything[::EVERY]:
            with self.subTest(family=family, trainer=trainer, engine=engine, route=route):
                found = self.move(
                    self.model(family), "--trainer", trainer, "--engine", engine,
                    "--iterations", "2", "--no-floor", *ROUTES[route],
                )
                self.check(found, family, engine, route)
                self.assertEqual((found["transport"], found["route"]), ("shm", route))
                self.assertEqual(len(found["source_bytes_read"]), TRAINERS[trainer])

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
        for form, (name, table) in itertools.product(("", "-stacked"), tables.items()):
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
            folder = f"{self.folder.name}/files-{files}"
            subprocess.run(
                [BINARY, "synth", folder, "--stacked-experts", "--shards", files, "--config",
                 CONFIGS / "small-qwen3-moe.json"],
                check=True, capture_output=True,
            )
            for side in (("--trainer", "ep=2"), ("--engine", "tp=2")):
                layouts.append(subprocess.run([BINARY, "layout", folder, *side], check=True,
                                              capture_output=True).stdout)
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
        for family, engine in itertools.product(FLOAT8_FAMILIES, FLOAT8_ENGINES):
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

    def test_threads_move_what_processes_move(self) -> None:
        for family, route in itertools.product(FAMILIES, ROUTES):
            with self.subTest(family=family, route=route):
                words = (self.model(family), "--trainer", "fsdp=3", "--engine", "replicas=2,tp=2",
                         "--iterations", "2", "--no-floor", *ROUTES[route])
                threads = self.move(*words, "--transport", "inproc")
                self.check(threads, family, "replicas=2,tp=2", route)
                self.assertEqual(threads["transport"], "inproc")
                processes = self.move(*words)
                for key in ("elements_checked", "bytes_needed", "bytes_unique",
                            "source_bytes_read"):
                    self.assertEqual(threads[key], processes[key], key)

    def test_casts_are_verified_on_both_routes(self) -> None:
        for dtype, route in itertools.product(("F32", "F16"), ROUTES):
            with self.subTest(dtype=dtype, route=route):
                found = self.move(
                    self.model("qwen3"), "--trainer", "fsdp=2,tp=2", "--engine", "tp=2",
                    "--iterations", "3", "--no-floor", "--param-dtype", dtype, *ROUTES[route],
                )
                self.check(found, "qwen3", "tp=2", route)

    def test_opaque_tensors_take_the_fallback_and_are_verified(self) -> None:
        config = json.loads((CONFIGS / "small-qwen3.json").read_text())
        for route in ROUTES:
            with self.subTest(route=route):
                found = self.move(
                    self.model("qwen3"), "--trainer", "fsdp=3", "--engine", "tp=2",
                    "--iterations", "2", "--no-floor", "--opaque", "*.v_proj.weight",
                    "--opaque", "model.embed_tokens.weight", *ROUTES[route],
                )
                self.check({**found, "staging_bytes_peak": STAGING if route == "packed" else 0},
                           "qwen3", "tp=2", route)
                values = config["num_hidden_layers"] * config["num_key_value_heads"]
                values *= config["head_dim"] * config["hidden_size"]
                whole = 2 * (values + config["vocab_size"] * config["hidden_size"])
                self.assertEqual(found["bytes_fallback"], 2 * whole)

    def test_the_floor_is_measured_beside_the_updates(self) -> None:
        found = self.move(self.model("llama"), "--trainer", "fsdp=2", "--engine", "tp=2")
        self.assertEqual(len(found["iterations"]), 3)
        self.assertGreater(found["floor_seconds_median"], 0)
        self.assertAlmostEqual(
            found["ratio_to_floor"], found["floor_seconds_median"] / found["seconds_median"]
        )

    def test_the_text_tells_that_it_was_verified(self) -> None:
        code, output, errors = self.run_binary(
            self.model("llama"), "--trainer", "fsdp=2", "--engine", "tp=2"
        )
        self.assertEqual((code, errors), (DONE, ""))
        self.assertRegex(output, r"^verified: 103152 elements checked over 3 updates\n")

    def test_what_cannot_be_moved_is_refused_before_anything_starts(self) -> None:
        model = self.model("llama")
        plan = ("--trainer", "fsdp=2", "--engine", "tp=2")
        self.assert_refused(
            "limit_exceeded",
            "arrange: an opaque tensor is larger than the fallback\n"
            "  tensor  lm_head.weight\n"
            "  tensor bytes  8080\n"
            "  fallback_bytes_max  100\n"
            "  hint  set fallback_bytes_max to the tensor's bytes or more",
            model, *plan, "--opaque", "lm_head.weight", "--fallback-bytes-max", "100",
        )
        self.assert_refused(
            "invalid_argument",
            "read trainer mesh: an axis is not known\n"
            "  spec  cp=2\n"
            "  axis  cp\n"
            "  known  pp, dp_replicate, fsdp, ep, etp, tp",
            model, "--trainer", "cp=2", "--engine", "tp=1",
        )
        self.assert_refused(
            "invalid_argument",
            "open model: there is no such file or folder\n  path  DIR/nowhere",
            self.model("nowhere"), *plan,
        )

    def test_usage(self) -> None:
        plan = (self.model("llama"), "--trainer", "fsdp=2", "--engine", "tp=2")
        for words in ((), plan[:3], (*plan, "--transport", "tcp"), (*plan, "--iterations", "0"),
                      (*plan, "--pause", "lunch"), (*plan, "--what")):
            with self.subTest(words=words[5:]):
                self.assertEqual(self.run_binary(*words)[0], USAGE)


if __name__ == "__main__":
    unittest.main()
