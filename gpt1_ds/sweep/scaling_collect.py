"""The results of a scaling study: from its run folders to results.csv and downstream.csv, one row per trial, and to the
table of its W&B run."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.scaling import tables
from gpt1_ds.scaling.tables import DONE, LOST
from gpt1_ds.sweep.outcome import ENDED
from gpt1_ds.sweep.scaling_sweep import ScalingSweep
from gpt1_ds.sweep.scaling_trials import ScalingTrial
from gpt1_ds.sweep.scaling_wandb import study_logger
from gpt1_ds.tasks.controls import MAJORITY
from gpt1_ds.tracking.record import CONTROL, Entry, of_models, of_own_data, read_entries

Rows = list[dict[str, Any]]


def collect(sweep: ScalingSweep, is_growing: bool = False) -> Rows:
    """Writes results.csv, downstream.csv where tasks were scored, and the W&B table, and returns the rows of
    results.csv.

    Cells that end on several hosts at the same time collect one after the other, so that the last table has all of
    them. `is_growing`: other cells still run; the W&B table then has those that have ended, and offline there is none,
    since nobody would see it before the whole one.

    Raises DataError where the study has not run, ConfigError where a cell ran with another configuration, whose loss
    would stand beside numbers that it did not have, LockedError where others collect for longer than a minute.
    """
    if not sweep.folder.is_dir():
        raise DataError(f"{sweep.folder}: no such study has run; start it with `gpt1-ds scaling run`")
    sweep.check_configurations()
    with RunLock(sweep.folder / ".collect"):
        return _collect(sweep, is_growing)


def _collect(sweep: ScalingSweep, is_growing: bool) -> Rows:
    results = rows(sweep.trials, sweep.study.nproc)
    tables.write_table(sweep.folder / "results.csv", tables.COLUMNS, results)
    scores = downstream(sweep.trials)
    if scores:
        tables.write_table(sweep.folder / "downstream.csv", tables.DOWNSTREAM, scores)
    tracking = sweep.trials[0].config.tracking
    if tracking.wandb == "online" or (tracking.wandb == "offline" and not is_growing):
        logger = study_logger(sweep.folder, tracking, sweep.describe())
        logger.table("cells", [row for row in results if row["outcome"] in ENDED] if is_growing else results)
        logger.finish(dict(Counter(row["outcome"] for row in results)))
    return results


@contextlib.contextmanager
def growing_table(sweep: ScalingSweep) -> Iterator[Callable[[], None]]:
    """Yields what to call after every cell: the study's W&B run then shows the table of those that have ended."""
    tracking, shown = sweep.trials[0].config.tracking, -1
    logger = None if tracking.wandb == "off" else study_logger(sweep.folder, tracking, sweep.describe())

    def update() -> None:
        nonlocal shown
        if logger is not None:
            ended_rows = [row for row in rows(sweep.trials, sweep.study.nproc) if row["outcome"] in ENDED]
            if ended_rows and len(ended_rows) != shown:
                shown = len(ended_rows)
                logger.table("cells", ended_rows)

    try:
        yield update
    finally:
        if logger is not None:
            logger.finish({})


def rows(trials: Sequence[ScalingTrial], ranks: int) -> Rows:
    """Returns rows with tables.COLUMNS, in the trials' order."""
    results = [_row(trial, _ranks(trial, ranks)) for trial in trials]
    mark_best_rates(results)
    return results


def downstream(trials: Sequence[ScalingTrial]) -> Rows:
    """Returns rows with tables.DOWNSTREAM: what `evaluate` (zero-shot probes) and fine-tuning runs below a trial's
    folder wrote to an eval.json; of each task the first metric, on every split that was not trained on, at the last
    step, beside its control (of fine-tuning the best one) and chance (of fine-tuning the majority), where they are
    known.
    """
    scores = []
    for trial in trials:
        last: dict[str, dict[str, Any]] = {}  # by task
        for file in sorted(trial.run_dir.path.glob("**/eval.json")):
            entries = of_own_data(read_entries(file))
            for entry in of_models(entries):
                if entry["split"] != "train" and entry["metrics"]:
                    metric, value = next(iter(entry["metrics"].items()))
                    task = f"{entry['task']}/{entry['split']}"
                    score = {"task": task, "metric": metric, "value": value}
                    last[task] = {**score, **_control_and_chance(entry, metric, entries)}
        cell = {"cell": trial.name, "n": trial.parameters, "d": trial.tokens, "flops": trial.flops}
        scores += [{**cell, **score} for score in last.values()]
    return scores


