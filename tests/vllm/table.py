# SPDX-License-Identifier: Apache-2.0
"""Makes docs/FAMILIES.md: what real vLLM says of each family, at small and at real sizes.

    table.py            judge all families, and write the page
    table.py --check    judge all families, and say where the page differs, times aside

One process for each family, as many at a time as there are cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "FAMILIES.md"
SMALL = HERE / "configs"
REAL = HERE.parent / "data" / "configs"
TP = (1, 2, 4)

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
)
MODELS = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Mistral-7B": "mistral-7b",
    "Qwen2-7B": "qwen2-7b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "DeepSeek-V3": "deepseek-v3",
}

Line = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A process of families.py: its lines, or what it said when it failed."""

    name: str
    lines: tuple[Line, ...]
    failure: str | None


def run_family(name: str, config: Path, *options: str) -> Run:
    """Judges a config at every tp, on every rank."""
    command = [
        sys.executable,
        str(HERE / "families.py"),
        "--config",
        str(config),
        "--json",
        "--tp",
        ",".join(map(str, TP)),
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = tuple(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    failure = None
    if done.returncode != 0 or len(lines) != sum(TP):
        failure = f"status {done.returncode}, {len(lines)} lines\n{done.stdout}{done.stderr}"
    return Run(name, lines, failure)


def run_small() -> list[Run]:
    """Judges the families' small configs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda name: run_family(name, SMALL / f"{name}.json"), FAMILIES))


def run_real() -> list[Run]:
    """Bakes the families' real sizes, without weights."""

    def bake(name: str) -> Run:
        return run_family(name, REAL / f"{MODELS[name]}.json", "--no-weights")

    # The last takes as long as most others together: it starts first.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(bake, reversed(MODELS)))[::-1]


def page(small: list[Run], real: list[Run]) -> str:
    """Returns the text of docs/FAMILIES.md."""
    rows = [
        "| family | tp | outcome | identical | direct | layers run | reasons | bake | load_weights |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(run.name, tp, _of_tp(run, tp)) for run in small for tp in TP),
    ]
    shares = [
        "| model | " + " | ".join(f"tp={tp}" for tp in TP) + " | reasons | bake of a rank |",
        "|---|" + "---|" * len(TP) + "---|---|",
        *(_share_row(run) for run in real),
    ]
    return TEMPLATE.format(rows="\n".join(rows), shares="\n".join(shares))


def without_times(text: str) -> str:
    """Returns a page with its times blanked, which no two runs share."""
    return re.sub(r"\d[\d.,]* m?s(?= \|)", "-", text)


def _of_tp(run: Run, tp: int) -> list[Line]:
    return [line for line in run.lines if line["tp"] == tp]


def _row(family: str, tp: int, lines: list[Line]) -> str:
    """One row for all ranks: the worst of each."""
    outcomes = [
        outcome
        for outcome in ("engine_failed", "refused", "fallback", "baked")
        if any(line["outcome"] == outcome for line in lines)
    ]
    identical = all(line["identical"] is True for line in lines)
    cells = [
        f"`{family}`",
        str(tp),
        ", ".join(outcomes),
        "yes" if identical else "**no**",
        _share(lines),
        str(min(line["layers_run"] for line in lines)),
        _reasons(lines),
        _milliseconds(lines, "bake"),
        _milliseconds(lines, "load_weights"),
    ]
    return "| " + " | ".join(cells) + " |"


def _share_row(run: Run) -> str:
    seconds = sorted(line["seconds"]["bake"] or 0.0 for line in run.lines)
    cells = [run.name, *(_share(_of_tp(run, tp)) for tp in TP), _reasons(list(run.lines))]
    return "| " + " | ".join(cells) + f" | {seconds[len(seconds) // 2]:.2f} s |"


def _share(lines: list[Line]) -> str:
    shares = [line["direct_bytes_share"] for line in lines]
    if not shares or None in shares:
        return "-"
    return f"{int(min(shares) * 1e4) / 1e4:.4f}"  # rounded down: 1 is said of all bytes only


def _reasons(lines: list[Line]) -> str:
    """Names each reason once, without the tensor that it is of."""
    found = dict.fromkeys(
        reason.split(": ", 1)[-1].splitlines()[0] for line in lines for reason in line["reasons"]
    )
    return "; ".join(found) or "-"


def _milliseconds(lines: list[Line], what: str) -> str:
    times = sorted(line["seconds"][what] for line in lines if line["seconds"][what] is not None)
    return f"{times[len(times) // 2] * 1e3:.1f} ms" if times else "-"


def main(arguments: list[str]) -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    small, real = run_small(), run_real()
    for run in (*small, *real):
        if run.failure:
            print(f"{run.name}: {run.failure}", file=sys.stderr)
            return 1
    text = page(small, real)
    if not options.check:
        PAGE.write_text(text)
    elif without_times(text) != without_times(PAGE.read_text()):
        print(f"{PAGE.name} is not what a run gives:\n{text}", file=sys.stderr)
        return 1
    return 0


TEMPLATE = """\
# Families, judged by vLLM

This page is made by `tests/vllm/table.py`; the tests compare it with a run, times aside.

## Against vLLM's own loaders

vLLM 0.32 builds its own model of a small config (`tests/vllm/configs`: vocabularies that 64 does
not divide, KV heads that tensor parallelism repeats, tied embeddings), for each rank of tp 1, 2
and 4. crossmesh bakes the model's `load_weights`, and executes what it recorded from checkpoint
tensors. That is compared with what `load_weights` does, byte by byte: all parameters and buffers,
over two patterns of poison, so that what is left alone counts too; then these again after vLLM's
processing of loaded weights, and what every linear, embedding, norm and block of experts computes
for a fixed probe. One row stands for all ranks of a tp, by the worst of them; times are medians, of
the processor.

- *baked*: every tensor moves as pieces. *fallback*: some go whole to vLLM's loader, for the reasons
  given. *refused*: the loader needs values where it is recorded, and all of them do.
- *direct*: bytes of what the rank loads that move as pieces, of all that it loads.
- *layers run*: how many layers were compared by what they compute. Attention needs a cache and is
  not among them; the matrices that latent attention absorbs are compared as they lie.

{rows}

## At real sizes

The same bake of models built without memory: what share of the bytes that a rank loads moves as
pieces (the least of all ranks), and how long the processor takes to record one rank.

{shares}
"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
