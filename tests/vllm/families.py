# SPDX-License-Identifier: Apache-2.0
"""Judges a family by real vLLM: does what was recorded of its loader do what the loader does?

    families.py --config FILE --tp 1,2,4 [--rank R] [--json] [--no-weights | --corrupt | --control]

Builds vLLM's model of a Hugging Face config, bakes its own `load_weights`, executes what was
recorded, and compares with what `load_weights` does: all parameters and buffers, over two patterns
of poison so that what is left alone shows; then, after vLLM's processing of loaded weights, these
again, and what every layer computes that runs alone. Safetensors beside FILE are loaded where there
are some, and else random ones. One line for each rank; the status is 1 where bytes are wrong.

--no-weights builds models of any size without memory, and bakes: how much is direct is arithmetic.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engine as engines

if TYPE_CHECKING:
    import torch
    from judge import Judgement, Recorded


@contextmanager
def model_folder(config_file: Path) -> Iterator[Path]:
    """Makes a folder of a model: the config under the name that is looked for, and its weights.

    A head_dim of null, which configs may have, is left out: transformers refuses it.
    """
    config = json.loads(config_file.read_text())
    if config.get("head_dim", 0) is None:
        del config["head_dim"]
    folder = Path(tempfile.mkdtemp(prefix="crossmesh-"))
    try:
        (folder / "config.json").write_text(json.dumps(config))
        for pattern in ("*.safetensors", "*.safetensors.index.json"):
            for file in config_file.parent.glob(pattern):
                (folder / file.name).symlink_to(file.resolve())
        yield folder
    finally:
        shutil.rmtree(folder)


class Control:
    """In place of a bake: the loader itself. What is judged by it is the judge."""

    def __init__(self, model: torch.nn.Module, tensors: list[tuple[str, Any, Any]]) -> None:
        self.model, self.names = model, [tensor[0] for tensor in tensors]
        self.opaque = {name: "the control loads everything" for name in self.names}
        self.direct_bytes_share = 0.0

    def apply(self, get_tensor: Callable[[str], torch.Tensor]) -> None:
        """Loads."""
        self.model.load_weights((name, get_tensor(name)) for name in self.names)


def bake(model: torch.nn.Module, tensors: list[tuple[str, Any, Any]]) -> Recorded:
    """Bakes with crossmesh."""
    import crossmesh.torch

    return crossmesh.torch.bake(model, tensors)


def bake_corrupted(model: torch.nn.Module, tensors: list[tuple[str, Any, Any]]) -> Recorded:
    """Bakes with one chain that is wrong: the first narrow that can is recorded one further on.

    Raises: AssertionError: no narrow can be moved, as where one rank takes whole tensors.
    """
    from crossmesh.torch._placeholder import RecordingTensor

    right = RecordingTensor.narrow
    moved = []

    def narrow(self: Any, dim: int, start: int, length: int) -> Any:
        if not moved and 0 < length and start + length < self.shape[dim]:
            moved.append((dim, start, length))
            start += 1
        return right(self, dim, start, length)

    RecordingTensor.narrow = narrow
    try:
        recorded = bake(model, tensors)
    finally:
        RecordingTensor.narrow = right
    assert moved, "the loader makes no narrow that can be moved"
    return recorded


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="a model's config.json")
    parser.add_argument("--tp", default="1", help="sizes of tensor parallelism, by commas")
    parser.add_argument("--rank", type=int, help="one rank; all of them when not given")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--no-weights", action="store_true", help="bake a model without memory")
    way.add_argument("--corrupt", action="store_true", help="record one chain wrong")
    way.add_argument("--control", action="store_true", help="the loader in place of the bake")
    return parser.parse_args(arguments)


def show(line: dict[str, Any], as_json: bool) -> None:
    """Prints a line."""
    if as_json:
        print(json.dumps(line), flush=True)
        return
    seconds = {k: "-" if v is None else f"{v * 1e3:.1f} ms" for k, v in line["seconds"].items()}
    print(
        f"{line['family']} tp={line['tp']} rank={line['rank']}: {line['outcome']}, "
        f"identical: {line['identical']}, direct: {line['direct_bytes_share']}, "
        f"bake {seconds['bake']}, load_weights {seconds['load_weights']}, "
        f"layers run: {line['layers_run']}",
        *(f"  {reason}" for reason in line["reasons"]),
        *(f"  not run: {layer}" for layer in line["layers_not_run"]),
        sep="\n",
        flush=True,
    )


def judge_config(options: argparse.Namespace) -> Iterator[Judgement]:
    """Yields a judgement for each tp and rank that was asked for."""
    import checkpoint
    import judge

    family = json.loads(options.config.read_text())["model_type"]
    way = bake_corrupted if options.corrupt else Control if options.control else bake
    with model_folder(options.config) as folder:
        values = None if options.no_weights else checkpoint.read_values(folder)
        if values is None:
            tensors = checkpoint.tensors_of(folder)
            values = {} if options.no_weights else checkpoint.random_values(tensors)
        for tp in map(int, options.tp.split(",")):
            ranks = range(tp) if options.rank is None else [options.rank]
            try:
                engine = engines.make_engine(folder, tp)
            except Exception as error:  # noqa: BLE001 (the engine's own failure is a result)
                for rank in ranks:
                    yield judge.failed(judge.Judgement(family, tp, rank), error)
                continue
            for rank in ranks:
                if options.no_weights:
                    yield judge.bake_alone(engine, family, rank, tensors, way)
                else:
                    yield judge.judge(engine, family, rank, values, way)


def main(arguments: list[str]) -> int:
    """Judges, and returns the status of the process."""
    options = parse_arguments(arguments)
    engines.start()
    logging.disable(logging.WARNING)
    good = True
    for line in judge_config(options):
        good = good and line.identical is not False
        show(dataclasses.asdict(line), options.json)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
