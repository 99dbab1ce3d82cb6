"""From a fine-tuning study to its sweep: every trial with its whole configuration.

A point of the layer-transfer curve whose configuration is that of a trial of the table is that trial, and runs once.

controls.json of a fine-tuning study: of each of its tasks, the scores and answers of tasks/controls.py, and the
right answers, which comparisons need.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.files import write_json
from gpt1_ds.common.log import say
from gpt1_ds.common.text import duration
from gpt1_ds.config import Config, TaskConfig
from gpt1_ds.config.sections import RunConfig
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.sources import needs_embedded_corpus
from gpt1_ds.scaling.tables import DIVERGED
from gpt1_ds.sweep.finetuning_study import (
    OWN_KEYS,
    PRETRAINED,
    SOURCE,
    STEP,
    FinetuningStudy,
    LayerTransfer,
    cell_folder,
    named_last,
)
from gpt1_ds.sweep.pretraining_trials import PretrainingSweep, PretrainingTrial
from gpt1_ds.sweep.study_file import refuse_keys
from gpt1_ds.sweep.trial import TAKEN_KEYS, TRAINING_KEYS, Sweep, Trial, tracked
from gpt1_ds.tasks.base import ControlAnswers, Task
from gpt1_ds.tasks.encoding import fitted, symbol_roles
from gpt1_ds.tasks.example import hash_examples
from gpt1_ds.tasks.metrics import check_libraries, control_scores
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tasks.registry import first_metric
from gpt1_ds.tracking.record import of_run, read_entries

Configure = Callable[[Sequence[str], Sequence[str]], Config]  # (files, overrides) -> one run's configuration
Configs = dict[tuple[str, str, str], Config]  # (task, variant, choice) -> configuration, as for no seed yet
# A finished trial whose configuration differs in one of these is another experiment.
RESULT_KEYS = (*TRAINING_KEYS, "model.", "checkpoint.init_from", "checkpoint.positions", "task.")


@dataclass(frozen=True, eq=False, kw_only=True)
class FinetuningTrial(Trial):
    task: str
    variant: str
    seed: int
    choice: str = ""  # what it tries of the study's `choose`

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.task, self.variant, self.choice, f"seed {self.seed}")))

    @property
    def section(self) -> TaskConfig:
        assert self.config.task is not None, "a fine-tuning trial has a task"
        return self.config.task

    @property
    def done(self) -> bool:
        return (self.run_dir.done.exists() and self.run_dir.evaluation.exists()) or bool(self.divergence)

    @property
    def result(self) -> str:
        """The dev split's first metric, as eval.json has it; null where it is not defined."""
        if problem := self.divergence:
            return f"{DIVERGED}: {problem}"
        entries = read_entries(self.run_dir.evaluation)
        first = [next(iter(entry["metrics"].items())) for entry in of_run(entries) if entry["split"] == "dev"]
        return ", ".join(f"{name} {'null' if value is None else f'{value:.4f}'}" for name, value in first)

    def must_keep(self, key: str) -> bool:
        return key.startswith(RESULT_KEYS) and key not in TAKEN_KEYS

    def differences(self) -> Iterator[str]:
        return super().differences() if self.done else iter(())


