# SPDX-License-Identifier: Apache-2.0
"""The judge judged: poison, pictures, and layouts taken apart."""

from __future__ import annotations

import json

import memory
import pytest
import torch
from layout_elements import HOLE, NEXT, LayoutText


class Model(torch.nn.Module):
    """Two names of one storage, a view into another, and a buffer that nobody may poison."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 80), requires_grad=False)
        self.twin = self.weight
        self.register_buffer("scale", torch.zeros(3, dtype=torch.bfloat16)[1:])
        self.register_buffer("map", torch.arange(5))


def test_patterns_differ_in_every_byte_and_tell_places_apart() -> None:
    model = Model()
    pictures = []
    for pattern in memory.PATTERNS:
        memory.poison(model, pattern)
        pictures.append(memory.picture(model))
    first, second = (taken["parameter weight"] for taken in pictures)
    assert first.numel() == 4 * 80 * 4
    assert not (first == second).any()
    rows = first.reshape(4, -1)
    assert len({tuple(row.tolist()) for row in rows}) == 4
    assert model.map.tolist() == [0, 1, 2, 3, 4]


def test_what_was_saved_is_restored() -> None:
    model = Model()
    before = memory.picture(model)
    saved = memory.save(model)
    memory.poison(model, memory.PATTERNS[0])
    assert memory.difference(before, memory.picture(model)) is not None
    memory.restore(model, saved)
    assert memory.difference(before, memory.picture(model)) is None


def test_a_difference_names_tensor_byte_and_values() -> None:
    model = Model()
    before = memory.picture(model)
    model.weight[1, 2] = 1.0
    assert memory.difference(before, memory.picture(model)) == (
        "parameter weight differs in 2 of 1280 bytes, first in byte 330: 0x80 and not 0x00; "
        "and 1 more tensors"
    )
    del model.scale
    assert memory.difference(before, memory.picture(model)) == "not the same tensors: buffer scale"


LAYOUT = {
    "rank_count": 2,
    "tensors": [["a", "BF16", [4, 2]]],
    "bindings": [[[0, 2, 1]]],
    "classes": [
        {
            "dtype": "BF16",
            "factors": [2, 2, 2],
            "factor_count": [2, 1],
            "roles": [[[[0, 1, 0], [2, 1, 2], 0, [2, 0, 1]]], []],
        }
    ],
    "parameter_classes": [
        {
            "dtype": "BF16",
            "roles": [[[3, 2], [2, 1]], [[1], [1]]],
            "reserves": [["fill", 0, [2], 4, [1], 7, "padding"]],
        }
    ],
    "parameters": [["p", 0, 0, 0], ["twin", 0, 0, 0]],
    "instances": [[0, 0, 0, 0, 0, -1]],
}


def test_a_layout_is_taken_apart_element_by_element() -> None:
    layout = LayoutText(json.dumps(LAYOUT))
    # Rows 1 and 3 of `a`, then two elements of padding.
    elements = layout.elements(0, {"a": 3})
    assert {name: found.tolist() for name, found in elements.items()} == {
        "p": [3 * NEXT + element for element in (2, 3, 6, 7)] + [-9, -9]
    }
    assert layout.elements(1, {"a": 3}) == {}
    assert layout.shape(0, 1) == (3, 2)


def test_a_place_that_is_said_twice_is_no_layout() -> None:
    twice = {**LAYOUT, "instances": LAYOUT["instances"] * 2}
    with pytest.raises(AssertionError, match="p: a place is said twice"):
        LayoutText(json.dumps(twice)).elements(0, {"a": 0})
    assert HOLE == -1
