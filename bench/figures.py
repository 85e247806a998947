#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what docs/BENCHMARKS.md shows, and writes it there and into the README.

    bench/figures.py [--write] [--only WORD] [--model FOLDER]

Needs the release preset's `crossmesh`, `memory_bench` and `shm_bench`, and a checkpoint of
Qwen3-0.6B's size (demo.sh makes one in build/demo/qwen3-0.6b). Without --write it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
CONFIGS = ROOT / "tests" / "data" / "configs"
LLAMA = CONFIGS / "llama-3.1-70b.json"
MIXTURE = CONFIGS / "qwen3-30b-a3b.json"
PLAN_ROUNDS = 9
MOVE_ROUNDS = 11
SHORT_ROUNDS = 41  # of a move that takes little longer than a turn of the scheduler
DIGEST_PAIRS = 7  # of moves with and without digests, of DIGEST_ROUNDS updates each
DIGEST_ROUNDS = 5


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def machine() -> str:
    model = next(
        (line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
         if line.startswith("model name")), "unknown processor")
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, load {load:.1f}"


def deeper_llama(layers: int, folder: str) -> str:
    config = json.loads(LLAMA.read_text())
    config["num_hidden_layers"] = layers
    path = Path(folder) / f"llama-{layers}-layers.json"
    path.write_text(json.dumps(config))
    return str(path)


def plan_row(title: str, config: str, trainer: str, engine: str, bound: float) -> str:
    command = ["taskset", "-c", "0", str(BIN / "crossmesh"), "plan", config,
               "--trainer", trainer, "--engine", engine, "--json"]
    plans = [json.loads(run(*command)) for _ in range(PLAN_ROUNDS)]
    seconds = statistics.median(p["seconds"]["total"] for p in plans)
    plan = plans[0]
    return (f"| {title}, `{trainer}` → `{engine}` | {plan['tensors']:,} | {plan['parameters']:,} "
            f"| {plan['classes']} | {plan['copies']:,} | {seconds * 1000:.1f} ms | "
            f"{bound * 1000:.0f} ms | {plan['peak_rss_bytes'] / 2**20:.0f} MiB |")