@dataclass(frozen=True)
class FinetuningSweep(Sweep):
    """The trials of the table first, one seed after the other so that the table fills evenly.

    `curve`: (blocks taken, trial) of the layer-transfer figure; -1 takes nothing, 0 the embeddings only. `lacking`: the
    cells of rows whose model diverged in pre-training, and its run folder; they have no trial.
    """

    study: FinetuningStudy
    trials: tuple[FinetuningTrial, ...]
    curve: tuple[tuple[int, FinetuningTrial], ...]
    lacking: tuple[tuple[str, str, int, Path], ...] = ()  # task, variant, seed, run folder

    def describe(self) -> dict[str, Any]:
        tasks = {trial.task: trial.section for trial in self.trials}
        lacking = (self._cell(*cell) for cell in self.lacking)
        return {
            "name": self.study.name,
            "checkpoint": ", ".join(self.study.checkpoints),
            "tasks": [
                {
                    "name": name,
                    "task": section.name,
                    "metric": first_metric(section),
                    "table": name in self.study.columns,
                    "examples": section.train_examples,
                }
                for name, section in tasks.items()
            ],
            "variants": list(self.study.rows),
            "controls": list(self.study.controls),
            "seeds": list(self.study.seeds),
            "split": self.study.split,
            "compare": [asdict(one) for one in self.study.compare],
            "cells": [*map(self._place, self.trials), *lacking],
            "layer_transfer": [{"layers": layers, **self._place(trial)} for layers, trial in self.curve],
        }

    def _place(self, trial: FinetuningTrial) -> dict[str, Any]:
        place = self._cell(trial.task, trial.variant, trial.seed, trial.run_dir.path)
        return {**place, "choice": trial.choice} if trial.choice else place

    def _cell(self, task: str, variant: str, seed: int, folder: Path) -> dict[str, Any]:
        return {"task": task, "variant": variant, "seed": seed, "folder": os.path.relpath(folder, self.folder)}

    def check(self) -> None:
        """Raises UserError also for tasks whose files cannot be read. Says which models diverged, which cells have
        scores of other examples, and which runs have no row.
        """
        for variant, folder in dict.fromkeys((variant, folder) for _, variant, _, folder in self.lacking):
            say(f"{folder}: diverged in pre-training; {variant} has no cells of it")
        problems = list(self.differences())
        sections = {trial.task: trial.section for trial in self.trials}
        problems += _trend_problems(self.study, sections)
        for section in sections.values():
            try:
                for note in self._stale_scores(section, read_task(section)):
                    say(note)
            except UserError as error:
                problems += error.problems
        UserError.raise_all(problems)
        for line in self.left_out():
            say(line)

    def _stale_scores(self, section: TaskConfig, data: TaskData) -> Iterator[str]:
        """Yields a line for each split of a done trial whose examples are not those of `data`."""
        here = {split: hash_examples(examples) for split, examples in data.splits.items()}
        for trial in self.trials:
            if not trial.done or trial.section != section:
                continue
            for entry in of_run(read_entries(trial.run_dir.evaluation)):
                now = here.get(entry["split"])
                if entry.get("data", now) != now:
                    reason = f"its scores of {entry['split']} are of other examples than {section.path} now has"
                    yield f"{trial.run_dir.path}: {reason}; put them back, or remove the folder"

    def table(self) -> Iterator[str]:
        """Yields a line per trial, and the totals."""
        ends = [trial.early_end or ("done" if trial.done else "to do") for trial in self.trials]
        wide = max(len("to do"), *map(len, ends))
        for trial, end in zip(self.trials, ends, strict=True):
            yield f"{end:<{wide}}  {trial}"
        yield self.totals


def check_tasks(
    study: FinetuningStudy, configure: Configure, overrides: Sequence[str], models: Mapping[str, Config]
) -> None:
    """Raises UserError for tasks that cannot be read, that have no trend, or that the tokenizer of one of the `models`
    has no symbols for, before there is a model to fine-tune.
    """
    problems: list[str] = []
    tasks: dict[str, tuple[Task, TaskConfig]] = {}
    for task in study.tasks:
        try:
            section = configure([task.preset], [*study.common, *task.overrides, *overrides]).task
            if section is None:
                raise ConfigError(f"{task.preset} has no task section; choose a preset like finetune/cola")
            tasks[task.name] = read_task(section).task, section
            check_libraries(tasks[task.name][0])
        except UserError as error:
            reasons = (problem.removeprefix("command line: ") for problem in error.problems)
            problems += [f"{study.name}: {task.name}: {reason}" for reason in reasons]
    if not problems:  # else not all tasks have sections
        problems += _trend_problems(study, {name: section for name, (_, section) in tasks.items()})
    for name, config in models.items():
        lacking = _lacking_symbols(config, [*tasks.values()])
        problems += [f"{study.name}: pretrain.{name}: {problem}" for problem in lacking]
    UserError.raise_all(problems)


def _trend_problems(study: FinetuningStudy, sections: Mapping[str, TaskConfig]) -> Iterator[str]:
    """Yields a problem for each slope per doubling of the examples that has no two numbers of them, or one twice."""
    for number, one in enumerate(study.compare):
        counts: dict[str, list[int | None]] = {}
        for name in (one.tasks or study.columns) if one.trend else ():
            counts.setdefault(sections[name].name, []).append(sections[name].train_examples)
        for task, found in counts.items():
            if None in found or len(set(found)) < max(2, len(found)):
                shown = ", ".join("all" if count is None else str(count) for count in found)
                problem = f"task.train_examples of {task} are {shown}"
                way_out = "use two or more, each of them once, and in a rehearsal fewer parts"
                yield f"{study.name}: compare[{number}].trend: {problem}; {way_out}"


