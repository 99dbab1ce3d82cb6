"""A fine-tuning study: a table of task x variant x seed, every cell of which is one trial; and the study at a part of
its size: the same models, rows, columns and controls, with less text and fewer examples.

Its YAML file has the keys of `FinetuningStudy`. Keys of the configuration stand in it as on the command line
(`task.path: x`) or nested (`task: {path: x}`):

    tasks:
      - finetune/cola                       # a preset as it is
      - {preset: finetune/qnli, name: qnli-small, task.train_examples: 1000}
      - {preset: finetune/rte, examples: {100: 20, 1000: 6}}  # a column for each number of them, with its epochs
    variants:
      full:                                 # a variant of the paper's Table 5, known by its name
      low rate: {optimizer.lr: 1e-5}        # one of your own
      BERT: {checkpoint.init_from: runs/b}  # another model
    pretrain:                               # models that the study trains first, a row each
      - {preset: pretrain/gpt2_books_cpu, name: GPT-2, train.tokens: 4M}
    choose: {optimizer.lr: [1e-4, 3e-4]}    # every cell is trained with each value; dev chooses
    compare:                                # differences of rows, with what is expected before the study runs
      - {first: full, second: no pre-training, expect: above}

What takes hours is tried in minutes, to its last table, in a folder of its own. Its scores say nothing.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.config.values import as_overrides
from gpt1_ds.sweep.study_file import StudySettings, read_study
from gpt1_ds.tasks.controls import ALL_CONTROLS

LSTM = "LSTM"
TABLE_5: Mapping[str, tuple[str, ...]] = {  # the paper's variants and what makes them
    "full": (),
    "no pre-training": ("task.transfer_layers=-1",),
    "no auxiliary LM": ("task.lm_coefficient=0",),
    LSTM: (),  # the checkpoint of another model
}
NOTHING = ("", "null", "~")  # as YAML writes it
SOURCE = "checkpoint.init_from"
PRETRAINED = "pretrained"  # of a row: the model of `pretrain` that it begins with
STEP = "pretrained_step"  # of a row: the step whose checkpoint of that model it begins with; without: the last
OWN_KEYS = ("run.name", "run.seed")  # the study sets them for every cell
_TAKEN = {"tasks": ("figures", PRETRAINED), "variants": ALL_CONTROLS}  # folders and rows of the study's own
_OF_CURVE = re.compile(r"transfer (nothing|\d+)")  # rows of the layer-transfer curve


@dataclass(frozen=True, kw_only=True)
class StudyTask:
    preset: str = ""  # configuration file or shipped preset, like finetune/cola
    name: str = ""  # its column in the table, and its folder; empty: the preset's stem
    table: bool = True  # false: no column of the table, only on the layer-transfer curve
    overrides: list[str] = field(default_factory=list)  # key=value overrides


@dataclass(frozen=True, kw_only=True)
class PretrainedModel:
    preset: str = ""  # configuration file or shipped preset, like pretrain/books_cpu
    name: str = ""  # its row of the table, and its folder; empty: the preset's stem
    overrides: list[str] = field(default_factory=list)  # key=value overrides


@dataclass(frozen=True, kw_only=True)
class LayerTransfer:
    """Figure 2 (left) of the paper: the metric against the number of layers taken from the checkpoint."""

    tasks: list[str] = field(default_factory=list)  # names of tasks of the study
    layers: list[int] = field(default_factory=list)  # blocks taken; -1: nothing, 0: embeddings only
    seeds: list[int] = field(default_factory=list)  # empty: those of the study


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Whether one row is above another, paired by seed and example (tasks/comparison.py)."""

    first: str = ""  # a row, or a control (majority, bag of words, word overlap, words and overlap, ...)
    second: str = ""  # the same
    expect: Literal["", "above", "below", "same", "not above"] = ""  # of first; written before the study runs
    margin: float = 2.0  # points that are as good as none: same and `not above` allow them
    tasks: list[str] = field(default_factory=list)  # of the table, that the claim is about; empty: all
    trend: bool = False  # instead of the difference its slope per doubling of the examples of the same task
    claim: str = ""  # in words, for the page


