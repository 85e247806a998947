# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a small checkpoint that they write themselves."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import crossmesh

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGS = ROOT / "tests" / "data" / "configs"
Array = npt.NDArray[np.uint16]


def write_safetensors(path: Path, tensors: dict[str, Array]) -> None:
    """Writes BF16 tensors, given as bits, by the format's own rules."""
    header, at = {}, 0
    for name, bits in tensors.items():
        end = at + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


@pytest.fixture(scope="session")
def config_text() -> str:
    return (CONFIGS / "small-llama.json").read_text()


@pytest.fixture(scope="session")
def config(config_text: str) -> crossmesh.ModelConfig:
    return crossmesh.parse_config(config_text)


@pytest.fixture(scope="session")
def catalog(config: crossmesh.ModelConfig) -> crossmesh.Catalog:
    return crossmesh.tensors_of(config)


@pytest.fixture(scope="session")
def tensors(catalog: crossmesh.Catalog) -> dict[str, Array]:
    """The bits of every tensor; no two elements of a tensor are alike."""
    made = {}
    for index, tensor in enumerate(catalog):
        count = tensor.element_count
        values = (np.arange(count, dtype=np.uint32) * 2654435761 >> 8) + index * 977
        made[tensor.name] = (values % 32749).astype(np.uint16).reshape(tensor.shape)
    return made


@pytest.fixture(scope="session")
def folder(
    tmp_path_factory: pytest.TempPathFactory, config_text: str, tensors: dict[str, Array]
) -> Path:
    """A checkpoint in two files, with its config."""
    path = tmp_path_factory.mktemp("model")
    names = list(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        write_safetensors(path / file, {name: tensors[name] for name in part})
    (path / "config.json").write_text(config_text)
    return path
