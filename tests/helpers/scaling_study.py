"""A finished scaling study, made up: a known law, noise between seeds, and run folders with real lines of metrics.

The law is L = E + A / N^alpha + B / D'^beta, D' discounted where text repeats; what a fit would have left (fit.json,
predictions.csv) is written from it, so that a page can be judged without fitting anything.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.scaling.tables import COLUMNS, write_table
from gpt1_ds.sweep.scaling_collect import mark_best_rates
from gpt1_ds.tracking.record import EvalRecord, TrainRecord

LAW = {"alpha": 0.34, "beta": 0.30, "E": 1.75, "A": 480.0, "B": 280.0}
R_D = 12.0  # extra epochs after which repeating brings little
VOCABULARY, CONTEXT = 8192, 256
DEPTHS = (4, 6, 8, 10, 12)
TOKENS = (16_000_000, 32_000_000, 64_000_000, 128_000_000)
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)
NOISE = 0.0025  # relative, between seeds
EVALUATIONS = 24
REASONS = {"diverged": "loss is not finite", "dominated": "above the ladder by 12 %", "failed": "killed, signal 9"}
Cell = dict[str, Any]


def make_study(folder: Path, *, fit: bool = True, runs: bool = True, downstream: bool = True) -> Path:
    """A study with every arm: ladder, seeds, rates, repetition, shape and depth, and cells that never finished."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = [*_cells()]
    chance = random.Random(1)
    for cell in cells:
        _finish(cell, chance)
        if runs and cell["outcome"] != "waiting":
            cell["run"] = str(folder / cell["cell"])
            write_run(folder / cell["cell"], cell, chance)
    mark_best_rates(cells)
    write_results(folder, cells)
    if fit:
        write_fit(folder, cells)
    if downstream:
        write_downstream(folder, cells, chance)
    return folder


def write_results(folder: Path, cells: list[Cell]) -> None:
    write_table(folder / "results.csv", cells[0], cells)


def read_results(folder: Path) -> list[Cell]:
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def predicted(n: float, d: float, u: float) -> float:
    data = u * (1 + R_D * (1 - math.exp(-(d / u - 1) / R_D)))
    return LAW["E"] + LAW["A"] / n ** LAW["alpha"] + LAW["B"] / data ** LAW["beta"]


