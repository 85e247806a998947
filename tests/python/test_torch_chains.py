# SPDX-License-Identifier: Apache-2.0
"""Placeholders against torch itself: each call does to both what it does to a tensor."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from chains import (  # noqa: E402
    SEVERAL,
    ChainMaker,
    bits,
    call_of,
    do,
    geometry,
    numbered,
    shows,
)
from crossmesh.torch import RecordingTensor, Refused, placeholder  # noqa: E402
from hypothesis import given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

DATA = Path(__file__).resolve().parent.parent / "data"
CASES = [json.loads(line) for line in (DATA / "golden_chains.jsonl").read_text().splitlines()]


def made(tensor: Any, calls: list[Any]) -> tuple[Any, Exception | None, int]:
    """The last value, or what was raised and where."""
    for at, call in enumerate(calls):
        try:
            tensor = do(tensor, call)
        except Exception as error:  # noqa: BLE001  whatever torch raises
            return tensor, error, at
    return tensor, None, len(calls)


def expect_alike(ours: Any, real: Any, whole: Any) -> None:
    if isinstance(real, (tuple, list)) and real and isinstance(real[0], torch.Tensor):
        assert len(ours) == len(real)
        for a, b in zip(ours, real, strict=True):
            expect_alike(a, b, whole)
    elif isinstance(real, torch.Tensor):
        assert isinstance(ours, RecordingTensor)
        assert geometry(ours) == geometry(real)
        if not real.is_meta:
            assert torch.equal(bits(shows(ours, whole)), bits(real))
    else:
        assert ours == real


# -- Recorded cases ----------------------------------------------------------------------------------

# Where we refuse what torch has: values, and calls that no chain records.
COUNTED: collections.Counter[str] = collections.Counter()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_recorded_case_is_what_torch_makes_of_it(case: dict[str, Any]) -> None:
    shape, dtype = tuple(case["input"]["shape"]), getattr(torch, case["input"]["dtype"])
    calls = [call_of(call) for call in case["input"]["ops"]]
    whole = numbered(shape, dtype)
    ours, refusal, at = made(placeholder("w", shape, dtype), calls)
    real, error, real_at = made(whole, calls)
    if isinstance(refusal, Refused):
        text = str(refusal)
        assert "'w'" in text and "narrow" in text
        expected = case["expected"]
        by_values = any(
            isinstance(a, (torch.Tensor, bool, list, float)) for c in calls for a in c[1]
        )
        by_values |= '"tensor"' in json.dumps(case["input"])
        # Through its storage, a placeholder could be written unseen.
        by_values |= calls[-1][0] == "untyped_storage"
        by_values |= "key_unhashable" in case.get("marks", []) or '{"tuple": [[' in json.dumps(case)
        assert by_values or "error" in expected, case
        COUNTED["refused by name"] += 1
    elif error is not None:
        assert refusal is not None, f"torch raises {error!r}"
        assert isinstance(refusal, type(error)), (refusal, error)
        assert at == real_at
        COUNTED["refused as by torch"] += 1
    else:
        assert refusal is None, refusal
        expected = case["expected"]
        if calls[-1][0] == "data_ptr":
            real = expected["value"]  # a placeholder has no address
        expect_alike(ours, real, whole)
        if isinstance(ours, RecordingTensor) and "chain" in expected and "error" not in expected:
            calls_made = json.loads(ours._recording.book.calls(ours._node.chain))
            assert calls_made == expected["chain"]
        COUNTED["alike"] += 1


def test_recorded_cases_were_all_seen() -> None:
    if sum(COUNTED.values()) != len(CASES):
        pytest.skip("only some of the cases were run")
    print(dict(COUNTED))
    assert COUNTED["alike"] >= 380


# -- Random chains -----------------------------------------------------------------------------------

CHAINS = 100_000
PER_EXAMPLE = 500
SHARES: collections.Counter[str] = collections.Counter()


def expect_one_chain(maker: ChainMaker) -> None:
    shape, dtype = maker.start()
    real: Any = numbered(shape, dtype)
    whole = real
    ours: Any = placeholder("w", shape, dtype)
    SHARES["chains"] += 1
    made_calls = []
    for _ in range(maker.random.randint(1, 4)):
        call = maker.call(real)
        made_calls.append(call)
        told = f"{shape} {dtype} {made_calls}"
        try:
            result = do(real, call)
        except Exception as error:  # noqa: BLE001
            with pytest.raises(type(error)) as refused:
                do(ours, call)
            assert not isinstance(refused.value, Refused), told
            SHARES["refused"] += 1
            return
        try:
            mine = do(ours, call)
        except Exception as error:
            raise AssertionError(f"torch accepts {told}") from error
        if call[0].removeprefix("torch.") in SEVERAL:
            assert len(mine) == len(result), told
            for a, b in zip(mine, result, strict=True):
                assert geometry(a) == geometry(b), told
            if not result:
                break
            at = maker.random.randrange(len(result))
            result, mine = result[at], mine[at]
        real, ours = result, mine
        assert geometry(ours) == geometry(real), told
    SHARES["accepted"] += 1
    copied = ours._recording.book.has_copied(ours._node.chain)
    SHARES["copied"] += copied
    assert torch.equal(bits(shows(ours, whole)), bits(real)), told


@seed(5)
@settings(max_examples=CHAINS // PER_EXAMPLE, deadline=None, database=None)
@given(st.integers(0, 2**63))
def expect_chains(chain_seed: int) -> None:
    maker = ChainMaker(chain_seed)
    for _ in range(PER_EXAMPLE):
        expect_one_chain(maker)


def test_random_chains_agree_with_torch(capsys: pytest.CaptureFixture[str]) -> None:
    expect_chains()
    chains = SHARES["chains"]
    with capsys.disabled():
        shares = ", ".join(
            f"{SHARES[k] / chains:.1%} {k}" for k in ("accepted", "refused", "copied")
        )
        print(f"\n{chains} random chains: {shares}")
    assert chains >= CHAINS
    assert SHARES["accepted"] >= 0.4 * chains
    assert SHARES["copied"] > 0
