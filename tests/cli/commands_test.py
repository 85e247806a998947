#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the binary as a user does: exit codes, whole texts, whole JSON.

The binary is named by the environment variable CROSSMESH. `move` has its own tests.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

BINARY = os.environ.get("CROSSMESH", "build/dev/bin/crossmesh")
CONFIGS = Path(__file__).resolve().parent.parent / "data" / "configs"
DONE, FAILED, USAGE = 0, 1, 2

# A small model whose every number can be checked by hand: 4 heads of 2, 2 KV heads, 2 layers.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 10,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LAYER = {
    "input_layernorm.weight": [8],
    "self_attn.q_proj.weight": [8, 8],
    "self_attn.k_proj.weight": [4, 8],
    "self_attn.v_proj.weight": [4, 8],
    "self_attn.o_proj.weight": [8, 8],
    "post_attention_layernorm.weight": [8],
    "mlp.gate_proj.weight": [16, 8],
    "mlp.up_proj.weight": [16, 8],
    "mlp.down_proj.weight": [8, 16],
}

Shapes = dict[str, list[int]]


def shapes() -> Shapes:
    """Returns the tensors of CONFIG."""
    found = {"model.embed_tokens.weight": [10, 8]}
    for layer in range(2):
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in LAYER.items()}
    return found | {"model.norm.weight": [8], "lm_head.weight": [10, 8]}


def elements(shape: list[int]) -> int:
    """Returns the product of a shape."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def write_file(path: Path, tensors: Shapes, fill: dict[str, int] | None = None) -> None:
    """Writes a safetensors file of BF16 tensors, each filled with one byte."""
    header: dict[str, Any] = {}
    data = b""
    for name, shape in tensors.items():
        part = bytes([(fill or {}).get(name, 1)]) * (2 * elements(shape))
        header[name] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Commands(unittest.TestCase):
    """What every test needs: a folder, and the binary run in it."""

    def setUp(self) -> None:
        self.maxDiff = None
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_binary(self, *words: str | Path) -> tuple[int, str, str]:
        """Returns the exit code, the output, and the errors with this test's folder as DIR."""
        done = subprocess.run(
            [os.path.abspath(BINARY), *map(str, words)],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=300,
        )
        hide = str(self.folder)
        return done.returncode, done.stdout.replace(hide, "DIR"), done.stderr.replace(hide, "DIR")

    def json_of(self, *words: str | Path) -> Any:
        """Returns the JSON of a command that must succeed and say nothing else."""
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (DONE, ""))
        return json.loads(output)

    def assert_refused(self, error_code: str, text: str, *words: str | Path) -> None:
        """Checks the exit code, the error's text, and the same error as JSON."""
        self.assertEqual(self.run_binary(*words), (FAILED, "", f"crossmesh: {text}\n"))
        code, output, errors = self.run_binary(*words, "--json")
        self.assertEqual((code, errors), (FAILED, f"crossmesh: {text}\n"))
        self.assertEqual(json.loads(output), {"error": {"code": error_code, "text": text}})

    def write_model(
        self, tensors: Shapes | None = None, fill: dict[str, int] | None = None, **config: Any
    ) -> Path:
        """Writes CONFIG, changed, and its tensors into `model`."""
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIG | config))
        write_file(model / "model.safetensors", shapes() if tensors is None else tensors, fill)
        return model