def _control_and_chance(entry: Entry, metric: str, entries: Sequence[Entry]) -> dict[str, float | None]:
    """Returns what an entry is judged by: its own control and chance, else those of fine-tuning, which are `entries` of
    their own, of tasks that are called CONTROL, a control's name, "/" and the task.
    """
    controls: dict[str, float | None] = {}
    for other in entries:
        if other["task"].startswith(CONTROL):
            name, _, task = other["task"].removeprefix(CONTROL).rpartition("/")
            if (task, other["split"]) == (entry["task"], entry["split"]):
                controls[name] = other["metrics"].get(metric)
    best = max((value for value in controls.values() if value is not None), default=None)
    own = entry["metrics"]
    return {"control": own.get("control", best), "chance": own.get("chance", controls.get(MAJORITY))}


def _ranks(trial: ScalingTrial, usual: int) -> int:
    """Returns how many ranks ran the trial last."""
    started = [line for line in read_jsonl(trial.run_dir.events) if line["event"] == "started"]
    return int(started[-1].get("ranks", usual)) if started else usual


def _row(trial: ScalingTrial, ranks: int) -> dict[str, Any]:
    config, model, record = trial.config, trial.config.model, trial.record
    begin = record.begin if record.train else trial.begin  # a branch of a trunk that is gone began from scratch
    measured = record.loss is not None and math.isfinite(record.loss) and record.outcome in ENDED
    return {
        **{"cell": trial.name, "arm": trial.arm, "kind": trial.kind, "layers": model.layers, "width": model.width},
        **{"heads": model.heads, "context": model.context, "vocab_size": trial.vocab_size, "seed": config.run.seed},
        **{"learning_rate": config.optimizer.lr, "best_rate": 1, "schedule": config.schedule.kind},
        **{f"n_{name}": size for name, size in trial.sizes.items()},
        **{"n": trial.parameters, "d": trial.tokens, "u": trial.unique, "epochs": round(trial.epochs, 6)},
        **{"flops": trial.flops, "own_share": round(1 - begin / trial.steps, 6)},
        "loss": record.loss if measured else None,
        "bits_per_byte": record.held_out[-1].get("bits_per_byte") if measured else None,
        "held_out": int(trial.held_out),
        **{"outcome": record.outcome, "reason": record.reason, "seconds": round(record.seconds, 3)},
        "rank_hours": round(record.seconds * ranks / 3600, 6),
        "run": str(trial.run_dir.path),
    }


def mark_best_rates(results: Sequence[dict[str, Any]]) -> None:
    """best_rate is 0 where the same point lost fewer seeds, or has a lower mean loss, at another learning rate: the
    mean of the seeds that did not diverge is that of the lucky ones.
    """
    losses: dict[tuple[int, int, int], dict[float, dict[int, float]]] = {}
    lost = Counter((row["n"], row["d"], row["u"], row["learning_rate"]) for row in results if row["outcome"] in LOST)
    for row in results:
        if row["outcome"] == DONE:
            point = losses.setdefault((row["n"], row["d"], row["u"]), {})
            point.setdefault(row["learning_rate"], {})[row["seed"]] = row["loss"]
    best = {
        point: min(rates, key=lambda rate: (lost[*point, rate], _excess(rates, rate)))
        for point, rates in losses.items()
    }
    for row in results:
        row["best_rate"] = int(row["learning_rate"] == best.get((row["n"], row["d"], row["u"]), row["learning_rate"]))


def _excess(losses: Mapping[float, Mapping[int, float]], rate: float) -> float:
    """Returns by how much the mean loss at `rate` is above that at the rate of the most seeds, over the seeds of both:
    where an arm repeats one rate with other seeds, a rate with one lucky seed would win. `losses`: by rate and seed.
    """
    usual = losses[max(losses, key=lambda one: len(losses[one]))]
    seeds = losses[rate].keys() & usual
    if not seeds:
        return fmean(losses[rate].values()) - fmean(usual.values())
    return fmean(losses[rate][seed] - usual[seed] for seed in seeds)
