# SPDX-License-Identifier: Apache-2.0
"""Every family against real vLLM, and the page that says what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import checkpoint
import pytest
import table


@pytest.fixture(scope="session")
def small() -> list[table.Run]:
    """The small configs, judged."""
    return table.run_small()


@pytest.fixture(scope="session")
def real() -> list[table.Run]:
    """The real sizes, baked without weights."""
    return table.run_real()


def families(*options: str) -> tuple[int, list[table.Line]]:
    """Runs families.py; returns its status and lines."""
    command = [sys.executable, str(table.HERE / "families.py"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return done.returncode, lines


@pytest.mark.parametrize("family", table.FAMILIES)
def test_what_was_recorded_does_what_the_loader_does(family: str, small: list[table.Run]) -> None:
    run = small[table.FAMILIES.index(family)]
    assert run.failure is None, run.failure
    assert [(line["tp"], line["rank"]) for line in run.lines] == [
        (tp, rank) for tp in table.TP for rank in range(tp)
    ]
    for line in run.lines:
        assert line["identical"] is True, line
        assert line["outcome"] in ("baked", "fallback"), line
        assert line["layers_not_run"] == [], line
        assert line["layers_run"] > 0, line


@pytest.mark.parametrize("model", table.MODELS)
def test_nearly_all_bytes_of_real_sizes_are_direct(model: str, real: list[table.Run]) -> None:
    run = real[list(table.MODELS).index(model)]
    assert run.failure is None, run.failure
    for line in run.lines:
        assert line["direct_bytes_share"] >= 0.99, line


def test_the_page_is_what_a_run_gives(small: list[table.Run], real: list[table.Run]) -> None:
    given = table.without_times(table.page(small, real))
    assert given == table.without_times(table.PAGE.read_text())


def test_one_wrong_chain_is_seen() -> None:
    config = str(table.SMALL / "qwen3.json")
    status, lines = families("--config", config, "--tp", "2", "--rank", "0", "--corrupt")
    (line,) = lines
    assert (status, line["identical"], line["outcome"]) == (1, False, "baked")
    assert any(reason.startswith("over 0x5A: parameter ") for reason in line["reasons"])
    assert any(reason.startswith("after processing: ") for reason in line["reasons"])
    assert any(reason.startswith("what layers compute: ") for reason in line["reasons"])


def test_the_loader_judged_by_itself_is_identical() -> None:
    config = str(table.SMALL / "mixtral.json")
    status, (line,) = families("--config", config, "--tp", "4", "--rank", "3", "--control")
    assert (status, line["identical"], line["layers_not_run"]) == (0, True, [])


def test_a_model_that_the_engine_cannot_build_is_the_engines_failure() -> None:
    config = str(table.SMALL / "qwen3.json")  # 4 heads, 2 KV heads
    status, (line,) = families("--config", config, "--tp", "3", "--rank", "0", "--control")
    assert (status, line["outcome"], line["identical"]) == (0, "engine_failed", None)
    assert line["reasons"]


def changed(config: str, folder: Path, **facts: object) -> Path:
    """Writes a small config with other facts into a folder."""
    given = json.loads((table.SMALL / f"{config}.json").read_text())
    (folder / "config.json").write_text(json.dumps(given | facts))
    return folder / "config.json"


def test_a_rank_that_has_only_padding_is_identical(tmp_path: Path) -> None:
    config = changed("qwen2", tmp_path, vocab_size=70)  # 128 rows, the last 32 of them padding
    status, (line,) = families("--config", str(config), "--tp", "4", "--rank", "3")
    assert (status, line["identical"], line["layers_not_run"]) == (0, True, [])


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_tied_embeddings_is_taken_from_files(same: bool, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config = changed("qwen2", tmp_path)
    values = checkpoint.random_values(checkpoint.tensors_of(tmp_path))
    embedding = values["model.embed_tokens.weight"]
    values["lm_head.weight"] = embedding.clone() if same else -embedding
    save_file(values, tmp_path / "model.safetensors")
    status, lines = families("--config", str(config), "--tp", "2")
    assert status == 0
    for line in lines:
        assert (line["identical"], line["outcome"]) == (True, "baked"), line