class Usage(Commands):
    """A command line that is not understood ends with 2 and says what is wrong."""

    def test_usage_errors_end_with_2_and_name_the_word(self) -> None:
        plan = ("plan", "m", "--trainer", "fsdp=2", "--engine", "tp=1")
        rows = [
            ("no command", (), "A subcommand is required"),
            ("an unknown command", ("fly",), "A subcommand is required"),
            ("plan without a trainer", ("plan", "m", "--engine", "tp=1"), "--trainer is required"),
            ("plan without an engine", ("plan", "m", "--trainer", "tp=1"), "--engine is required"),
            ("synth without a config", ("synth", "d"), "--config is required"),
            ("read without a path", ("read",), "PATH is required"),
            ("a seed that is no number", ("synth", "d", "--config", "c", "--seed", "x"),
             "Could not convert: --seed = x"),
            ("no shards", ("synth", "d", "--config", "c", "--shards", "0"),
             "--shards: Value 0 not in range 1 to 99999"),
            ("a size that is none", (*plan, "--staging-bytes-max", "64kB"),
             "--staging-bytes-max: 64kB is not a size such as 65536, 64KiB or 1.5GiB"),
            ("a size of nothing", (*plan, "--fallback-bytes-max", "0"),
             "--fallback-bytes-max: 0 is not a size such as 65536, 64KiB or 1.5GiB"),
            ("a route that is none", (*plan, "--route", "x"),
             "--route: x is neither direct nor packed"),
            ("a dtype that is none", (*plan, "--param-dtype", "float33"),
             "--param-dtype: float33 is not a dtype"),
            ("an unknown option", (*plan, "--what"),
             "The following argument was not expected: --what"),
        ]
        for name, words, text in rows:
            with self.subTest(name):
                code, output, errors = self.run_binary(*words)
                expected = f"{text}\nRun with --help for more information.\n"
                self.assertEqual((code, output, errors), (USAGE, "", expected))

    def test_help_and_version_end_with_0(self) -> None:
        self.assertEqual(self.run_binary("--version"), (DONE, "crossmesh 0.1.0\n", ""))
        for words in (["--help"], ["plan", "--help"], ["synth", "--help"], ["move", "--help"]):
            code, output, errors = self.run_binary(*words)
            self.assertEqual((code, errors), (DONE, ""))
            self.assertIn("Usage: crossmesh", output)

    def test_a_result_that_cannot_be_written_is_an_error(self) -> None:
        write_file(self.folder / "a.safetensors", {"a": [1]})
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [os.path.abspath(BINARY), "read", "a.safetensors"],
                cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            )
        self.assertEqual(
            (done.returncode, done.stderr),
            (FAILED, "crossmesh: print: standard output does not take the result\n"
                     "  system  No space left on device\n"),
        )


class Read(Commands):
    """`read` lists what a checkpoint holds."""

    def test_text_and_json(self) -> None:
        write_file(self.folder / "a.safetensors", {"w": [3, 500], "b": [3]})
        self.assertEqual(
            self.run_binary("read", "a.safetensors"),
            (DONE,
             "tensor  dtype  shape         size  file\n"
             "w       BF16   [3, 500]  2.93 KiB  a.safetensors\n"
             "b       BF16   [3]            6 B  a.safetensors\n"
             "2 tensors, 2.94 KiB (3,006 bytes), 1 file\n", ""),
        )
        found = self.json_of("read", "a.safetensors", "--only", "b")
        size = (self.folder / "a.safetensors").stat().st_size
        self.assertEqual(found, {
            "tensor_count": 2,
            "bytes": 3006,
            "files": [{"path": "a.safetensors", "bytes": size, "tensors": 2, "metadata": {}}],
            "tensors": [{"name": "b", "dtype": "BF16", "shape": [3], "bytes": 6,
                         "file": "a.safetensors", "offset": size - 6}],
        })

    def test_no_checkpoint_at_the_path(self) -> None:
        self.assert_refused(
            "invalid_argument", "read: there is no checkpoint at this path\n  file  nowhere",
            "read", "nowhere",
        )

    def test_a_truncated_file_is_refused_with_its_numbers(self) -> None:
        path = self.folder / "a.safetensors"
        write_file(path, {"w": [3, 5]})
        path.write_bytes(path.read_bytes()[:-1])
        code, output, errors = self.run_binary("read", path)
        self.assertEqual((code, output), (FAILED, ""))
        for fact in ("DIR/a.safetensors", "w", "30", "29"):
            self.assertIn(fact, errors)


class Info(Commands):
    """`info` tells what the machine can do, and why not."""

    def test_every_field_is_there(self) -> None:
        found = self.json_of("info")
        self.assertEqual(
            list(found),
            ["processor", "cores", "cores_online", "features", "copy_path", "memory_bytes",
             "memory_available_bytes", "page_bytes", "transparent_huge_pages",
             "transparent_huge_pages_shared", "transports", "copy_bytes_per_second",
             "copy_buffer_bytes", "limits"],
        )
        # Whether processes may attach to one another is the system's to say.
        attach = found["transports"][2]["available"]
        self.assertEqual(
            [(t["name"], t["available"]) for t in found["transports"]],
            [("inproc", True), ("shm", True), ("attach", attach), ("ring", True), ("ucx", False)],
        )
        self.assertTrue(all(t["why"] for t in found["transports"]))
        self.assertEqual(list(found["limits"]),
                         ["open_files_max", "locked_bytes_max", "dev_shm_bytes", "ptrace_scope",
                          "user_namespaces"])
        self.assertGreater(found["copy_bytes_per_second"]["memcpy"], 1e6)
        self.assertGreater(found["copy_bytes_per_second"]["streaming"], 1e6)

    def test_the_text_names_each_transport(self) -> None:
        code, output, errors = self.run_binary("info")
        self.assertEqual((code, errors), (DONE, ""))
        for line in ("inproc     yes", "shm        yes", "attach     ", "ring       yes",
                     "ucx        no"):
            self.assertIn(f"\n{line}", output)


