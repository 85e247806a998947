# SPDX-License-Identifier: Apache-2.0
"""Torch's tensors as parameters: they cross by DLPack, and nothing links torch."""

from __future__ import annotations

from typing import Any

import pytest

import crossmesh

torch: Any = pytest.importorskip("torch", reason="torch is not in this environment")


@pytest.fixture
def layout(config: crossmesh.ModelConfig) -> crossmesh.Layout:
    return crossmesh.lay_out(config, "tp=2")


@pytest.fixture
def parameters(layout: crossmesh.Layout) -> dict[str, Any]:
    return {
        p.name: torch.zeros(layout.local_shape(0, p.name), dtype=torch.bfloat16)
        for p in layout.parameters
    }


NAME = "model.layers.0.mlp.down_proj.weight"


def test_tensors_are_used_where_they_lie(
    layout: crossmesh.Layout, parameters: dict[str, Any]
) -> None:
    memory = crossmesh.ParameterMemory(layout, 0, parameters)
    parameters[NAME][3, 4] = 1.0
    assert memory.numpy(NAME)[3, 4] == 0x3F80
    again = torch.from_dlpack(memory.dlpack(NAME))
    assert (again.dtype, again.data_ptr()) == (torch.bfloat16, parameters[NAME].data_ptr())


def test_parameters_that_learn_are_used_where_they_lie(
    layout: crossmesh.Layout, parameters: dict[str, Any]
) -> None:
    parameters[NAME] = torch.nn.Parameter(parameters[NAME])
    memory = crossmesh.ParameterMemory(layout, 0, parameters)
    memory.numpy(NAME)[:] = 0x3F80
    assert torch.equal(parameters[NAME], torch.ones_like(parameters[NAME]))


def test_what_does_not_fit_is_refused(layout: crossmesh.Layout, parameters: dict[str, Any]) -> None:
    wrong = {
        "dtype": parameters[NAME].half(),
        "shape": parameters[NAME][:, :1],
        "strides": torch.zeros(28, 40, dtype=torch.bfloat16).t(),
    }
    for what, tensor in wrong.items():
        with pytest.raises(crossmesh.Error) as raised:
            crossmesh.ParameterMemory(layout, 0, parameters | {NAME: tensor})
        assert raised.value.code == "mismatch"
        assert raised.value.summary.endswith(what)
    with pytest.raises(TypeError):
        meta = torch.empty(40, 28, dtype=torch.bfloat16, device="meta")
        crossmesh.ParameterMemory(layout, 0, parameters | {NAME: meta})


def test_a_checkpoint_s_tensor_becomes_torch_s(folder: Any, tensors: dict[str, Any]) -> None:
    tensor = torch.from_dlpack(crossmesh.read(folder).dlpack(NAME))
    assert tensor.dtype == torch.bfloat16
    assert tensor.view(torch.uint16).numpy().tobytes() == tensors[NAME].tobytes()
