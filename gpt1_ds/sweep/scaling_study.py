"""A scaling study: arms of pre-training trials over depth, data and seeds, from which a loss law is fitted.

Its YAML file has the keys of `ScalingStudy`; counts are written as elsewhere (`10M`, `1e9`):

    arms:
      - {name: ladder, kind: ladder, layers: [2, 4, 8], tokens: [1M, 4M, 16M], seeds: [1]}
      - {name: repeats, kind: data, layers: [4], width: 256, tokens: [16M], unique_tokens: [2M, 4M]}
    overrides: {data.path: data/books, train.global_batch: 8}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gpt1_ds.config.values import as_overrides, count_or_text
from gpt1_ds.sweep.study_file import StudySettings, read_study

OWN_KEYS = (  # the study sets them for every cell
    *("run.name", "run.seed", "model.layers", "model.width", "model.heads", "data.unique_tokens", "data.epochs_limit"),
    *("train.steps", "train.tokens", "train.epochs", "optimizer.lr", "schedule.kind", "schedule.warmup_steps"),
    *("schedule.warmup_fraction", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every", "checkpoint.resume"),
    *("checkpoint.init_from", "guard.rise", "tracking.group"),
)
COUNTS = ("width", "parameters", "tokens", "unique_tokens", "budget_flops")


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs of every combination of layers, tokens, unique_tokens, seeds and rates.

    - ladder: width = width_per_layer x layers, as in GPT-1; the compute law L(N, D)
    - depth: `width` fixed
    - shape: about `parameters` in the blocks at every depth, the width derived
    - data: token budgets at `width`, with unique_tokens apart: repeated data
    """

    name: str = ""  # the column `arm` of results.csv
    kind: Literal["ladder", "depth", "shape", "data"] = "ladder"  # how widths follow, see above
    layers: list[int] = field(default_factory=list)  # depths
    tokens: list[int] = field(default_factory=list)  # training tokens, rounded up to whole steps
    width: int | None = None  # of kinds depth and data
    parameters: int | None = None  # of kind shape: wanted in the blocks
    unique_tokens: list[int] = field(default_factory=list)  # distinct tokens to train on; empty: all there are
    seeds: list[int] = field(default_factory=lambda: [1])  # of weights, dropout and data order
    rates: list[float] = field(default_factory=lambda: [1.0])  # multiples of the learning rate that the rule gives

    def problems(self) -> Iterator[str]:
        for key in ("layers", "tokens", "seeds", "rates"):
            if not getattr(self, key):
                yield f"{key} is empty; name at least one"
        for key in ("layers", "tokens", "unique_tokens", "rates"):
            for value in getattr(self, key):
                if not value > 0:
                    yield f"{key}: {value} must be above 0"
        for key in ("layers", "tokens", "unique_tokens", "seeds", "rates"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                yield f"{key}={values} names one twice; leave one out"
        needed = {"depth": "width", "data": "width", "shape": "parameters"}.get(self.kind)
        for key in ("width", "parameters"):
            value = getattr(self, key)
            if key == needed and (value is None or value < 1):
                yield f"{key}={value}: the kind {self.kind} needs it, above 0"
            elif key != needed and value is not None:
                yield f"{key}={value}: the kind {self.kind} has its own widths; leave it out"
        if self.unique_tokens and self.kind != "data":
            yield f"unique_tokens={self.unique_tokens}: repeated data are of kind data; use it, or leave them out"


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Learning rate of a width: value x (width / reference)^exponent."""

    value: float = 6e-4  # optimizer.lr at the reference width
    reference: int = 192  # the width at which `value` was found
    exponent: float = -0.5  # 0: the same for all widths

    def at(self, width: int) -> float:
        return float(f"{self.value * (width / self.reference) ** self.exponent:.4g}")


@dataclass(frozen=True, kw_only=True)
class EarlyEnd:
    """When a cell ends before its time."""

    rise: float = 1.0  # diverged: held-out loss this far above its best so far (nats; guard.rise); 0: only not finite
    behind: float = 0.0  # dominated: this far behind a finished rate of the same cell at equal tokens (nats); 0: never
    after: float = 0.5  # fraction of the run before it can be called dominated


@dataclass(frozen=True, kw_only=True)
class ScalingStudy(StudySettings):
    base: list[str] = field(default_factory=list)  # configuration files that every cell begins with
    arms: list[Arm] = field(default_factory=list)  # what is run
    convention: Literal["matrices_head", "all", "transformer"] = "matrices_head"  # parameters that N counts
    width_per_layer: int = 64  # of kind ladder; GPT-1 has 64
    head_width: int = 64  # width of an attention head
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"  # wsd: budgets of one size branch off one trunk
    warmup: float = 1.0  # warm-up tokens per parameter (N), at most a quarter of the smallest budget of its size
    learning_rate: Rate = field(default_factory=Rate)  # of a width: value x (width / reference)^exponent
    held_out: list[str] = field(default_factory=list)  # names of cells that no fit sees
    epochs_limit: float = 4.0  # most passes over the data, apart from arms of kind data
    fit_ranks: bool = False  # each SLURM job has the fewest ranks, nproc at most, that hold and end its cell in time
    budget_flops: int | None = None  # refuse a study whose cells need more (model FLOPs); null: no limit
    budget_hours: float | None = None  # stop at this many hours of all ranks together; null: no limit
    stop: EarlyEnd = field(default_factory=EarlyEnd)  # of cells that are hopeless

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.arms:
            yield "arms is empty; a study needs at least one"
        names = [arm.name for arm in self.arms]
        for number, arm in enumerate(self.arms):
            if not re.fullmatch(r"[\w.-]+", arm.name):
                yield f"arms: name={arm.name!r} of number {number + 1} is no name; use letters, digits, '_' and '-'"
            yield from (f"arms.{arm.name}: {problem}" for problem in arm.problems())
        yield from (f"arms: two are called {name}" for name in sorted({x for x in names if names.count(x) > 1}))
        for key, least in (("width_per_layer", 1), ("head_width", 1), ("warmup", 0), ("epochs_limit", 0)):
            if not getattr(self, key) >= least:
                yield f"{key}={getattr(self, key)} is too small; it must be at least {least}"
        for key in ("budget_flops", "budget_hours"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                yield f"{key}={value} must be above 0; null is no limit"
        if not self.learning_rate.value > 0 or self.learning_rate.reference < 1:
            yield f"learning_rate: value={self.learning_rate.value} and reference must be above 0"
        if not self.stop.behind >= 0:
            yield f"stop.behind={self.stop.behind} must be 0 or more; 0 ends no cell early"
        if not 0 <= self.stop.after <= 1:
            yield f"stop.after={self.stop.after} is a fraction of the run; write one from 0 to 1"
        for override in self.overrides:
            key = override.partition("=")[0]
            if key in OWN_KEYS:
                yield f"overrides: {key} is set by the study for every cell; leave it out"


def load_scaling(name: str) -> ScalingStudy:
    """Reads a scaling study's file, or a shipped preset like scaling/books. Raises ConfigError naming every problem."""
    return read_study(ScalingStudy, name, _typed)


def _typed(key: str, value: Any) -> Any:
    """Returns `value` as its field wants it: counts as numbers, keys of the configuration as key=value overrides."""
    if key == "overrides":
        return as_overrides(value)
    if key == "base" and isinstance(value, str):
        return [value]
    if key == "arms":
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise TypeError(f"{value!r:.80} is no list of arms, like [{{name: ladder, layers: [2, 4], ...}}]")
        return [{field: _typed(field, item) for field, item in arm.items()} for arm in value]
    if key in COUNTS:
        return [count_or_text(item) for item in value] if isinstance(value, list) else count_or_text(value)
    return value