@dataclass(frozen=True, kw_only=True)
class FinetuningStudy(StudySettings):
    checkpoint: str = ""  # what a cell begins with unless its variant says: a run or checkpoint folder
    tasks: list[StudyTask] = field(default_factory=list)  # columns of the table
    pretrain: list[PretrainedModel] = field(default_factory=list)  # models that are trained first, with every seed
    models: str = ""  # the study whose folder holds them, for several studies of the same models; empty: this one
    variants: dict[str, list[str]] = field(default_factory=dict)  # rows: name -> key=value; empty: full, or pretrain's
    controls: list[str] = field(default_factory=list)  # rows that are drawn in grey: what the others are judged by
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])  # runs of each cell of the table, and of pretrain
    split: Literal["dev", "test", "unseen"] = "dev"  # that the table shows; the best epoch is always chosen on dev
    choose: dict[str, list[str]] = field(default_factory=dict)  # key -> values that every cell tries; dev chooses one
    compare: list[Comparison] = field(default_factory=list)  # pairs of rows
    layer_transfer: LayerTransfer | None = None  # null: no such curve

    @property
    def columns(self) -> list[str]:
        """The tasks of the table."""
        return [task.name for task in self.tasks if task.table]

    @property
    def rows(self) -> dict[str, list[str]]:
        """Name -> key=value overrides: the models of `pretrain`, then the variants."""
        return {one.name: [f"{PRETRAINED}={one.name}"] for one in self.pretrain} | self.variants or {"full": []}

    @property
    def choices(self) -> list[list[str]]:
        """The overrides of each combination of values that a cell chooses from; one of none."""
        keys = [[f"{key}={value}" for value in values] for key, values in self.choose.items()]
        return [list(values) for values in itertools.product(*keys)]

    @property
    def common(self) -> list[str]:
        """Overrides of all cells. `unseen` is test where it has labels, else a half of dev that chooses nothing."""
        return [*self.overrides, *(["task.halves=true"] if self.split == "unseen" else [])]

    @property
    def checkpoints(self) -> list[str]:
        """What the rows of the table begin with."""
        rows = self.rows.values()
        named = (named_last(SOURCE, row) or named_last(PRETRAINED, row) or self.checkpoint for row in rows)
        return list(dict.fromkeys(named))

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not self.checkpoint and (not all(self.checkpoints) or self.layer_transfer is not None):
            yield "checkpoint is empty; name the run or checkpoint folder that cells begin with, or each variant's own"
        for key, values in (("tasks", self.columns), ("seeds", self.seeds)):
            if not values:
                yield f"{key} is empty; a table needs at least one"
        if self.models and folder_name(self.models) != self.models:
            yield f"models={self.models!r} is no name of a study; it is that of a folder beside this study's"
        yield from _seed_problems("seeds", self.seeds)
        yield from self._name_problems()
        yield from self._override_problems()
        yield from self._compare_problems()
        if self.choose and self.layer_transfer is not None:
            yield "choose: a layer_transfer has one run for each number of layers; leave one of them out"
        for key, values in self.choose.items():
            if not values or len(set(values)) < len(values):
                yield f"choose.{key}={values} must name at least one value, and none twice"
        if self.layer_transfer is not None:
            yield from self._transfer_problems(self.layer_transfer)
        elif len(self.columns) < len(self.tasks):
            yield "tasks: table=false is for tasks of layer_transfer, which is not there; leave the task out"

    def _name_problems(self) -> Iterator[str]:
        rows = [*(one.name for one in self.pretrain), *self.variants]
        for kind, names in (("tasks", [task.name for task in self.tasks]), ("variants", rows)):
            folders = [folder_name(name) for name in names]
            if "" in folders:
                yield f"{kind}: {names[folders.index('')]!r} cannot name a folder; use letters and digits"
            for folder in sorted({folder for folder in folders if folder and folders.count(folder) > 1}):
                yield f"{kind}: two of them would lie in the folder {folder}; give one another name"
            for name in names:
                if name in _TAKEN[kind] or (self.layer_transfer is not None and _OF_CURVE.fullmatch(name)):
                    yield f"{kind}: {name!r} is what the study itself calls something; give it another name"
        tried = [cell_folder("", "", " ".join(choice)) for choice in self.choices]
        for folder in sorted({folder for folder in tried if tried.count(folder) > 1}):
            yield f"choose: two trials would have the folder {folder}; choose other values"
        for name in self.controls:
            if name not in self.rows:
                yield f"controls: {name!r} is no row; choose from {', '.join(self.rows)}"

    def _override_problems(self) -> Iterator[str]:
        if LSTM in self.variants and not named_last(SOURCE, self.variants[LSTM]):
            yield f"variants.{LSTM} needs checkpoint.init_from: the checkpoint of an LSTM (model.kind=lstm)"
        places = {"overrides": self.overrides}
        places |= {f"tasks.{task.name}": task.overrides for task in self.tasks}
        places |= {f"variants.{name}": overrides for name, overrides in self.variants.items()}
        places |= {f"pretrain.{one.name}": one.overrides for one in self.pretrain}
        places |= {"choose": [f"{key}=" for key in self.choose]}
        known = [one.name for one in self.pretrain]
        for name, overrides in self.variants.items():
            if (model := named_last(PRETRAINED, overrides)) not in (None, *known):
                yield f"variants.{name}: pretrained={model} is not in pretrain; choose {', '.join(known) or 'nothing'}"
            step = named_last(STEP, overrides)
            if step is not None and (model is None or not step.isdecimal() or int(step) < 1):
                yield f"variants.{name}: pretrained_step={step} must be a step of the model that pretrained names"
        for place, overrides in places.items():
            for key in (override.partition("=")[0] for override in overrides):
                if key in OWN_KEYS:
                    yield f"{place}: {key} is set by the study for every cell; leave it out"
                elif key.startswith("run.") and place != "overrides":
                    yield f"{place}: {key} is the same for all cells; write it below overrides"

    def _compare_problems(self) -> Iterator[str]:
        known = [*self.rows, *ALL_CONTROLS]
        for number, one in enumerate(self.compare):
            for key in ("first", "second"):
                if (name := getattr(one, key)) not in known:
                    near = difflib.get_close_matches(name, known, 1) or known
                    yield f"compare[{number}].{key}={name!r} is no row or control; choose {', '.join(near)}"
            for name in one.tasks:
                if name not in self.columns:
                    yield f"compare[{number}].tasks: {name} is no column; choose {', '.join(self.columns)}"
            if one.first == one.second:
                yield f"compare[{number}]: {one.first!r} is compared with itself; name another second"
            if not one.margin > 0:
                yield f"compare[{number}].margin={one.margin} must be above 0"

    def _transfer_problems(self, transfer: LayerTransfer) -> Iterator[str]:
        names = [task.name for task in self.tasks]
        for name in transfer.tasks:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                yield f"layer_transfer.tasks: {name} is no task of the study; choose {', '.join(near or names)}"
        for task in self.tasks:
            if not task.table and task.name not in transfer.tasks:
                yield f"tasks.{task.name}: table=false, and layer_transfer.tasks does not name it; leave it out"
        for key in ("tasks", "layers"):
            values = getattr(transfer, key)
            if not values or len(set(values)) < len(values):
                yield f"layer_transfer.{key}={values} must name at least one, and none twice"
        if any(layers < -1 for layers in transfer.layers):
            yield f"layer_transfer.layers={transfer.layers}: -1 is nothing, 0 embeddings only, or more"
        yield from _seed_problems("layer_transfer.seeds", transfer.seeds)


