"""Reads from its run folder how a trial ended: done, diverged, dominated, failed, running or waiting."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpt1_ds.common.lock import is_held
from gpt1_ds.common.rundir import RunDir, read_jsonl, why_diverged
from gpt1_ds.scaling.tables import DIVERGED, DOMINATED, DONE, FAILED, RUNNING, WAITING
from gpt1_ds.sweep.scaling_study import EarlyEnd

ENDED = (DONE, DIVERGED, DOMINATED)  # nothing is left to do
CUT = "metrics.jsonl does not end with the evaluation of its last step"
WAY_OUT = "remove the run folder, and the same command trains it again"
SAMPLE = "train.eval_batches"  # losses of other held-out rows do not compare
READ = {"train": "step_seconds", "eval": "loss"}  # kinds of lines in metrics.jsonl, and what is read of each


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds of its run."""

    outcome: str
    reason: str
    train: list[dict[str, Any]]  # lines of metrics.jsonl
    held_out: list[dict[str, Any]]
    begin: int = 0  # the step at which it first started
    last: int = 0  # the last step of its metrics and events

    @property
    def loss(self) -> float | None:
        """The last held-out loss, nats per token; NaN: it was not finite."""
        return _loss(self.held_out[-1]) if self.held_out else None

    @property
    def seconds(self) -> float:
        """Returns how long training took, without evaluation and saves."""
        steps = [self.begin, *(line["step"] for line in self.train)]
        spans = zip(self.train, pairwise(steps), strict=True)
        return float(sum(line["step_seconds"] * (now - then) for line, (then, now) in spans))


def read(run_dir: RunDir, steps: int) -> RunRecord:
    """Returns the record of a run that is to have `steps` steps."""
    lines = list(_lines(run_dir))
    train, held_out = ([line for line in lines if line["kind"] == kind] for kind in READ)
    events = list(read_jsonl(run_dir.events))
    begin = next((event["step"] for event in events if event["event"] == "started"), 0)
    outcome, reason = _outcome(run_dir, steps, events)
    if outcome == DONE and not (held_out and held_out[-1]["step"] == steps):
        outcome, reason = FAILED, f"{CUT}, {steps}; {WAY_OUT}"
    elif outcome == DONE and not math.isfinite(_loss(held_out[-1])):
        outcome, reason = DIVERGED, "its held-out loss is not finite"
    last = max((line["step"] for line in [*lines, *events] if isinstance(line.get("step"), int)), default=0)
    return RunRecord(outcome, reason, train, held_out, begin, last)


def held_out_losses(run_dir: RunDir) -> list[float | None]:
    """Returns the held-out losses that metrics.jsonl has of a run of any length, None for one that is not finite; none
    where the run is done and lacks the last of them.
    """
    return [] if is_cut(run_dir) else [line["loss"] for line in _lines(run_dir) if line["kind"] == "eval"]


def _lines(run_dir: RunDir) -> Iterator[dict[str, Any]]:
    """Yields the lines of metrics.jsonl that have what is read of them."""
    return (line for line in read_jsonl(run_dir.metrics) if READ.get(line["kind"]) in line)


def is_cut(run_dir: RunDir) -> bool:
    """Returns whether a run is done and metrics.jsonl lacks lines of its end: its last step, or the evaluation after it
    where the run has others.
    """
    if not run_dir.done.exists():
        return False
    last: dict[str, int] = {line["kind"]: line["step"] for line in _lines(run_dir)}
    return last.get("train", 0) < _target(run_dir) or last.get("eval", _target(run_dir)) < _target(run_dir)


def _outcome(run_dir: RunDir, steps: int, events: list[dict[str, Any]]) -> tuple[str, str]:
    ended = [event["reason"] for event in events if event["event"] == DOMINATED]
    if ended:
        return DOMINATED, ended[-1]
    if run_dir.done.exists() and _target(run_dir) >= steps:
        return DONE, ""
    if is_held(run_dir.lock):
        return RUNNING, ""
    if problem := why_diverged(events):
        return DIVERGED, problem
    start = max((number for number, event in enumerate(events) if event["event"] == "started"), default=0)
    if any(event["event"] == "failed" for event in events[start:]):
        return FAILED, str(events[-1].get("reason", ""))
    return WAITING, "begun" if events else ""


def _loss(line: Mapping[str, Any]) -> float:
    """metrics.jsonl has null for what is not finite."""
    return math.nan if line["loss"] is None else float(line["loss"])


def _target(run_dir: RunDir) -> int:
    try:
        return int(json.loads(run_dir.done.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def dominated(settings: EarlyEnd, record: RunRecord, steps: int, competitors: Mapping[str, RunRecord]) -> str:
    """Returns why a running trial should stop early, or "": after the fraction `after` of its steps its held-out loss
    exceeds that of a competitor at the same step by more than `behind`. `competitors` are finished records, by name, of
    the same trial at other learning rates.
    """
    if not (settings.behind and record.held_out):
        return ""
    step, loss = record.held_out[-1]["step"], _loss(record.held_out[-1])
    for name, other in competitors.items() if step >= settings.after * steps else ():
        for theirs in (_loss(line) for line in other.held_out if line["step"] == step):
            if loss > theirs + settings.behind:
                return f"{loss:.4f} at step {step}, where {name} had {theirs:.4f}"
    return ""
