"""Run folders of a study -> rows of results.csv: one per cell, tidy, for the fit, the report and other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gpt1_ds.scaling.tables import DONE
from gpt1_ds.sweep import outcome
from gpt1_ds.sweep.scaling_trials import Cell


def collect(cells: Sequence[Cell], ranks: int) -> list[dict[str, Any]]:
    """Rows with tables.COLUMNS, in the cells' order."""
    rows = [_row(cell, outcome.read(cell.run_dir, cell.steps), ranks) for cell in cells]
    mark_best_rates(rows)
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


def mark_best_rates(rows: Sequence[dict[str, Any]]) -> None:
    """best_rate is 0 where the same place has a lower mean loss at another learning rate."""
    losses: dict[tuple[int, int, int], dict[float, list[float]]] = {}
    for row in rows:
        if row["outcome"] == DONE:
            place = losses.setdefault((row["n"], row["d"], row["u"]), {})
            place.setdefault(row["learning_rate"], []).append(row["loss"])
    for row in rows:
        rates = losses.get((row["n"], row["d"], row["u"]), {})
        best = min(rates, key=lambda rate: fmean(rates[rate]), default=None)
        row["best_rate"] = int(best is None or row["learning_rate"] == best)