class Synth(Commands):
    """`synth` makes a checkpoint that depends on the config and the seed alone."""

    def synth(self, name: str, *words: str) -> dict[str, bytes]:
        config = CONFIGS / "small-qwen3.json"
        found = self.json_of("synth", name, "--config", config, *words)
        self.assertEqual((found["folder"], found["model"]), (name, "Qwen3ForCausalLM"))
        self.assertEqual((self.folder / name / "config.json").read_text(), config.read_text())
        tensors = {}
        for tensor in self.json_of("read", name)["tensors"]:
            data = (self.folder / name / tensor["file"]).read_bytes()
            tensors[tensor["name"]] = data[tensor["offset"]:][:tensor["bytes"]]
        self.assertEqual(len(tensors), found["tensors"])
        self.assertEqual(sum(map(len, tensors.values())), found["bytes"])
        return tensors

    def test_equal_seeds_give_equal_bytes_whatever_the_shards(self) -> None:
        one = self.synth("one", "--seed", "7")
        self.assertEqual(self.synth("three", "--seed", "7", "--shards", "3"), one)
        self.assertEqual(len(list((self.folder / "three").glob("*.safetensors"))), 3)
        other = self.synth("other", "--seed", "8")
        self.assertEqual(list(other), list(one))
        for name in one:
            self.assertNotEqual(other[name], one[name], name)

    def test_a_file_that_may_not_grow_is_an_error(self) -> None:
        command = [BINARY, "synth", "one", "--config", str(CONFIGS / "small-qwen3.json")]
        done = subprocess.run(["bash", "-c", 'ulimit -f 16; exec "$@"', "bash", *command],
                              cwd=self.folder, text=True, capture_output=True)
        self.assertEqual(done.returncode, FAILED, done.stderr)
        self.assertRegex(done.stderr, "^crossmesh: write: .*\\n  reason  File too large\\n")
        self.assertEqual(list((self.folder / "one").glob("*")), [])

    def test_a_checkpoint_is_replaced_only_when_asked(self) -> None:
        self.synth("one")
        words = ("synth", "one", "--config", CONFIGS / "small-qwen3.json")
        self.assert_refused(
            "invalid_argument",
            "write: the folder holds a checkpoint\n"
            "  found  model.safetensors\n"
            "  folder  one\n"
            "  hint  give an empty folder, or remove the checkpoint",
            *words,
        )
        self.assertEqual(self.run_binary(*words, "--replace")[0], DONE)

    def test_a_config_that_is_not_there_or_not_a_file(self) -> None:
        self.assert_refused(
            "invalid_argument",
            "open model: there is no such file or folder\n  path  nowhere",
            "synth", "d", "--config", "nowhere",
        )
        self.write_model()
        self.assert_refused(
            "invalid_argument",
            "synth: --config is a folder\n"
            "  folder  model\n"
            "  hint  give the config.json itself",
            "synth", "d", "--config", "model",
        )


PLAN = ("--trainer", "fsdp=2", "--engine", "tp=2")


