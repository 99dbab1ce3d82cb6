"""A study at a part of its size: the same models, rows, columns and controls, with less text and fewer examples.

What takes hours is tried in minutes, to its last table, in a folder of its own. Its scores say nothing.
"""

from __future__ import annotations

from dataclasses import replace

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.sweep.finetuning_study import STEP, Study

LEAST = 16  # examples
SCORED = 1000  # examples of a split that the whole study scores all of


def rehearsed(study: Study, parts: int) -> Study:
    """The study as `NAME-rehearsal`: its first seed, and rows that begin with an earlier step of a model. Raises
    ConfigError.
    """
    if parts < 2:
        raise ConfigError(f"--rehearse={parts}: a rehearsal is a part of the study; write 2 or more, like 10")
    variants = {name: [_earlier(override, parts) for override in row] for name, row in study.variants.items()}
    transfer = study.layer_transfer and replace(study.layer_transfer, seeds=study.layer_transfer.seeds[:1])
    name, models = f"{study.name}-rehearsal", study.models and f"{study.models}-rehearsal"
    return replace(study, name=name, models=models, seeds=study.seeds[:1], variants=variants, layer_transfer=transfer)


def smaller(config: Config, parts: int) -> Config:
    """A run of the study with a `parts`-th of its steps, tokens, epochs or examples; saves come as much sooner."""
    train, schedule, kept, task = config.train, config.schedule, config.checkpoint, config.task
    if task is not None and task.train_examples is not None:
        task = replace(task, train_examples=max(LEAST, task.train_examples // parts))  # as many epochs
    else:
        train = replace(train, steps=_less(train.steps, parts), tokens=_less(train.tokens, parts))
        train = replace(train, epochs=(train.epochs or 1.0) / parts if not (train.steps or train.tokens) else None)
        schedule = replace(schedule, warmup_steps=_less(schedule.warmup_steps, parts))
    if task is not None:
        task = replace(task, scored_examples=max(LEAST, (task.scored_examples or SCORED) // parts))
    train = replace(train, eval_every=_interval(train.eval_every, parts, train.steps))
    kept = replace(
        kept,
        every=_interval(kept.every, parts, train.steps),
        keep_every=_interval(kept.keep_every, parts, train.steps),
    )
    return replace(config, train=train, schedule=schedule, checkpoint=kept, task=task)


def _less(value: int | None, parts: int) -> int | None:
    """At least 1 of what is not nothing."""
    return max(1, value // parts) if value else value


def _interval(steps: int, parts: int, last: int | None) -> int:
    """At most a `parts`-th, which divides the last step: rows may begin with half of a model's steps. 0 stays."""
    most = _less(steps, parts) or 0
    return next((each for each in range(most, 0, -1) if not last or last % each == 0), 0)


def _earlier(override: str, parts: int) -> str:
    key, _, value = override.partition("=")
    return f"{key}={_less(int(value), parts)}" if key == STEP else override
