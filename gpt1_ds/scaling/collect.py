"""Run folders of a study -> results.csv: one row per cell, tidy, for the fit, the report and other programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gpt1_ds.common.files import write_atomic
from gpt1_ds.scaling import outcome
from gpt1_ds.scaling.cells import Cell

COLUMNS = {  # name -> what it says; configs/README.md shows them
    "cell": "run folder's name in the study's",
    "arm": "arm of the study",
    "kind": "ladder, depth, shape or data",
    "layers": "depth",
    "width": "of the hidden states",
    "heads": "attention heads",
    "context": "tokens of a sequence",
    "vocab_size": "ids of the tokenizer",
    "seed": "of weights, dropout and data order",
    "learning_rate": "highest of the run",
    "best_rate": "0: the same (n, d, u) has a lower mean loss at another learning rate; fits leave it out",
    "schedule": "of the learning rate",
    "n_all": "all parameters",
    "n_matrices_head": "weights of matrix products, head included",
    "n_transformer": "weights of the blocks",
    "n": "parameters in the study's convention: what fits use",
    "d": "tokens trained on",
    "u": "distinct tokens among them",
    "epochs": "d / u",
    "flops": "model operations for d tokens",
    "own_share": "of its steps, those that it ran itself; a branch has the others from its trunk",
    "loss": "last held-out loss, nats per token",
    "bits_per_byte": "the same per byte of text, in bits",
    "held_out": "1: named in advance as not to be fitted",
    "outcome": "done, diverged, dominated, failed, running or waiting",
    "reason": "why it ended, where it did not end as planned",
    "seconds": "of training, without evaluation and saves",
    "rank_hours": "seconds x ranks / 3600",
    "run": "its run folder",
}

DOWNSTREAM = ("cell", "n", "d", "flops", "task", "metric", "value")  # of downstream.csv


def collect(cells: Sequence[Cell], ranks: int) -> list[dict[str, Any]]:
    """Rows for results.csv, in the cells' order."""
    rows = [_row(cell, outcome.read(cell.run_dir, cell.steps), ranks) for cell in cells]
    _mark_best_rates(rows)
    return rows


def downstream(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Rows for downstream.csv: what `evaluate` (zero-shot probes) and fine-tuning runs below a cell's folder left in an
    eval.json; of each task the first metric, on every split that was not trained on, at the last step.
    """
    rows = []
    for cell in cells:
        last: dict[tuple[str, str], dict[str, Any]] = {}
        for file in sorted(cell.run_dir.path.glob("**/eval.json")):
            for entry in json.loads(file.read_text()):
                if entry["split"] != "train" and entry["metrics"]:
                    last[f"{entry['task']}/{entry['split']}", next(iter(entry["metrics"]))] = entry
        for (task, metric), entry in last.items():
            place = {"cell": cell.name, "n": cell.parameters, "d": cell.tokens, "flops": cell.flops}
            rows.append({**place, "task": task, "metric": metric, "value": entry["metrics"][metric]})
    return rows


def write(rows: Sequence[dict[str, Any]], columns: Iterable[str], path: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    write_atomic(path, text.getvalue())


def _row(cell: Cell, record: outcome.Record, ranks: int) -> dict[str, Any]:
    config, model, sizes = cell.config, cell.config.model, cell.sizes
    finite = record.loss is not None and math.isfinite(record.loss)
    finished = record.outcome in outcome.ENDED
    return {
        **{"cell": cell.name, "arm": cell.arm, "kind": cell.kind, "layers": model.layers, "width": model.width},
        **{"heads": model.heads, "context": model.context, "vocab_size": cell.vocab_size, "seed": config.run.seed},
        **{"learning_rate": config.optimizer.lr, "best_rate": 1, "schedule": config.schedule.kind},
        **{f"n_{name}": size for name, size in sizes.items()},
        **{"n": cell.parameters, "d": cell.tokens, "u": cell.unique, "epochs": round(cell.epochs, 6)},
        **{"flops": cell.flops, "own_share": round(cell.own_share, 6)},
        "loss": record.loss if finite and finished else None,
        "bits_per_byte": record.held_out[-1].get("bits_per_byte") if finite and finished else None,
        "held_out": int(cell.held_out),
        **{"outcome": record.outcome, "reason": record.reason, "seconds": round(record.seconds, 3)},
        "rank_hours": round(record.seconds * ranks / 3600, 6),
        "run": str(cell.run_dir.path),
    }


def _mark_best_rates(rows: Sequence[dict[str, Any]]) -> None:
    """best_rate is 0 where the same place has a lower mean loss at another learning rate."""
    losses: dict[tuple[int, int, int], dict[float, list[float]]] = {}
    for row in rows:
        if row["outcome"] == outcome.DONE:
            place = losses.setdefault((row["n"], row["d"], row["u"]), {})
            place.setdefault(row["learning_rate"], []).append(row["loss"])
    for row in rows:
        rates = losses.get((row["n"], row["d"], row["u"]), {})
        best = min(rates, key=lambda rate: fmean(rates[rate]), default=None)
        row["best_rate"] = int(best is None or row["learning_rate"] == best)