class Plan(Commands):
    """`plan` tells what would move, and refuses what cannot."""

    def test_every_field_and_number(self) -> None:
        self.write_model()
        found = self.json_of("plan", "model", *PLAN)
        self.assertEqual(
            sorted(found.pop("seconds")), ["arrange", "catalog", "compile", "layout", "total"]
        )
        self.assertGreater(found.pop("peak_rss_bytes"), 1 << 20)
        self.assertRegex(found.pop("fingerprint"), "^[0-9a-f]{32}$")
        self.assertGreater(found.pop("classes"), 0)
        self.assertGreater(found.pop("copies"), 0)
        whole = 2 * sum(map(elements, shapes().values()))
        norms = 2 * 8 * 5
        # Ten rows of vocabulary lie whole in the first 32 of 64: engine rank 1 has padding only.
        vocabulary = 2 * 10 * 8 * 2
        cut = whole - norms - vocabulary
        self.assertEqual(found, {
            "model": "LlamaForCausalLM",
            "trainer": "fsdp=2",
            "engine": "tp=2",
            "trainer_ranks": 2,
            "engine_ranks": 2,
            "replicas": 1,
            "tensors": 21,
            "parameters": 15,
            "groups": 4,
            "bytes_model": whole,
            "bytes_unique": whole,
            "bytes_needed": whole + norms,
            "bytes_fallback": 0,
            "egress_bytes": [(whole + norms) // 2] * 2,
            "ingress_bytes": [cut // 2 + norms + vocabulary, cut // 2 + norms],
            "unused": [],
            "part": None,
        })

    def test_the_part_of_one_rank(self) -> None:
        self.write_model()
        whole = self.json_of("plan", "model", *PLAN)
        for side, key in [("trainer", "egress_bytes"), ("engine", "ingress_bytes")]:
            parts = [self.json_of("plan", "model", *PLAN, "--part", f"{side}:{rank}")["part"]
                     for rank in range(2)]
            self.assertEqual([part["bytes"] for part in parts], whole[key])
            self.assertEqual(sum(part["copies"] for part in parts), whole["copies"])
            for rank, part in enumerate(parts):
                self.assertEqual((part["side"], part["rank"], part["peers"]), (side, rank, 2))
                self.assertGreater(part["seconds"], 0)
        self.assertRegex(self.run_binary("plan", "model", *PLAN, "--part", "engine:1")[1],
                         r"\npart +engine 1: \d+ copies, .*, 2 peers, expanded in ")
        self.assert_refused("invalid_argument",
                            "plan: the side has fewer ranks\n  part  engine:2\n  ranks  2",
                            "plan", "model", *PLAN, "--part", "engine:2")
        for part in ["engine", "engine:", "engine:-1", "engine:1x", "replica:0", ":"]:
            self.assert_refused("invalid_argument",
                                f"plan: this is no rank of a side\n  part  {part}\n"
                                "  hint  trainer:0 or engine:3",
                                "plan", "model", *PLAN, "--part", part)

    def test_a_mixture_of_experts_is_planned_from_its_config(self) -> None:
        for name, trainer, engine, expected in [
            ("qwen3-30b-a3b", "fsdp=8", "replicas=2,tp=4",
             {"tensors": 18867, "parameters": 48 * 9 + 3, "bytes_unique": 61064245248}),
            ("kimi-k2", "fsdp=16,ep=16", "dp=16,tp=8,experts=linear",
             {"tensors": 69975, "engine_ranks": 128, "bytes_unique": 2052816510976}),
        ]:
            found = self.json_of("plan", CONFIGS / f"{name}.json", "--trainer", trainer,
                                 "--engine", engine)
            self.assertEqual({key: found[key] for key in expected}, expected)

    def test_a_config_alone_is_planned_like_its_checkpoint(self) -> None:
        self.write_model()
        keep = ("tensors", "bytes_needed", "egress_bytes", "fingerprint", "copies", "classes")
        whole = self.json_of("plan", "model", *PLAN)
        alone = self.json_of("plan", "model/config.json", *PLAN)
        self.assertEqual({k: alone[k] for k in keep}, {k: whole[k] for k in keep})

    def test_replicas_and_casts_multiply_what_is_needed(self) -> None:
        self.write_model()
        one = self.json_of("plan", "model", "--trainer", "fsdp=2", "--engine", "tp=1")
        two = self.json_of("plan", "model", "--trainer", "fsdp=2", "--engine", "replicas=2,tp=1")
        cast = self.json_of(
            "plan", "model", "--trainer", "fsdp=2", "--engine", "tp=1", "--param-dtype", "F32"
        )
        self.assertEqual(one["bytes_needed"], one["bytes_model"])
        self.assertEqual((two["bytes_needed"], two["replicas"]), (2 * one["bytes_needed"], 2))
        self.assertEqual(two["bytes_unique"], one["bytes_unique"])
        # Bytes are the source's; only the fingerprint tells that they are converted.
        self.assertEqual(cast["bytes_needed"], one["bytes_needed"])
        self.assertNotEqual(cast["fingerprint"], one["fingerprint"])

    def test_opaque_tensors_take_the_fallback_whole(self) -> None:
        self.write_model()
        plain = self.json_of("plan", "model", *PLAN)
        found = self.json_of("plan", "model", *PLAN, "--opaque", "*.q_proj.weight")
        fallback = 2 * (2 * 8 * 8) * 2
        self.assertEqual(found["bytes_fallback"], fallback)
        self.assertEqual(found["bytes_needed"], plain["bytes_needed"] + fallback // 2)
        self.assertEqual(sum(found["egress_bytes"]), found["bytes_needed"])
        self.assertEqual(sum(found["ingress_bytes"]), found["bytes_needed"])

    def test_only_shows_every_copy_of_what_matches(self) -> None:
        self.write_model()
        code, output, errors = self.run_binary(
            "plan", "model", "--trainer", "fsdp=3", "--engine", "tp=2",
            "--only", "model.layers.1.self_attn.k_proj.weight",
        )
        self.assertEqual((code, errors), (DONE, ""))
        totals, shown = output.split("\n\n", 1)
        self.assertEqual(
            [line.split()[0] for line in totals.splitlines()],
            ["model", "trainer", "engine", "tensors", "plan", "bytes", "fallback", "egress",
             "ingress", "fingerprint", "time"],
        )
        # Four rows on three ranks are 2, 2 and 0: chunks of two rows, and the last rank has none.
        self.assertEqual(
            shown,
            "model.layers.1.self_attn.k_proj.weight  BF16 [4, 8]"
            "  to model.layers.1.self_attn.qkv_proj.weight\n"
            "  trainer  engine  elements  source place  target place  bytes\n"
            "        0       0  [16]      0 by [1]      32 by [1]      32 B\n"
            "        1       1  [16]      0 by [1]      32 by [1]      32 B\n",
        )

    def test_the_text_takes_layers_together(self) -> None:
        self.write_model()
        code, output, errors = self.run_binary("plan", "model", *PLAN)
        self.assertEqual((code, errors), (DONE, ""))
        table = output.split("\n\n", 1)[1].splitlines()
        self.assertEqual(len(table), 1 + 3 + 9)
        self.assertEqual(
            table[3].split(),
            ["model.layers.*.self_attn.q_proj.weight", "2", "BF16", "[8,", "8]",
             "model.layers.*.self_attn.qkv_proj.weight", "4", "256", "B"],
        )

    def test_an_extra_tensor_is_listed_as_unused(self) -> None:
        self.write_model(shapes() | {"model.layers.0.rotary.inv_freq": [4]})
        found = self.json_of("plan", "model", *PLAN)
        self.assertEqual([u["name"] for u in found["unused"]], ["model.layers.0.rotary.inv_freq"])
        self.assertTrue(found["unused"][0]["why"])
        self.assertEqual(found["tensors"], 22)
        self.assertEqual(found["bytes_model"], found["bytes_unique"] + 8)
        self.assertIn("\nunused\n  model.layers.0.rotary.inv_freq  ",
                      self.run_binary("plan", "model", *PLAN)[1])

    def test_a_tied_twin_is_unused_when_equal_and_refused_when_not(self) -> None:
        self.write_model(tie_word_embeddings=True)
        found = self.json_of("plan", "model", *PLAN)
        self.assertEqual([u["name"] for u in found["unused"]], ["lm_head.weight"])
        self.assertIn("tied", found["unused"][0]["why"])

        self.write_model(fill={"lm_head.weight": 2}, tie_word_embeddings=True)
        self.assert_refused(
            "mismatch",
            "check tied: lm_head differs from the embedding that the config ties it to\n"
            "  tensor  lm_head.weight\n"
            "  tied to  model.embed_tokens.weight\n"
            "  file  model/model.safetensors\n"
            "  first byte that differs  0\n"
            "  bytes  160\n"
            "  hint  set tie_word_embeddings to false in config.json if the two are meant to "
            "differ",
            "plan", "model", *PLAN,
        )

    def test_what_the_config_needs_must_be_there_in_its_shape(self) -> None:
        wanted = shapes()
        wanted.pop("model.layers.1.mlp.up_proj.weight")
        self.write_model(wanted)
        self.assert_refused(
            "mismatch",
            "compile: the source lacks a tensor that is wanted\n"
            "  tensor  model.layers.1.mlp.up_proj.weight\n"
            "  shape  [16, 8]\n"
            "  parameter  model.layers.1.mlp.gate_up_proj.weight\n"
            "  model  model\n"
            "  hint  the checkpoint and the engine's config are of different models",
            "plan", "model", *PLAN,
        )
        self.write_model(shapes() | {"model.norm.weight": [9]})
        self.assert_refused(
            "mismatch",
            "compile: a tensor has another shape than the engine wants\n"
            "  tensor  model.norm.weight\n"
            "  source shape  [9]\n"
            "  target shape  [8]\n"
            "  parameter  model.norm.weight\n"
            "  model  model\n"
            "  hint  the checkpoint and the engine's config are of different models",
            "plan", "model", *PLAN,
        )

    def test_specs_that_cannot_be(self) -> None:
        self.write_model()
        rows = [
            ("fsdp=2,fsdp=3", "tp=1", "invalid_argument",
             "read spec: an axis is given twice\n"
             "  spec  fsdp=2,fsdp=3\n"
             "  word  fsdp=3\n"
             "  hint  write axis=size,..., for example fsdp=2,tp=2"),
            ("data=2", "tp=1", "invalid_argument",
             "read trainer mesh: an axis is not known\n"
             "  spec  data=2\n"
             "  axis  data\n"
             "  known  pp, dp_replicate, fsdp, ep, etp, tp"),
            ("fsdp=2", "ranks=2", "invalid_argument",
             "read engine mesh: an axis is not known\n"
             "  spec  ranks=2\n"
             "  axis  ranks\n"
             "  known  replicas, pp, dp, tp, experts"),
            ("fsdp=two", "tp=1", "invalid_argument",
             "read spec: a size is not a number in its range\n"
             "  spec  fsdp=two\n"
             "  axis  fsdp\n"
             "  size  two\n"
             "  range  1 to 1000000"),
        ]
        for trainer, engine, code, text in rows:
            with self.subTest(trainer=trainer, engine=engine):
                self.assert_refused(code, text, "plan", "model", "--trainer", trainer,
                                    "--engine", engine)

    def test_what_cannot_be_cut_or_is_quantised(self) -> None:
        self.write_model()
        self.assert_refused("mismatch", "lay out: tp does not divide an extent\n"
                            "  axis  tp=8\n"
                            "  extent  num_attention_heads=4", "plan", "model", "--trainer", "fsdp=2",
                            "--engine", "tp=8")
        self.write_model(quantization_config={"quant_method": "fp8"})
        self.assert_refused("unsupported",
                            "read config: the quantisation is not served\n"
                            "  key  quantization_config\n"
                            "  method  \"fp8\"\n"
                            "  weight_block_size  not given\n"
                            "  known  [128,128]\n"
                            "  file  model/config.json", "plan", "model", *PLAN)

    def test_bounds_that_are_too_small_name_the_number_that_would_do(self) -> None:
        self.write_model()
        self.assert_refused(
            "limit_exceeded",
            "arrange: an opaque tensor is larger than the fallback\n"
            "  tensor  lm_head.weight\n"
            "  tensor bytes  160\n"
            "  fallback_bytes_max  159\n"
            "  hint  set fallback_bytes_max to the tensor's bytes or more",
            "plan", "model", *PLAN, "--opaque", "lm_head.weight", "--fallback-bytes-max", "159",
        )
        self.assertEqual(
            self.run_binary("plan", "model", *PLAN, "--opaque", "lm_head.weight",
                            "--fallback-bytes-max", "160")[0], DONE)

    def test_patterns_that_match_nothing(self) -> None:
        self.write_model()
        self.assert_refused("invalid_argument",
                            "mark opaque: no tensor of the engine matches\n  pattern  x*",
                            "plan", "model", *PLAN, "--opaque", "x*")
        self.assertEqual(
            self.run_binary("plan", "model", *PLAN, "--only", "x*"),
            (FAILED, "", "crossmesh: plan: no tensor matches --only\n  pattern  x*\n"))

    def test_a_path_that_is_no_model(self) -> None:
        self.assert_refused(
            "invalid_argument",
            "open model: there is no such file or folder\n  path  nowhere",
            "plan", "nowhere", *PLAN,
        )


if __name__ == "__main__":
    unittest.main()