def ladder_cell(layers: int, tokens: int, *, seed: int = 1, width: int | None = None, **changes: Any) -> Cell:
    """A row of results.csv that has not run yet."""
    width = width or 64 * layers
    blocks = 12 * layers * width**2
    n = blocks + VOCABULARY * width
    cell = {
        **{"cell": f"L{layers}-D{tokens // 1_000_000}M-s{seed}", "arm": "ladder", "kind": "ladder", "layers": layers},
        **{"width": width, "heads": width // 64, "context": CONTEXT, "vocab_size": VOCABULARY, "seed": seed},
        **{"learning_rate": _best_rate(n), "schedule": "cosine", "n_all": n + CONTEXT * width, "n_matrices_head": n},
        **{"n_transformer": blocks, "n": n, "d": tokens, "u": tokens},
        **{"flops": (6 * n + 6 * layers * CONTEXT * width) * tokens, "loss": "", "bits_per_byte": "", "held_out": 0},
        **{"best_rate": 1, "own_share": 1.0, "outcome": "waiting", "seconds": "", "rank_hours": "", "run": ""},
        **changes,
    }
    cell |= {"epochs": cell["d"] / cell["u"], "reason": REASONS.get(cell["outcome"], "")}
    return {name: cell[name] for name in COLUMNS}


def _best_rate(n: float) -> float:
    return float(f"{1.2e-3 * (1e7 / n) ** 0.25:.2g}")


def _cells() -> Iterator[Cell]:
    for layers in DEPTHS:
        for tokens in TOKENS:
            held_out = int(layers == DEPTHS[-1] and tokens in TOKENS[-2:])
            outcome = "waiting" if (layers, tokens) == (10, TOKENS[-1]) else "done"
            yield ladder_cell(layers, tokens, held_out=held_out, outcome=outcome)
    for layers in DEPTHS[:2]:
        for tokens in TOKENS[:2]:
            yield from (ladder_cell(layers, tokens, seed=seed, arm="seeds", outcome="done") for seed in (2, 3))
    for layers in (4, 8, 12):
        for rate in (*RATES, 9.6e-3):
            name = f"L{layers}-lr{rate:g}"
            wild = rate > 5e-3
            if not wild or layers > 4:
                outcome = "diverged" if wild else "dominated" if (layers, rate) == (12, RATES[0]) else "done"
                yield ladder_cell(layers, TOKENS[1], cell=name, arm="rates", learning_rate=rate, outcome=outcome)
    for layers in (6, 8):
        for epochs in (2, 4, 8, 16):
            name = f"L{layers}-U{TOKENS[2] // epochs // 1_000_000}M"
            outcome = "failed" if (layers, epochs) == (8, 16) else "done"
            unique = TOKENS[2] // epochs
            yield ladder_cell(layers, TOKENS[2], cell=name, arm="repeats", kind="data", u=unique, outcome=outcome)
    for layers, width in ((2, 1024), (4, 704), (8, 512), (16, 384)):
        name = f"shape-L{layers}-w{width}"
        yield ladder_cell(layers, TOKENS[1], width=width, cell=name, arm="shape", kind="shape", outcome="done")
    for layers in (2, 4, 8, 12):
        name = f"depth-L{layers}"
        yield ladder_cell(layers, TOKENS[1], width=512, cell=name, arm="depth", kind="depth", outcome="done")


def _finish(cell: Cell, chance: random.Random) -> None:
    """Loss, time and cost of a cell that ran."""
    if cell["outcome"] == "waiting":
        return
    cell["seconds"] = round(cell["flops"] / 6e11, 1)
    cell["rank_hours"] = round(2 * cell["seconds"] / 3600, 4)
    if cell["outcome"] != "done":
        return
    off = math.log(cell["learning_rate"] / _best_rate(cell["n"]))
    shape = 0.012 * (math.log(cell["width"] / cell["layers"] / 64)) ** 2 if cell["kind"] in ("shape", "depth") else 0
    loss = predicted(cell["n"], cell["d"], cell["u"]) * (1 + NOISE * chance.gauss(0, 1) + 0.02 * off**2 + shape)
    cell["loss"], cell["bits_per_byte"] = loss, loss / math.log(2) / 3.6


def write_run(folder: Path, cell: Cell, chance: random.Random) -> None:
    """A run folder's metrics.jsonl, as training writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = cell["loss"] / predicted(cell["n"], cell["d"], cell["u"]) if cell["loss"] else 1.0
    part = {"done": 1.0, "diverged": 0.2, "dominated": 0.5, "failed": 0.3}.get(cell["outcome"], 0.6)
    lines: list[dict[str, Any]] = []
    for number in range(1, EVALUATIONS + 1):
        if number > part * EVALUATIONS:
            break
        tokens = cell["d"] * number // EVALUATIONS
        loss = scale * predicted(cell["n"], tokens, min(tokens, cell["u"])) * (1.04 - 0.04 * number / EVALUATIONS)
        loss = min(loss, math.log(VOCABULARY) - 0.01 * number)
        if cell["outcome"] == "diverged":
            loss = loss if number < 3 else loss + 0.6 * (number - 2)
        lines += _lines(number * 100, tokens, loss, cell["learning_rate"], chance)
    if cell["outcome"] == "diverged":
        lines[-1]["loss"] = None  # not finite
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _lines(step: int, tokens: int, loss: float, rate: float, chance: random.Random) -> list[dict[str, Any]]:
    train = TrainRecord(
        **{"step": step, "tokens": tokens, "loss": loss + chance.gauss(0.03, 0.04), "learning_rate": rate},
        **{"grad_norm": 0.8, "applied": True, "tokens_per_second": 9000.0, "step_seconds": 0.9},
        **{"data_wait_seconds": 0.0, "model_tflops_per_rank": 0.2, "mfu": None, "peak_memory_gib": 1.2},
        batch_fingerprint="0f",
    )
    bits = loss / math.log(2) / 3.6
    held_out = EvalRecord(step=step, tokens=tokens, loss=loss, perplexity=math.exp(min(loss, 50)), bits_per_byte=bits)
    return [asdict(train), asdict(held_out)]


def write_fit(folder: Path, cells: list[Cell]) -> None:
    """fit.json and predictions.csv as a fit near the truth would have left them."""
    chance = random.Random(2)
    draws = [_draw(chance) for _ in range(1000)]
    samples = {name: [float(f"{draw[name]:.6g}") for draw in draws] for name in LAW}
    usable = [cell for cell in cells if cell["outcome"] == "done" and cell["kind"] in ("ladder", "data")]
    rows = [_prediction(cell) for cell in usable]
    held_out = [
        {
            **{key: row[key] for key in ("cell", "n", "d", "u", "loss", "predicted", "error_percent")},
            "interval": [row["low"], row["high"]],
        }
        for row in rows
        if row["held_out"]
    ]
    exponents = LAW["alpha"] + LAW["beta"]
    told = {
        **{"format": 1, "form": "chinchilla", "loss": "huber", "convention": "matrices_head", "schedule": "cosine"},
        **LAW,
        **{"a": LAW["beta"] / exponents, "b": LAW["alpha"] / exponents, "intervals": _intervals(samples)},
        "bootstrap": {"draws": 1000, "seed": 0, "failed": 0, "samples": samples},
        **{"objective": 1.23e-3, "starts": {"count": 5, "agreeing": 5, "objectives": [1.23e-3] * 5}, "at_bounds": []},
        **{"points": len(rows) - len(held_out), "fit_error_percent": 0.21, "held_out": held_out},
        "noise": {"relative_std": NOISE, "groups": 4, "runs": 12},
        "warnings": ["D spans 0.9 decades; below 1 the exponent of D rests on little", "E's interval is wide <E/2>"],
        "range": {key: [min(c[key] for c in usable), max(c[key] for c in usable)] for key in ("n", "d", "flops")},
        "left_out": {"waiting": 1, "of kind shape": 4},
        **{"isoflop": None, "data": {"file": "elsewhere.csv", "sha256": "0"}, "versions": {"numpy": "2"}},
    }
    (folder / "fit.json").write_text(json.dumps(told))
    write_table(folder / "predictions.csv", rows[0], rows)


def _draw(chance: random.Random) -> dict[str, float]:
    """Parameters that go together as a bootstrap's do: the terms stay near the truth in the middle of the data."""
    first, second, third = (chance.gauss(0, 1) for _ in range(3))
    alpha, beta = LAW["alpha"] + 0.02 * first, LAW["beta"] + 0.012 * first + 0.015 * second
    middle_n, middle_d = 12e6, 45e6
    return {
        **{"alpha": alpha, "beta": beta, "E": LAW["E"] + 0.05 * first + 0.04 * second + 0.01 * third},
        "A": LAW["A"] * middle_n ** (alpha - LAW["alpha"]) * (1 - 0.02 * first),
        "B": LAW["B"] * middle_d ** (beta - LAW["beta"]) * (1 - 0.02 * second),
    }


def _intervals(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    a = [beta / (alpha + beta) for alpha, beta in zip(samples["alpha"], samples["beta"], strict=True)]
    found = {name: sorted(drawn) for name, drawn in {**samples, "a": a, "b": [1 - x for x in a]}.items()}
    return {name: [drawn[25], drawn[-26]] for name, drawn in found.items()}


def _prediction(cell: Cell) -> dict[str, Any]:
    value = predicted(cell["n"], cell["d"], cell["u"])
    return {
        **{key: cell[key] for key in ("cell", "n", "d", "u", "held_out", "loss")},
        **{"predicted": value, "low": value * 0.994, "high": value * 1.006},
        "error_percent": 100 * (value / cell["loss"] - 1),
    }


def write_downstream(folder: Path, cells: list[Cell], chance: random.Random) -> None:
    rows = []
    for cell in cells:
        if cell["arm"] == "ladder" and cell["loss"]:
            for task, metric, scale in (("zero-shot/sst2", "accuracy", 0.08), ("zero-shot/cola", "matthews", 0.05)):
                value = 0.5 + scale * (3.9 - cell["loss"]) + chance.gauss(0, 0.008)
                told = {"task": task, "metric": metric, "value": round(value, 4), "control": 0.51, "chance": 0.5}
                rows.append({**{key: cell[key] for key in ("cell", "n", "d", "flops")}, **told})
    write_table(folder / "downstream.csv", rows[0], rows)