def _lacking_symbols(config: Config, tasks: Sequence[tuple[Task, TaskConfig]]) -> Iterator[str]:
    """Yields a problem for each symbol that a model's tokenizer lacks to be fine-tuned on `tasks`."""
    if needs_embedded_corpus(config):  # whose tokenizer has them
        return
    own = [fitted(task, section, config.model) for task, section in tasks if section.form != "text"]
    ids = Dataset(config.data.path[0].path).load_tokenizer().special_ids
    yield from ids.missing(dict.fromkeys(role for task in own for role in symbol_roles(task)), "fine-tuning")


def make_sweep(
    study: FinetuningStudy, configure: Configure, overrides: Sequence[str] = (), models: PretrainingSweep | None = None
) -> FinetuningSweep:
    """Returns the sweep of `study`, with the command line's `overrides` in all trials (a variant's own keys win), and
    the models that it has trained before. Cells of a model that diverged have no trial.

    Raises ConfigError naming every problem of every trial's configuration, or where all models diverged.
    """
    refuse_keys(OWN_KEYS, overrides)
    transfer = study.layer_transfer or LayerTransfer()
    diverged = {
        (name, seed): model.run_dir.path
        for (name, own), seed in itertools.product(study.rows.items(), study.seeds)
        if (model := _model_of(own, models, seed)) is not None and model.divergence
    }
    seeds = {name: [seed for seed in study.seeds if (name, seed) not in diverged] for name in study.rows}
    rows = {name: _starting(own, models, seeds[name][0]) for name, own in study.rows.items() if seeds[name]}
    if not rows:
        raise ConfigError(f"{study.name}: every model diverged in pre-training; change pretrain, and remove their runs")
    table = _configurations(study, configure, overrides, rows, study.columns)
    taking = {f"transfer {'nothing' if layers < 0 else layers}": layers for layers in transfer.layers}
    changed = {name: [f"task.transfer_layers={layers}"] for name, layers in taking.items()}
    curve = _configurations(study, configure, overrides, changed, transfer.tasks)
    for config in list(curve.values())[:1]:
        ConfigError.raise_all(
            f"{study.name}: layer_transfer.layers: {study.checkpoint} has no {layers} layers; take -1 to {most}"
            for layers in transfer.layers
            if layers > (most := config.model.layers)
        )
    trials = {
        (*key, seed): _trial(study, key, seed, _of_seed(config, study.rows[key[1]], seed, models))
        for seed in study.seeds
        for key, config in table.items()
        if seed in seeds[key[1]]
    }
    points = []
    for own, config in curve.items():
        same = [key for key, known in table.items() if key[0] == own[0] and _identity(known) == _identity(config)]
        key = same[0] if same else own
        for seed in transfer.seeds or study.seeds:
            trial = trials.setdefault((*key, seed), _trial(study, key, seed, config))
            points.append((taking[own[1]], trial))
    lacking = tuple((task, *cell, folder) for cell, folder in diverged.items() for task in study.columns)
    return FinetuningSweep(study, tuple(trials.values()), tuple(points), lacking)


def _starting(overrides: Sequence[str], models: PretrainingSweep | None, seed: int) -> list[str]:
    """Returns the arguments with the checkpoint of the model that a row names."""
    folder = _source_of(overrides, models, seed)
    own = [override for override in overrides if override.partition("=")[0] not in (PRETRAINED, STEP)]
    return own if folder is None else [f"{SOURCE}={folder}", *own]


def _model_of(row: Sequence[str], models: PretrainingSweep | None, seed: int) -> PretrainingTrial | None:
    """Returns the model that a row names, trained with `seed`."""
    name = named_last(PRETRAINED, row)
    return None if name is None or models is None else models.by_name[name, seed]


def _source_of(row: Sequence[str], models: PretrainingSweep | None, seed: int) -> Path | None:
    """Returns the run folder of the model that a row names, or its checkpoint of the step that the row names."""
    model, step = _model_of(row, models, seed), named_last(STEP, row)
    if model is None:
        return None
    return model.run_dir.checkpoint(int(step)) if step else model.run_dir.path