def load_study(name: str) -> FinetuningStudy:
    """Reads a study's file, or a shipped preset like finetune/study/books.

    Raises ConfigError naming every problem of the file. What the keys of the configuration hold is judged where the
    cells' configurations are made.
    """
    return read_study(FinetuningStudy, name, _typed)


def named_last(key: str, overrides: Sequence[str]) -> str | None:
    """Returns the value that the last of the overrides gives a key."""
    values = [value for name, _, value in (override.partition("=") for override in overrides) if name == key]
    return values[-1] if values else None


def folder_name(name: str) -> str:
    """Returns `no pre-training` as a part of a path: no-pre-training."""
    return re.sub(r"[^\w.]+", "-", name).strip("-.")


def cell_folder(task: str, variant: str, choice: str) -> str:
    """Returns the path of a cell's runs below the study's folder. In a choice a minus before a number stays one."""
    parts = (task, variant, re.sub(r"=-(?=[\d.])", "=minus-", choice))
    return "/".join(folder_name(part) for part in parts if part)


def _typed(key: str, value: Any) -> Any:
    """Returns `value` as its field wants it: tasks as mappings, keys of the configuration as key=value overrides."""
    if key == "tasks":
        if not isinstance(value, list):
            raise TypeError(f"{value!r:.80} is no list of presets, like [finetune/cola, finetune/rte]")
        return [column for item in value for column in _columns(item)]
    if key == "pretrain":
        if not isinstance(value, list):
            raise TypeError(f"{value!r:.80} is no list of presets, like [pretrain/books_cpu, pretrain/gpt2_books_cpu]")
        return [_task(item, "pretrain/books_cpu") for item in value]
    if key == "choose" and not isinstance(value, dict):
        raise TypeError(f"{value!r:.80} is no mapping, like {{optimizer.lr: [1e-4, 3e-4]}}")
    if key == "variants" and isinstance(value, list):
        return {name: _known(name) for name in value}
    if key == "variants" and isinstance(value, dict):
        return {name: as_overrides(item) if item not in NOTHING else _known(name) for name, item in value.items()}
    if key == "overrides":
        return as_overrides(value)
    if key == "layer_transfer" and value in NOTHING:
        return None
    return value


