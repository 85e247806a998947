# SPDX-License-Identifier: Apache-2.0
"""Real vLLM models of a config, weights only: no server, no cache, no tokenizer.

One process stands for any tensor-parallel rank. Its group has one member; the size and rank that
models ask for are overwritten before a model is built. Layers keep both, so that they are then what
they are on that rank of a real group.

Source: vLLM 0.32 on CPU. `world_size` and `rank_in_group` of its tensor-parallel coordinator, and
what it calls `static_forward_context`, are not public.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "GLOG_minloglevel": "2",
}


@dataclass
class Engine:
    """A process's place in vLLM, for one config and one size of tensor parallelism."""

    folder: Path
    vllm_config: Any
    tp: int
    has_groups: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What parameters are made of, where a layer does not say otherwise."""
        return self.vllm_config.model_config.dtype

    @contextmanager
    def rank(self, rank: int) -> Iterator[None]:
        """Makes this process rank `rank` of the tensor-parallel group while models are built."""
        from vllm.config import set_current_vllm_config
        from vllm.distributed import parallel_state

        with set_current_vllm_config(self.vllm_config):
            if not self.has_groups:
                _make_groups()
                self.has_groups = True
            group = parallel_state.get_tp_group()
            group.world_size, group.rank_in_group = self.tp, rank
            try:
                yield
            finally:
                group.world_size, group.rank_in_group = 1, 0

    def build(self, device: str = "cpu") -> torch.nn.Module:
        """Builds the model as vLLM does before it loads weights.

        Requires: inside `rank`.
        """
        import torch
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.utils.torch_utils import set_default_torch_dtype

        # Layers enter themselves by name, and refuse a second of the same name.
        self.vllm_config.compilation_config.static_forward_context.clear()
        with set_default_torch_dtype(self.dtype), torch.device(device):
            model = initialize_model(
                vllm_config=self.vllm_config, model_config=self.vllm_config.model_config
            )
        return model.eval().requires_grad_(False)

    def enter(self, model: torch.nn.Module) -> None:
        """Makes a model the one whose layers are found by name, which the last built is."""
        layers = self.vllm_config.compilation_config.static_forward_context
        layers.update((name, module) for name, module in model.named_modules() if name in layers)

    def process(self, model: torch.nn.Module) -> None:
        """Does to loaded weights what vLLM does before it serves them."""
        import torch
        from vllm.model_executor.model_loader.utils import process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        with set_default_torch_dtype(self.dtype):
            process_weights_after_loading(model, self.vllm_config.model_config, torch.device("cpu"))


def start() -> None:
    """Readies this process for vLLM: quiet, offline, alone, on one thread.

    One thread makes sums come out the same in every run, bit for bit.
    """
    os.environ.update(QUIET)
    import torch

    torch.set_num_threads(1)


def make_engine(folder: Path, tp: int) -> Engine:
    """Configures vLLM for `folder`/config.json. Requires: start() was called."""
    from vllm.config import (
        CompilationConfig,
        DeviceConfig,
        LoadConfig,
        ModelConfig,
        ParallelConfig,
        VllmConfig,
    )

    _know_architectures(json.loads((folder / "config.json").read_text()))
    model_config = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, enforce_eager=True, dtype="auto"
    )
    vllm_config = VllmConfig(
        model_config=model_config,
        load_config=LoadConfig(),
        parallel_config=ParallelConfig(tensor_parallel_size=tp, distributed_executor_backend="mp"),
        device_config=DeviceConfig(device="cpu"),
        compilation_config=CompilationConfig(mode=0),
    )
    return Engine(folder, vllm_config, tp)


def _know_architectures(config: dict[str, Any]) -> None:
    """Imports a config's model classes here, where vLLM would start a process to look at each."""
    from vllm import ModelRegistry

    for name in config.get("architectures", []):
        entry = ModelRegistry.models.get(name)
        if entry is not None:
            ModelRegistry.register_model(name, entry.load_model_cls())


def _make_groups() -> None:
    """Makes vLLM's groups for its current config, in a world of one over gloo."""
    import torch
    from vllm.distributed import parallel_state

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), world_size=1, rank=0
        )
        parallel_state.init_distributed_environment(
            world_size=1, rank=0, local_rank=0, backend="gloo"
        )
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(1, 1, backend="gloo")
