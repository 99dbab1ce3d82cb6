"""A scaling study's results: from the run folders to results.csv and downstream.csv, one row per trial, and to W&B."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.scaling import tables
from gpt1_ds.scaling.tables import DONE
from gpt1_ds.sweep.outcome import ENDED
from gpt1_ds.sweep.scaling_sweep import ScalingSweep
from gpt1_ds.sweep.scaling_trials import ScalingTrial
from gpt1_ds.tasks.controls import MAJORITY
from gpt1_ds.tracking.entries import CONTROL, Entry, of_models, read_entries

Rows = list[dict[str, Any]]


def collect(sweep: ScalingSweep) -> Rows:
    """Write results.csv, downstream.csv where tasks were scored, and the W&B table; the rows of results.csv.

    Raises DataError where the study has not run.
    """
    if not sweep.folder.is_dir():
        raise DataError(f"{sweep.folder}: no such study has run; start it with `gpt1-ds scaling run`")
    found = rows(sweep.trials, sweep.study.nproc)
    tables.write_table(sweep.folder / "results.csv", tables.COLUMNS, found)
    scores = downstream(sweep.trials)
    if scores:
        tables.write_table(sweep.folder / "downstream.csv", tables.DOWNSTREAM, scores)
    _publish(sweep, found)
    return found


def rows(trials: Sequence[ScalingTrial], ranks: int) -> Rows:
    """Rows with tables.COLUMNS, in the trials' order."""
    found = [_row(trial, ranks) for trial in trials]
    mark_best_rates(found)
    return found


def downstream(trials: Sequence[ScalingTrial]) -> Rows:
    """Rows with tables.DOWNSTREAM: what `evaluate` (zero-shot probes) and fine-tuning runs below a trial's folder wrote
    to an eval.json; of each task the first metric, on every split that was not trained on, at the last step, beside its
    control (of fine-tuning the best one) and chance (of fine-tuning the majority), where they are known.
    """
    found = []
    for trial in trials:
        last: dict[str, dict[str, Any]] = {}
        for file in sorted(trial.run_dir.path.glob("**/eval.json")):
            entries = read_entries(file)
            for entry in of_models(entries):
                if entry["split"] != "train" and entry["metrics"]:
                    metric = next(iter(entry["metrics"]))
                    told = {
                        "task": f"{entry['task']}/{entry['split']}",
                        "metric": metric,
                        "value": entry["metrics"][metric],
                    }
                    last[told["task"]] = {**told, **_judged_by(entry, metric, entries)}
        place = {"cell": trial.name, "n": trial.parameters, "d": trial.tokens, "flops": trial.flops}
        found += [{**place, **told} for told in last.values()]
    return found


def _judged_by(entry: Entry, metric: str, entries: Sequence[Entry]) -> dict[str, float | None]:
    controls = {
        other["task"].removeprefix(CONTROL).rpartition("/")[0]: other["metrics"].get(metric)
        for other in entries
        if other["task"].startswith(CONTROL)
        and (other["task"].rpartition("/")[2], other["split"]) == (entry["task"], entry["split"])
    }
    best = max((value for value in controls.values() if value is not None), default=None)
    found = entry["metrics"]
    return {"control": found.get("control", best), "chance": found.get("chance", controls.get(MAJORITY))}


def _row(trial: ScalingTrial, ranks: int) -> dict[str, Any]:
    config, model, record = trial.config, trial.config.model, trial.record
    measured = record.loss is not None and math.isfinite(record.loss) and record.outcome in ENDED
    return {
        **{"cell": trial.name, "arm": trial.arm, "kind": trial.kind, "layers": model.layers, "width": model.width},
        **{"heads": model.heads, "context": model.context, "vocab_size": trial.vocab_size, "seed": config.run.seed},
        **{"learning_rate": config.optimizer.lr, "best_rate": 1, "schedule": config.schedule.kind},
        **{f"n_{name}": size for name, size in trial.sizes.items()},
        **{"n": trial.parameters, "d": trial.tokens, "u": trial.unique, "epochs": round(trial.epochs, 6)},
        **{"flops": trial.flops, "own_share": round(trial.own_share, 6)},
        "loss": record.loss if measured else None,
        "bits_per_byte": record.held_out[-1].get("bits_per_byte") if measured else None,
        "held_out": int(trial.held_out),
        **{"outcome": record.outcome, "reason": record.reason, "seconds": round(record.seconds, 3)},
        "rank_hours": round(record.seconds * ranks / 3600, 6),
        "run": str(trial.run_dir.path),
    }


def mark_best_rates(found: Sequence[dict[str, Any]]) -> None:
    """best_rate is 0 where the same point has a lower mean loss at another learning rate."""
    losses: dict[tuple[int, int, int], dict[float, list[float]]] = {}
    for row in found:
        if row["outcome"] == DONE:
            point = losses.setdefault((row["n"], row["d"], row["u"]), {})
            point.setdefault(row["learning_rate"], []).append(row["loss"])
    for row in found:
        rates = losses.get((row["n"], row["d"], row["u"]), {})
        best = min(rates, key=lambda rate: fmean(rates[rate]), default=None)
        row["best_rate"] = int(best is None or row["learning_rate"] == best)


def _publish(sweep: ScalingSweep, found: Rows) -> None:
    """The table of trials as a W&B run of the study's group, where the study is tracked."""
    tracking = sweep.trials[0].config.tracking
    if tracking.wandb == "off":
        return
    from gpt1_ds.tracking.sinks import Start, WandbLogger
    from gpt1_ds.tracking.wandb import run_id

    start = Start(
        mode=tracking.wandb,
        id=run_id(RunDir(sweep.folder)),
        name=sweep.study.name,
        folder=str(sweep.folder.resolve()),
        entity=tracking.entity,
        project=tracking.project,
        group=sweep.study.name,
        tags=tracking.tags,
        job_type="study",
        config=sweep.describe(),
        pid=os.getpid(),
    )
    logger = WandbLogger(start)
    logger.table("cells", found)
    logger.finish(dict(Counter(row["outcome"] for row in found)))
