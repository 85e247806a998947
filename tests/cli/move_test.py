#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `crossmesh move` over families, meshes and routes, small enough to run them all.

What happens when a rank dies is tested elsewhere.
"""

from __future__ import annotations

import itertools
import json
import unittest
from typing import Any

from runs import CONFIGS, DONE, EVERY, ROUTES, STAGING, USAGE, Runs

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
TRAINERS = {"fsdp=3": 3, "fsdp=2,tp=2": 4, "dp_replicate=2,fsdp=2": 4}
ENGINES = {"tp=1": (1, 1), "tp=2": (1, 2), "tp=4": (1, 4), "replicas=2,tp=2": (2, 2)}


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


class Moves(Runs):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        for family in FAMILIES:
            cls.synth(family, family, "--shards", "2")

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

    def test_replicas_of_the_trainer_are_compared(self) -> None:
        for trainer in ("dp_replicate=2,fsdp=2", "fsdp=2,tp=2", "fsdp=3"):
            with self.subTest(trainer=trainer):
                found = self.move(self.model("qwen3"), "--trainer", trainer, "--engine", "tp=2",
                                  "--no-floor", "--check-replicas")
                self.assertIs(found["verified"], True)

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

    def test_digests_cover_all_or_each_tensor_once_in_sixteen_updates(self) -> None:
        for route, mode in itertools.product(ROUTES, ("on", "sampled", "off")):
            with self.subTest(route=route, mode=mode):
                found = self.move(
                    self.model("llama"), "--trainer", "fsdp=3", "--engine", "tp=2",
                    "--iterations", "16", "--no-floor", "--digest", mode, *ROUTES[route],
                )
                self.check(found, "llama", "tp=2", route)
                digest = found["digest"]
                each = [one["bytes_digested"] for one in found["iterations"]]
                expected = {"on": 16, "sampled": 1, "off": 0}[mode] * found["bytes_needed"]
                self.assertEqual(sum(each), expected)
                self.assertEqual(digest["mode"], mode)
                middle = sorted(each)
                self.assertEqual(digest["bytes_median"], (middle[7] + middle[8]) // 2)
                for seconds in ("engine_seconds_median", "trainer_seconds_median"):
                    self.assertEqual(digest[seconds] > 0, mode != "off", seconds)
                self.assertAlmostEqual(
                    digest["engine_share"],
                    digest["engine_seconds_median"] / found["seconds_median"])

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
        self.assertRegex(
            output, r"\ndigests sampled: [\d.]+ (?:Ki)?B an update; engines \d+\.\d{4} s in it "
            r"\(\d+%\), trainers \d+\.\d{4} s before it\n")

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
