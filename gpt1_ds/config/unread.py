"""Keys that a run takes and never reads: those of a part that it does not have. A preset may name them for the runs
that have it; where a person names one on the command line, something else was wanted, and the run says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_type_hints

from gpt1_ds.config.layers import named_keys
from gpt1_ds.config.model import ModelConfig
from gpt1_ds.config.sections import Config, OptimizerConfig, ScheduleConfig
from gpt1_ds.config.task import GENERATION, MIXTURE, SENTENCES, TABLE, TOKEN_KINDS, TaskConfig, TaskKind

ABOVE_0 = "above 0"
AUTO = "auto"  # of a mixture, whose tasks may be of several kinds


@dataclass(frozen=True)
class ReadWhere:
    """`keys`, or sections of them, which are read where the key `decides` has one of `values`."""

    decides: str
    values: tuple[str, ...]
    keys: tuple[str, ...]

    def why_unread(self, config: Config) -> str | None:
        """Returns why a run does not read the keys; None where it does, and where it has no such section."""
        section, _, key = self.decides.partition(".")
        here = getattr(getattr(config, section), key, None)
        if here is None or str(here) in self.values or (ABOVE_0 in self.values and here > 0):
            return None
        values = " or ".join(value for value in self.values if value != AUTO)
        wanted = self.decides + (f" {ABOVE_0}" if ABOVE_0 in self.values else f"={values}")
        return f"it is read with {wanted}, this run has {self.decides}={here}"


def _all_but(section: type, key: str, *others: str) -> tuple[str, ...]:
    """Returns what the `key` of a section may be, apart from some: a value that is new reads what most read."""
    return tuple(value for value in get_args(get_type_hints(section)[key]) if value not in others)


PARTS = (
    ReadWhere("model.kind", ("lstm",), ("model.units",)),
    ReadWhere(
        "model.kind",
        _all_but(ModelConfig, "kind", "lstm"),
        ("model.heads", "model.head_width", "model.ffn", "model.attention_dropout", "model.ffn_dropout"),
    ),
    ReadWhere(
        "objective.kind",
        ("masked",),
        ("objective.probability", "objective.replace", "objective.random", "objective.whole_words"),
    ),
    ReadWhere(
        "objective.kind",
        ("spans",),
        ("objective.density", "objective.mean_length", "objective.sentinels", "objective.predict"),
    ),
    ReadWhere("data.text", ("windows", "full_sentences"), ("data.documents",)),
    ReadWhere("optimizer.name", ("muon",), ("optimizer.momentum",)),
    ReadWhere("optimizer.name", ("adafactor",), ("optimizer.parameter_scale",)),
    ReadWhere("optimizer.name", _all_but(OptimizerConfig, "name", "adafactor"), ("optimizer.betas", "optimizer.eps")),
    ReadWhere("schedule.kind", ("wsd",), ("schedule.decay_fraction",)),
    ReadWhere("schedule.kind", _all_but(ScheduleConfig, "kind", "constant"), ("schedule.final_fraction",)),
    ReadWhere("guard.z", (ABOVE_0,), ("guard.window",)),
    ReadWhere("tracking.wandb", ("offline", "online"), ("tracking.entity", "tracking.tags", "tracking.artifacts")),
    ReadWhere("task.kind", (SENTENCES,), ("task.pooling", "task.loss", "task.margin", "task.group")),
    ReadWhere("task.loss", ("triplet",), ("task.margin",)),
    ReadWhere("task.loss", ("ranking",), ("task.group",)),
    ReadWhere("task.name", (MIXTURE,), ("task.mixture_limit", "task.mixture_temperature")),
    ReadWhere("task.name", (TABLE, MIXTURE), ("task.header",)),
    ReadWhere("task.kind", ("span",), ("task.stride",)),
    ReadWhere("task.kind", ("regression",), ("task.regression",)),
    ReadWhere("task.kind", ("regression", SENTENCES, AUTO), ("task.score_range",)),
    ReadWhere("task.kind", _all_but(TaskConfig, "kind", *TOKEN_KINDS), ("task.too_long",)),
    ReadWhere(
        "task.kind",
        (GENERATION, AUTO),
        ("task.prefix", "task.target_length", "task.decoded_examples", "task.decoding"),
    ),
    ReadWhere("task.form", ("head",), ("task.head_dropout",)),
    ReadWhere(
        "task.kind",
        _all_but(TaskConfig, "kind", SENTENCES),
        ("task.head_dropout", "task.lm_coefficient"),
    ),
    ReadWhere(
        "task.form",
        ("head", "text"),
        (
            *("optimizer", "schedule", "train.steps", "train.epochs", "train.global_batch"),
            *("task.lm_coefficient", "task.transfer_layers", "task.frozen_layers"),
        ),
    ),
)
PRETRAINING = ("objective", "data", "train.eval_every", "train.eval_batches")
EVALUATING = ("probes",)
TRAINING = (  # what the command evaluate does without
    *("optimizer", "schedule", "train.steps", "train.tokens", "train.epochs", "train.log_every", "train.watch"),
    *("train.eval_every", "train.evaluations", "train.profile", "train.label_smoothing"),
)


def unread(config: Config, overrides: Sequence[str], kind: TaskKind = "auto") -> dict[str, str]:
    """Returns "KEY=VALUE changes nothing: WHY" for each key of the overrides that the training run `config` does not
    read, by the key. `kind` is that of the task, which the section itself names of a table alone.
    """
    if config.task is not None and kind != AUTO:
        config = replace(config, task=replace(config.task, kind=kind))
    found = {}
    for key, value in named_keys(overrides):
        if (why := next(_reasons(config, key), None)) is not None:
            found[key] = f"{_as_written(key, value, overrides)} changes nothing: {why}"
    return found


def unread_by_evaluate(overrides: Sequence[str]) -> Iterator[str]:
    """Yields the same of the command evaluate."""
    for key, value in named_keys(overrides):
        if key == "train.eval_batches":
            yield f"{key}={value} changes nothing: evaluate reads all of the held-out text"
        elif _is_one_of(key, TRAINING):
            yield f"{_as_written(key, value, overrides)} changes nothing: evaluate does not train"


def _as_written(key: str, value: Any, overrides: Sequence[str]) -> str:
    """Returns the key and its value as they were written."""
    return f"{next((one for one in reversed(overrides) if one.startswith(f'{key}=')), f'{key}={value}'):.80}"


def _reasons(config: Config, key: str) -> Iterator[str]:
    if _is_one_of(key, EVALUATING):
        yield "only the command evaluate asks probes; train.evaluations asks them while a model is pre-trained"
    if config.task is not None and _is_one_of(key, PRETRAINING):
        yield "it is for pre-training; fine-tuning reads the section task, and scores its dev split after every epoch"
    for part in PARTS:
        if _is_one_of(key, part.keys) and (why := part.why_unread(config)) is not None:
            yield why


def _is_one_of(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
