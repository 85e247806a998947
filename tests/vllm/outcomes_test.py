# SPDX-License-Identifier: Apache-2.0
"""What a judgement says of bakes that refuse, that leave a model changed, and that are wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import checkpoint
import crossmesh.torch
import engine as engines
import pytest
import table
import torch
from families import model_folder
from judge import Judgement, judge


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[engines.Engine, dict[str, torch.Tensor]]]:
    """A small model's engine at tp=1, and its weights."""
    engines.start()
    logging.disable(logging.WARNING)
    with model_folder(table.SMALL / "qwen2.json") as folder:
        values = checkpoint.random_values(checkpoint.tensors_of(folder))
        yield engines.make_engine(folder, 1), values


def judged(model: tuple[engines.Engine, dict[str, torch.Tensor]], bake: Any) -> Judgement:
    engine, values = model
    return judge(engine, "qwen2", 0, values, bake)


def test_a_refusal_is_an_outcome_with_its_reason(model: Any) -> None:
    def refuse(model: torch.nn.Module, tensors: Any) -> Any:
        raise NotImplementedError("bake: the loader needs values")

    line = judged(model, refuse)
    assert (line.outcome, line.identical) == ("refused", None)
    assert line.reasons == ["bake: the loader needs values"]


def test_a_bake_that_raises_anything_else_is_no_outcome(model: Any) -> None:
    def fail(model: torch.nn.Module, tensors: Any) -> Any:
        raise ValueError("a crash")

    with pytest.raises(ValueError, match="a crash"):
        judged(model, fail)


def test_a_bake_must_leave_bytes_as_they_were(model: Any) -> None:
    def write(model: torch.nn.Module, tensors: Any) -> Any:
        next(model.parameters()).view(-1)[3] = 1.0
        return crossmesh.torch.bake(model, tensors)

    with pytest.raises(AssertionError) as raised:
        judged(model, write)
    assert str(raised.value).startswith(
        "the bake left the model changed: parameter model.embed_tokens.weight differs in 2 of "
    )


def test_a_bake_must_leave_parameters_and_loaders_as_they_were(model: Any) -> None:
    def replace(model: torch.nn.Module, tensors: Any) -> Any:
        parameter = model.model.embed_tokens.weight
        loader = parameter.weight_loader
        parameter.weight_loader = lambda *arguments: loader(*arguments)
        return crossmesh.torch.bake(model, tensors)

    with pytest.raises(AssertionError) as raised:
        judged(model, replace)
    assert str(raised.value) == (
        "the bake left the model changed: parameters, buffers or loaders are other objects"
    )


def test_one_tensor_in_another_order_is_not_identical(model: Any) -> None:
    class Backwards:
        """A bake that moves one tensor backwards."""

        def __init__(self, model: torch.nn.Module, tensors: Any) -> None:
            self.recorded = crossmesh.torch.bake(model, tensors)
            self.opaque: dict[str, str] = {}
            self.direct_bytes_share = 1.0

        def apply(self, get_tensor: Any) -> None:
            def other(name: str) -> torch.Tensor:
                value = get_tensor(name)
                return value.flip(0) if name == "model.norm.weight" else value

            self.recorded.apply(other)

    line = judged(model, Backwards)
    assert (line.outcome, line.identical) == ("baked", False)
    assert line.reasons[0].startswith("over 0x5A: parameter model.norm.weight differs in ")
    assert line.reasons[-1].startswith("what layers compute: output 0 of model.norm differs in ")