def plan_table() -> str:
    rows = ["| plan | tensors | parameters | classes | copies | median | bound | memory |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        deep = deeper_llama(800, folder)
        rows += [
            plan_row("Llama-3.1-70B", str(LLAMA), "fsdp=64", "replicas=4,tp=8", 0.1),
            plan_row("the same with 800 layers", deep, "fsdp=64", "replicas=4,tp=8", 0.15),
            plan_row("Llama-3.1-70B", str(LLAMA), "fsdp=256", "replicas=16,tp=8", 0.15),
            plan_row("Qwen3-30B-A3B", str(MIXTURE), "fsdp=8", "replicas=2,tp=4", 0.2),
            plan_row("DeepSeek-V3", str(CONFIGS / "deepseek-v3.json"), "fsdp=256",
                     "replicas=16,tp=8", 1.0),
            plan_row("Kimi-K2", str(CONFIGS / "kimi-k2.json"), "fsdp=256",
                     "dp=16,tp=8,experts=linear", 1.0),
        ]
    return "\n".join(rows)


def part_table() -> str:
    """What one rank takes to expand its own copies of the largest plan."""
    rows = ["| part of Kimi-K2, `fsdp=256` → `dp=16,tp=8,experts=linear` | copies | peers "
            "| median | bound | memory | bound |", "|---|---|---|---|---|---|---|"]
    for part in ["engine:3", "trainer:5"]:
        plans = [json.loads(run("taskset", "-c", "0", str(BIN / "crossmesh"), "plan",
                                str(CONFIGS / "kimi-k2.json"), "--trainer", "fsdp=256",
                                "--engine", "dp=16,tp=8,experts=linear", "--part", part, "--json"))
                 for _ in range(PLAN_ROUNDS)]
        seconds = statistics.median(p["part"]["seconds"] for p in plans)
        memory = max(p["peak_rss_bytes"] for p in plans)
        one = plans[0]["part"]
        rows.append(f"| {one['side']} {one['rank']} | {one['copies']:,} | {one['peers']} "
                    f"| {seconds * 1000:.0f} ms | 500 ms | {memory / 2**20:.0f} MiB | 512 MiB |")
    return "\n".join(rows)


def narrow_mixture(folder: str) -> str:
    """Qwen3-30B-A3B at a sixteenth of its width: as many names, and runs from 48 bytes up."""
    config = json.loads(MIXTURE.read_text())
    for key in ["hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim",
                "vocab_size"]:
        config[key] //= 16
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    run(str(BIN / "crossmesh"), "synth", str(Path(folder) / "narrow"), "--config", str(path))
    return str(Path(folder) / "narrow")


def runs_table() -> str:
    rows = ["| move | update | plain loop over its runs | ratio to loop | bound | rate |",
            "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        model = narrow_mixture(folder)
        for digest in ["sampled", "off"]:
            result = move(model, "--floor", "runs", "--digest", digest, rounds=SHORT_ROUNDS)
            seconds, floor = result["seconds_median"], result["floor_seconds_median"]
            rows.append(f"| Qwen3-30B-A3B at 1/16 of its width, digests {digest} "
                        f"| {seconds * 1000:.1f} ms | {floor * 1000:.1f} ms "
                        f"| **{result['ratio_to_floor']:.2f}** | 0.70 "
                        f"| {result['bytes_needed'] / seconds / 1e9:.1f} GB/s |")
    return "\n".join(rows)


def move(model: str, *options: str, rounds: int = MOVE_ROUNDS) -> dict[str, Any]:
    result = json.loads(run(str(BIN / "crossmesh"), "move", model, "--trainer", "fsdp=2",
                            "--engine", "tp=2", "--iterations", str(rounds), "--json",
                            *options))
    assert result["verified"], result
    return result


def move_row(title: str, result: dict[str, Any], bound: str) -> str:
    seconds = result["seconds_median"]
    rate = result["bytes_needed"] / seconds / 1e9
    floor = result["floor_seconds_median"]
    checking = result["verify_seconds_median"]
    return (f"| {title} | {seconds * 1000:.1f} ms | {floor * 1000:.1f} ms "
            f"| **{result['ratio_to_floor']:.2f}** | {bound} | {rate:.1f} GB/s "
            f"| {checking * 1000:.0f} ms | {result['staging_bytes_peak']:,} |")


def move_table(model: str) -> str:
    rows = ["| move | update | floor | ratio to floor | bound | rate | checking | staging bytes |",
            "|---|---|---|---|---|---|---|---|"]
    rows.append(move_row("direct", move(model), "0.85"))
    rows.append(move_row("direct, `model.norm.weight` by the fallback",
                         move(model, "--opaque", "model.norm.weight"), "—"))
    rows.append(move_row("packed, 64 KiB of staging",
                         move(model, "--route", "packed", "--staging-bytes-max", "65536"), "—"))
    rows.append(move_row("packed, 64 MiB of staging", move(model, "--route", "packed"), "—"))
    return "\n".join(rows)


def digest_table(model: str) -> str:
    """Moves with and without digests by turns; each is compared with its neighbour."""
    modes = ("off", "sampled", "on")
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for _ in range(DIGEST_PAIRS):
        for mode in modes:
            found[mode].append(move(model, "--digest", mode, "--no-floor", rounds=DIGEST_ROUNDS))
    rows = ["| digests | update | to the update without | bound | digested | in it, engines "
            "| before it, trainers |", "|---|---|---|---|---|---|---|"]
    for mode, results in found.items():
        seconds = statistics.median(r["seconds_median"] for r in results)
        ratio = statistics.median(r["seconds_median"] / without["seconds_median"]
                                  for r, without in zip(results, found["off"]))
        own = {key: statistics.median(r["digest"][key] for r in results)
               for key in ("bytes_median", "engine_seconds_median", "trainer_seconds_median")}
        rows.append(f"| {mode} | {seconds * 1000:.1f} ms | **{ratio:.2f}** "
                    f"| {'1.50' if mode == 'on' else '—'} "
                    f"| {own['bytes_median'] / 2**20:.0f} MiB "
                    f"| {own['engine_seconds_median'] * 1000:.1f} ms "
                    f"| {own['trainer_seconds_median'] * 1000:.1f} ms |")
    return "\n".join(rows)


def kernel_table() -> str:
    text = run(str(BIN / "memory_bench"), "--benchmark_filter=two_processes",
               "--benchmark_format=json")
    rows = ["| copy by two processes at once | ratio to one memcpy |", "|---|---|"]
    for one in json.loads(text[text.index("{"):])["benchmarks"]:
        name = re.sub(r"/(iterations|manual_time|real_time|process_time).*", "", one["name"])
        rows.append(f"| `{name}` | {one['ratio']:.2f} |")
    return "\n".join(rows)


def private_table() -> str:
    """Returns what shm_bench prints, its ratios beside what they have to reach."""
    bounds = {"qwen3_600m": "0.65", "rows_of_2048": "0.35", "rows_of_3072": "0.35"}
    rows = ["| private memory | one raw read | attach | of raw | bound | ring | of raw |",
            "|---|---|---|---|---|---|---|"]
    for line in run(str(BIN / "shm_bench")).splitlines()[1:]:
        name, raw, attach, attach_ratio, _, ring, ring_ratio, _ = line.split()
        rows.append(f"| `{name}` | {raw} GB/s | {attach} GB/s | **{attach_ratio}** "
                    f"| {bounds.get(name, '—')} | {ring} GB/s | {ring_ratio} |")
    return "\n".join(rows)


def replace_between(path: Path, mark: str, text: str) -> None:
    old = path.read_text()
    new = re.sub(f"(<!-- {mark}:begin -->\n).*(<!-- {mark}:end -->)",
                 lambda found: found[1] + text + "\n" + found[2], old, flags=re.S)
    path.write_text(new)


def old_sections(page: Path) -> tuple[str, dict[str, str]]:
    """Returns the line about the machine and the sections that the page has."""
    results = re.search("<!-- results:begin -->(.*)<!-- results:end -->", page.read_text(), re.S)
    assert results is not None
    first, *parts = re.split(r"^### (.*)\n", results[1], flags=re.M)
    return first.strip(), {h: text.strip() for h, text in zip(parts[::2], parts[1::2])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", metavar="WORD",
                        help="measure the sections whose headings have it, and keep the others")
    parser.add_argument("--model", default=str(ROOT / "build" / "demo" / "qwen3-0.6b"))
    options = parser.parse_args()
    page = ROOT / "docs" / "BENCHMARKS.md"
    verified = f"medians of {MOVE_ROUNDS} rounds, all verified"
    moving = f"Moving Qwen3-0.6B over shm, {verified}"
    sections: dict[str, Callable[[], str]] = {
        "Planning, one core": plan_table,
        "One rank's own part, one core": part_table,
        moving: lambda: move_table(options.model),
        f"Digests of Qwen3-0.6B, medians of {DIGEST_PAIRS} by turns":
            lambda: digest_table(options.model),
        f"Many names and short runs, medians of {SHORT_ROUNDS} rounds, all verified": runs_table,
        "Private memory, medians of 11 rounds": private_table,
        "Copy kernels": kernel_table,
    }
    first, found = f"Machine: {machine()}. Command: `bench/figures.py --write`.", {}
    if options.only:
        first, found = old_sections(page)
    for heading, measure in sections.items():
        if not options.only or options.only.lower() in heading.lower():
            found[heading] = measure()
    text = "\n\n".join([first, *(f"### {heading}\n\n{found[heading]}" for heading in sections
                                 if heading in found)])
    print(text)
    if options.write:
        replace_between(page, "results", "\n" + text + "\n")
        replace_between(ROOT / "README.md", "measured", found[moving])


if __name__ == "__main__":
    main()