def _columns(item: Any) -> Iterator[dict[str, Any]]:
    """Yields a task, or with `examples` one for each number of training examples, with its epochs: a learning curve."""
    counts = item.get("examples") if isinstance(item, dict) else None
    if counts is None:
        yield _task(item)
        return
    if not isinstance(counts, dict) or not counts:
        raise TypeError(f"examples={counts!r:.60} is no mapping of numbers to epochs, like {{100: 20, 1000: 6}}")
    whole = _task({key: value for key, value in item.items() if key != "examples"})
    for count, epochs in counts.items():
        words = [f"task.train_examples={count}", f"train.epochs={epochs}"]
        yield {**whole, "name": f"{whole['name']}-{count}", "overrides": [*whole["overrides"], *words]}


def _task(item: Any, example: str = "finetune/cola") -> dict[str, Any]:
    values = {"preset": item} if isinstance(item, str) else item
    if not isinstance(values, dict) or not values.get("preset"):
        raise ValueError(f"{item!r:.80} names no preset; write {example}, or {{preset: {example}, ...}}")
    own = {key: value for key, value in values.items() if key in ("preset", "name", "table")}
    rest = {key: value for key, value in values.items() if key not in own}
    return {"name": Path(values["preset"]).stem, **own, "overrides": as_overrides(rest)}


def _known(name: Any) -> list[str]:
    if name in TABLE_5:
        return list(TABLE_5[name])
    raise ValueError(
        f"{name!r} says nothing, and is no variant of the paper; choose {', '.join(TABLE_5)}, or give it keys"
    )


def _seed_problems(key: str, seeds: Sequence[int]) -> Iterator[str]:
    if len(set(seeds)) < len(seeds) or any(not 0 <= seed < 2**63 for seed in seeds):
        yield f"{key}={seeds} must be different numbers from 0 to 2**63-1"


LEAST = 16  # examples
SCORED = 1000  # examples of a split that the whole study scores all of


def rehearsed(study: FinetuningStudy, parts: int) -> FinetuningStudy:
    """Returns the study as `NAME-rehearsal`: its first seed, and rows that begin with an earlier step of a model.
    Raises ConfigError.
    """
    if parts < 2:
        raise ConfigError(f"--rehearse={parts}: a rehearsal is a part of the study; write 2 or more, like 10")
    variants = {name: [_earlier(override, parts) for override in row] for name, row in study.variants.items()}
    transfer = study.layer_transfer and replace(study.layer_transfer, seeds=study.layer_transfer.seeds[:1])
    name, models = f"{study.name}-rehearsal", study.models and f"{study.models}-rehearsal"
    return replace(study, name=name, models=models, seeds=study.seeds[:1], variants=variants, layer_transfer=transfer)


def smaller(config: Config, parts: int) -> Config:
    """Returns a run of the study with a `parts`-th of its steps, tokens, epochs or examples; saves come as much
    sooner.
    """
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
