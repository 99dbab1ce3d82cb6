"""From a study to its cells: which fine-tuning runs it is made of, each with its whole configuration.

A point of the layer-transfer curve whose configuration is that of a cell of the table is that cell, and runs once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, TaskConfig, load_recorded
from gpt1_ds.config.run import RunConfig
from gpt1_ds.sweep.finetuning_study import LayerTransfer, Study, folder_name
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.registry import find_spec
from gpt1_ds.training import resume

Configure = Callable[[Sequence[str], Sequence[str]], Config]  # (files, key=value words) -> one run's configuration
RESULT_KEYS = (  # a finished cell whose configuration differs in one of these is another experiment
    *("run.seed", "checkpoint.init_from", "task.", "optimizer.", "schedule.", "train.precision"),
    *("train.steps", "train.tokens", "train.epochs", "train.global_batch"),
)


@dataclass(frozen=True, eq=False)
class Cell:
    """One fine-tuning run of a study."""

    task: str
    variant: str
    seed: int
    config: Config

    def __str__(self) -> str:
        return f"{self.task}, {self.variant}, seed {self.seed}"

    @cached_property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.config.run.dir) / self.config.run.name)

    @property
    def done(self) -> bool:
        return self.run_dir.done.exists() and self.run_dir.evaluation.exists()

    @property
    def ready(self) -> bool:
        return True

    @property
    def result(self) -> str:
        """The dev split's first metric, as eval.json has it."""
        entries = json.loads(self.run_dir.evaluation.read_text())
        scores = [entry["metrics"] for entry in entries if entry["split"] == "dev"]
        return ", ".join(f"{name} {value:.4f}" for metrics in scores for name, value in list(metrics.items())[:1])


@dataclass(frozen=True)
class Point:
    """One run on the layer-transfer curve: `layers` blocks taken (-1 nothing, 0 embeddings only), and its cell."""

    layers: int
    cell: Cell


@dataclass(frozen=True)
class Plan:
    """All cells of a study, those of the table first, one seed after the other so that the table fills evenly."""

    study: Study
    cells: tuple[Cell, ...]
    points: tuple[Point, ...]

    @property
    def folder(self) -> Path:
        return Path(self.cells[0].config.run.dir) / self.study.name

    def watch(self, running: Mapping[Cell, float], spent: float) -> str:
        return ""

    def tidy(self) -> None:
        for cell in () if self.study.keep_checkpoints else self.cells:
            if cell.done:
                shutil.rmtree(cell.run_dir.checkpoints, ignore_errors=True)

    def describe(self) -> dict[str, Any]:
        """What reports need to know beside the cells' folders; JSON values."""
        tasks = {cell.task: _section(cell.config) for cell in self.cells}
        return {
            "name": self.study.name,
            "checkpoint": self.study.checkpoint,
            "tasks": [
                {
                    "name": name,
                    "task": section.name,
                    "metric": find_spec(section).metrics[0],
                    "table": name in self.study.columns,
                }
                for name, section in tasks.items()
            ],
            "variants": list(self.study.variants),
            "seeds": list(self.study.seeds),
            "cells": [_place(cell, self.folder) for cell in self.cells],
            "layer_transfer": [{"layers": point.layers, **_place(point.cell, self.folder)} for point in self.points],
        }


def plan(study: Study, configure: Configure, words: Sequence[str] = ()) -> Plan:
    """The cells of `study`, with the command line's `words` in all of them (a variant's own keys win).

    Raises ConfigError naming every problem of every cell's configuration.
    """
    transfer = study.layer_transfer or LayerTransfer()
    table = _configurations(study, configure, words, study.variants, study.columns)
    taking = {f"transfer {'nothing' if layers < 0 else layers}": layers for layers in transfer.layers}
    changed = {name: [f"task.transfer_layers={layers}"] for name, layers in taking.items()}
    curve = _configurations(study, configure, words, changed, transfer.tasks)
    for config in list(curve.values())[:1]:
        ConfigError.raise_all(
            f"{study.name}: layer_transfer.layers: {study.checkpoint} has no {layers} layers; take -1 to {most}"
            for layers in transfer.layers
            if layers > (most := config.model.layers)
        )
    cells = {
        (task, variant, seed): _cell(study, task, variant, seed, config)
        for seed in study.seeds
        for (task, variant), config in table.items()
    }
    points = []
    for (task, name), config in curve.items():
        same = [key for key, known in table.items() if key[0] == task and _identity(known) == _identity(config)]
        variant = same[0][1] if same else name
        for seed in transfer.seeds or study.seeds:
            cell = cells.setdefault((task, variant, seed), _cell(study, task, variant, seed, config))
            points.append(Point(taking[name], cell))
    return Plan(study, tuple(cells.values()), tuple(points))


def check(plan: Plan) -> None:
    """Raise UserError for tasks whose files cannot be read, and for cells that ran with another configuration."""
    problems = [problem for cell in plan.cells for problem in _differences(cell)]
    for section in {cell.task: _section(cell.config) for cell in plan.cells}.values():
        try:
            read_task(section)
        except UserError as error:
            problems += error.problems
    UserError.raise_all(problems)


def _configurations(
    study: Study,
    configure: Configure,
    words: Sequence[str],
    variants: Mapping[str, Sequence[str]],
    tasks: Sequence[str],
) -> dict[tuple[str, str], Config]:
    """(task, variant) -> configuration, as for no seed yet. A problem of several cells is told once."""
    every_cell = [f"checkpoint.init_from={study.checkpoint}", *study.overrides]
    configs: dict[tuple[str, str], Config] = {}
    problems: dict[str, str] = {}
    for task in study.tasks:
        for variant, own in variants.items() if task.name in tasks else ():
            try:
                config = configure([task.preset], [*every_cell, *task.overrides, *words, *own])
                if config.task is None:
                    raise ConfigError(f"{task.preset} has no task section; choose a preset like finetune/cola")
                configs[task.name, variant] = config
            except UserError as error:
                for problem in error.problems:
                    problems.setdefault(problem.removeprefix("command line: "), f"{task.name}, {variant}")
    ConfigError.raise_all(f"{study.name}: {place}: {problem}" for problem, place in problems.items())
    return configs


def _cell(study: Study, task: str, variant: str, seed: int, config: Config) -> Cell:
    name = f"{study.name}/{folder_name(task)}/{folder_name(variant)}/seed-{seed}"
    return Cell(task, variant, seed, replace(config, run=replace(config.run, name=name, seed=seed)))


def _identity(config: Config) -> Config:
    """Equal for configurations that differ in their folder and seed alone."""
    task, layers = _section(config), config.model.layers
    return replace(
        config,
        run=RunConfig(),
        task=replace(task, transfer_layers=layers if task.transfer_layers is None else task.transfer_layers),
    )


def _section(config: Config) -> TaskConfig:
    assert config.task is not None, "a cell has a task"
    return config.task


def _place(cell: Cell, folder: Path) -> dict[str, Any]:
    inside = cell.run_dir.path.relative_to(folder).as_posix()
    return {"task": cell.task, "variant": cell.variant, "seed": cell.seed, "folder": inside}


def _differences(cell: Cell) -> Iterator[str]:
    if cell.done and cell.run_dir.config.exists():
        before = load_recorded(cell.run_dir.config)
        for key, (old, new) in resume.changes(before, cell.config).items():
            if key.startswith(RESULT_KEYS) and key != "task.answer":  # no score depends on that one
                yield (
                    f"{cell.run_dir.path} ran with {key}={old}, and the study now says {new}; set it back, remove the "
                    "folder, or give the study another name"
                )