def _of_seed(config: Config, row: Sequence[str], seed: int, models: PretrainingSweep | None) -> Config:
    """A cell begins with the model that was pre-trained with its own seed."""
    folder = _source_of(row, models, seed)
    if folder is None:
        return config
    return replace(config, checkpoint=replace(config.checkpoint, init_from=str(folder)))


def _configurations(
    study: FinetuningStudy,
    configure: Configure,
    overrides: Sequence[str],
    variants: Mapping[str, Sequence[str]],
    tasks: Sequence[str],
) -> Configs:
    """Returns the configurations of the trials. A problem of several trials is reported once."""
    common = [*([f"{SOURCE}={study.checkpoint}"] if study.checkpoint else []), *study.common]
    configs: Configs = {}
    problems: dict[str, str] = {}
    cells = itertools.product([task for task in study.tasks if task.name in tasks], variants.items(), study.choices)
    for task, (variant, own), choice in cells:
        try:
            config = configure([task.preset], [*common, *task.overrides, *overrides, *own, *choice])
            if config.task is None:
                raise ConfigError(f"{task.preset} has no task section; choose a preset like finetune/cola")
            configs[task.name, variant, " ".join(choice)] = config
        except UserError as error:
            for problem in error.problems:
                problems.setdefault(problem.removeprefix("command line: "), f"{task.name}, {variant}")
    ConfigError.raise_all(f"{study.name}: {place}: {problem}" for problem, place in problems.items())
    return configs


def _trial(study: FinetuningStudy, key: tuple[str, str, str], seed: int, config: Config) -> FinetuningTrial:
    """`key` is its task, variant and choice."""
    task, variant, choice = key
    folder = cell_folder(task, variant, choice)
    config = replace(config, run=replace(config.run, name=f"{study.name}/{folder}/seed-{seed}", seed=seed))
    config = tracked(config, study.name, arm=variant, column=task)
    return FinetuningTrial(config=config, task=task, variant=variant, choice=choice, seed=seed)


def _identity(config: Config) -> Config:
    """Returns a configuration that is equal for those that differ in their folder and seed alone."""
    task, layers = config.task, config.model.layers
    assert task is not None, "a fine-tuning trial has a task"
    taken = layers if task.transfer_layers is None else task.transfer_layers
    return replace(config, run=RunConfig(), task=replace(task, transfer_layers=taken))


FILE = "controls.json"
FORMAT = 4  # an entry holds answers, too, and the groups of examples; of two texts words and overlap apart


def write_controls(sweep: FinetuningSweep) -> None:
    """Fits the controls of every task of the table whose examples are not those that the file knows.

    Raises DataError when scikit-learn is not installed.
    """
    file = sweep.folder / FILE
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    sections = {trial.task: trial.section for trial in sweep.trials if trial.task in sweep.study.columns}
    for name, section in sections.items():
        data = read_task(section)
        identity = _identity_of_controls(data)
        if known.get(name, {}).get("examples") == identity:
            continue
        start = time.monotonic()
        try:
            known[name] = fitted_controls(data)
        except ValueError as error:
            say(f"{name}: without controls: {error}")
            continue
        write_json(file, known)
        say(f"{name}: simple rules for comparison  {duration(time.monotonic() - start)}")


def fitted_controls(data: TaskData) -> dict[str, Any]:
    """Returns an entry of the file. Raises DataError when scikit-learn is not installed, ValueError for examples of
    which a rule makes no model.
    """
    answers = list(data.task.controls(data.splits))
    scores = [asdict(score) for score in control_scores(data.task, answers)]
    examples = _identity_of_controls(data)
    return {"examples": examples, "labels": data.task.labels, "scores": scores, "answers": _splits(answers)}


def _splits(answers: Sequence[ControlAnswers]) -> dict[str, Any]:
    """Split -> {ids, gold, groups, controls: name -> answers}, as lists."""
    splits: dict[str, Any] = {}
    for one in answers:
        entry = {"ids": one.ids, "gold": one.gold.tolist(), "groups": one.groups, "controls": {}}
        split = splits.setdefault(one.split, entry)
        split["controls"][one.control] = one.found.tolist()
    return splits


def _identity_of_controls(data: TaskData) -> str:
    """Returns the hex sha256 of the task and all its examples, and of what an entry holds."""
    digest = hashlib.sha256(repr((FORMAT, data.task)).encode())
    for split, examples in sorted(data.splits.items()):
        digest.update(repr((split, examples)).encode())
    return digest.hexdigest()
