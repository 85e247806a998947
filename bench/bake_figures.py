# SPDX-License-Identifier: Apache-2.0
"""What recording a loader costs beside the load itself: vLLM's Qwen3-MoE at tiny sizes.

The model has the 18,867 names of Qwen3-30B-A3B. Rounds of both alternate on one core, and the
figure is the median of their paired ratios of processor seconds. A bake is whole: parameters are
put on meta, the loader runs, parameters are put back, and the layout is made and proven.

    PYTHONPATH=build/py/python taskset -c 0 python bench/bake_figures.py [--rounds 11]

Needs vLLM 0.32 with torch, beside crossmesh.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 32,
    "num_attention_heads": 2,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128,
}


def names_and_shapes() -> list[tuple[str, tuple[int, ...]]]:
    hidden, head, vocab = CONFIG["hidden_size"], CONFIG["head_dim"], CONFIG["vocab_size"]
    inner = CONFIG["moe_intermediate_size"]
    heads = CONFIG["num_attention_heads"] * head
    shapes: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (vocab, hidden))]
    for layer in range(CONFIG["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes += [
            (p + "self_attn.q_proj.weight", (heads, hidden)),
            (p + "self_attn.k_proj.weight", (head, hidden)),
            (p + "self_attn.v_proj.weight", (head, hidden)),
            (p + "self_attn.o_proj.weight", (hidden, heads)),
            (p + "self_attn.q_norm.weight", (head,)),
            (p + "self_attn.k_norm.weight", (head,)),
            (p + "input_layernorm.weight", (hidden,)),
            (p + "post_attention_layernorm.weight", (hidden,)),
            (p + "mlp.gate.weight", (CONFIG["num_experts"], hidden)),
        ]
        for expert in range(CONFIG["num_experts"]):
            q = f"{p}mlp.experts.{expert}."
            shapes += [
                (q + "gate_proj.weight", (inner, hidden)),
                (q + "up_proj.weight", (inner, hidden)),
                (q + "down_proj.weight", (hidden, inner)),
            ]
    return [*shapes, ("model.norm.weight", (hidden,)), ("lm_head.weight", (vocab, hidden))]


def build() -> Any:
    """vLLM's own model, weights only, in a world of one."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = EngineArgs(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        dtype="bfloat16",
    ).create_engine_config()
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
        with set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
            return initialize_model(vllm_config=config)


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds

    import crossmesh.torch
    import torch

    torch.set_num_threads(1)
    model = build()
    shapes = names_and_shapes()
    weights = [(name, torch.randn(shape).to(torch.bfloat16)) for name, shape in shapes]
    announced = [(name, shape, torch.bfloat16) for name, shape in shapes]
    load = lambda: model.load_weights(iter(weights))
    record = lambda: crossmesh.torch.bake(model, announced)
    load()
    first = seconds(record)
    loads, bakes = [], []
    for _ in range(rounds):
        loads.append(seconds(load))
        bakes.append(seconds(record))
    ratios = [bake / real for bake, real in zip(bakes, loads, strict=True)]
    print(f"{len(shapes)} names, {rounds} rounds of each, in processor seconds of one core")
    print(f"  load_weights  median {statistics.median(loads):.3f}")
    print(f"  bake          median {statistics.median(bakes):.3f}, the first {first:.3f}")
    print(f"  bake / load   median {statistics.median(ratios):.2f}, ", end="")
    print(f"least {min(ratios):.2f}, most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
