"""What a run of pre-training measures besides its held-out loss, how often, and which value decides what is best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpt1_ds.config import task
from gpt1_ds.config.task import SCALES, ProbeConfig

LINEAR = "linear/"  # before the name of a task that a linear model of the states answers
HELD_OUT = "eval"  # before the dot in the names of what the held-out text gives
KEY = "train.evaluations"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ProbeConfig):
    lm_eval: str = ""  # instead of a probe: a task or group of lm-evaluation-harness, or a task file (.yaml)
    linear: str = ""  # instead of a probe: a file or preset with a task; a linear model of the states is fitted to it
    every: int | None = None  # steps between two measurements; 0: only at the end; null: train.eval_every

    @property
    def shown(self) -> str:
        return self.lm_eval or (f"{LINEAR}{self.linear}" if self.linear else super().shown)

    @property
    def is_probe(self) -> bool:
        return not (self.lm_eval or self.linear)

    @property
    def metric(self) -> str:
        """Returns the score of a probe that a best checkpoint can be chosen by."""
        return "accuracy" if self.template else SCALES[self.name].metric

    def is_due(self, step: int, steps: int, eval_every: int) -> bool:
        """Returns whether it is measured after `step`; after the last of `steps` everything is."""
        every = eval_every if self.every is None else self.every
        return step == steps or (every > 0 and step % every == 0)


def evaluation_problems(evaluations: Sequence[EvaluationConfig]) -> Iterator[str]:
    """Yields a line for each problem of the whole list."""
    yield from task.problems([item for item in evaluations if item.is_probe], KEY)
    names = [item.shown for item in evaluations if not item.is_probe]
    for item in evaluations:
        if item.every is not None and item.every < 0:
            yield f"{KEY}: every={item.every} of {item.shown} is negative; use 0 to measure it at the end only"
        if item.is_probe:
            continue
        kind = "lm_eval" if item.lm_eval else "linear"
        value = getattr(item, kind)
        if item != EvaluationConfig(**{kind: value}, limit=item.limit, every=item.every):
            yield f"{KEY}: {kind}={value} has only limit and every beside it; give a probe an item of its own"
        if item.limit is not None and item.limit < 1:
            yield f"{KEY}: limit={item.limit} of {value} must be at least 1; leave it out to use all"
        if "," in value or names.count(item.shown) > 1:
            yield f"{KEY}: {kind}={value} must name one task, and only once; give each task an item"


def measured(evaluations: Sequence[EvaluationConfig], is_masked: bool) -> dict[str, bool]:
    """Returns whether higher is better, by the name of every value that checkpoint.best may be. Those of
    lm-evaluation-harness and of linear models are known only when their tasks are loaded.
    """
    held_out = {"loss": False} | ({"masked_accuracy": True} if is_masked else {})
    probes = [item for item in evaluations if item.template or (item.name in SCALES and item.is_probe)]
    scores = {f"{item.shown}.{item.metric}": True for item in probes}
    return {**{f"{HELD_OUT}.{key}": higher for key, higher in held_out.items()}, **scores}


def best_problems(best: str, evaluations: Sequence[EvaluationConfig], is_masked: bool) -> Iterator[str]:
    """Yields a line for a checkpoint.best that nothing measures. Whether a task has such a metric shows when it is
    loaded.
    """
    names = measured(evaluations, is_masked)
    if best not in names and all(item.is_probe for item in evaluations):
        yield f"checkpoint.best={best} is not measured; choose {', '.join(names)}, or add it to {KEY}"
