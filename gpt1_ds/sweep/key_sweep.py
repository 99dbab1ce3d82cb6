"""`--sweep key=a,b,c`: a run for every combination of values, in `<run.dir>/<run.name>-sweep/`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config
from gpt1_ds.config.unread import unread
from gpt1_ds.scaling.tables import DIVERGED, read_table, write_table
from gpt1_ds.sweep.outcome import SAMPLE, held_out_losses, is_cut
from gpt1_ds.sweep.study_file import StudySettings, jobs_at_a_time
from gpt1_ds.sweep.trial import TAKEN_KEYS, TRAINING_KEYS, Sweep, Trial, tracked
from gpt1_ds.tasks.registry import kind_of
from gpt1_ds.tracking.record import of_run, read_entries
from gpt1_ds.training import claim

OWN_KEYS = ("run.name", "run.dir", "run.share", SAMPLE)  # the same for all trials
RESULT_KEYS = (*TRAINING_KEYS, "model.", "objective.", "data.", "task.", "checkpoint.init_from", "checkpoint.positions")
RESULTS = "results.csv"
Values = tuple[tuple[str, str], ...]  # (key, value) of a trial


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyTrial(Trial):
    values: Values

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values)

    @property
    def done(self) -> bool:
        if self.config.task is not None:
            ended = self.run_dir.done.exists() and self.run_dir.evaluation.exists()
        else:
            ended = self.run_dir.done.exists() and not is_cut(self.run_dir)
        return ended or bool(self.divergence)

    @property
    def score(self) -> tuple[str, float | None]:
        """(name, value): the last held-out loss, or the dev split's first metric, of the best epoch; None: none yet, or
        of a run that diverged, which would else be compared with the others.
        """
        if self.config.task is None:
            losses = [] if self.divergence else held_out_losses(self.run_dir)
            return "held-out loss", losses[-1] if losses else None
        entries = [] if self.divergence else read_entries(self.run_dir.evaluation)
        first = [next(iter(entry["metrics"].items())) for entry in of_run(entries) if entry["split"] == "dev"]
        return first[-1] if first else ("score", None)

    @property
    def result(self) -> str:
        if problem := self.divergence:
            return f"{DIVERGED}: {problem}"
        name, value = self.score
        return f"{name} {'null' if value is None else f'{value:.4f}'}"

    def must_keep(self, key: str) -> bool:
        if key == SAMPLE:
            return self.config.task is None
        return key.startswith(RESULT_KEYS) and key not in TAKEN_KEYS


@dataclass(frozen=True)
class KeySweep(Sweep):
    study: StudySettings
    trials: tuple[KeyTrial, ...]

    def describe(self) -> dict[str, Any]:
        return {"name": self.study.name, "cells": [dict(trial.values) for trial in self.trials]}

    def others_results(self) -> Iterator[str]:
        """Yields why the results of another sweep of this name would be lost: its runs are still there."""
        file, own = self.folder / RESULTS, {trial.run_dir.path.name for trial in self.trials}
        listed = [Path(row.text("run")).name for row in read_table(file, ["run"])] if file.exists() else []
        others = [name for name in listed if name not in own and claim.has_record(RunDir(self.folder / name))]
        if others:
            yield (
                f"--sweep: {file} also has {', '.join(others)}, which this sweep would leave out; sweep all values at "
                "once, choose another run.name, or remove these run folders"
            )

    def rows(self) -> Iterator[dict[str, str]]:
        """Yields a row per trial: its values, how far it is, its score, its folder."""
        failed: dict[str, str] = {}
        for event in read_jsonl(RunDir(self.folder).events):
            if "cell" in event:
                failed[event["cell"]] = event["event"]
        for trial in self.trials:
            name, value = trial.score
            last = failed.get(trial.run_dir.path.name)
            outcome = trial.early_end or ("done" if trial.done else "failed" if last == "failed" else "to do")
            shown = "" if value is None else f"{value:.4f}"
            yield {**dict(trial.values), "outcome": outcome, name: shown, "run": str(trial.run_dir.path)}

    def table(self) -> Iterator[str]:
        """Yields the rows as aligned lines below their names, and the totals."""
        rows = list(self.rows())
        names = list(dict.fromkeys(name for row in rows for name in row))
        names.sort(key="run".__eq__)  # last
        cells = [names, *([row.get(name, "") for name in names] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for line in cells:
            yield "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        yield self.totals

    def write(self) -> None:
        """results.csv in the sweep's folder."""
        rows = list(self.rows())
        write_table(self.folder / RESULTS, dict.fromkeys(name for row in rows for name in row), rows)


def make_key_sweep(
    arguments: Sequence[str], configure: Callable[[Sequence[str]], Config], nproc: int | None, jobs: int | None
) -> KeySweep:
    """Returns the product of the lists in `arguments`, each key=a,b,c; `configure` makes a run's configuration of
    overrides.

    Raises UserError naming every problem of the lists and of every trial's configuration, each once.
    """
    if os.environ.get("WANDB_SWEEP_ID"):
        raise ConfigError("--sweep: an agent of a W&B sweep gives one run its values (WANDB_SWEEP_ID is set); keep one")
    lists = [_list(argument) for argument in arguments]
    keys, choices = [key for key, _ in lists], dict(lists)
    ConfigError.raise_all(f"--sweep: {key} is named twice; give all its values at once" for key in _twice(keys))
    study = StudySettings(jobs=jobs_at_a_time(StudySettings(), jobs), nproc=nproc or 1, keep_checkpoints=True)
    trials: list[KeyTrial] = []
    configs: list[Config] = []  # of the trials, before each has its own place
    problems: dict[str, None] = {}
    equal: dict[str, str] = {}  # what a key's first value says that does not tell a trial from another
    for chosen in product(*(values for _, values in lists)):
        values = tuple(zip(keys, chosen, strict=True))
        try:
            config = configure([f"{key}={value}" for key, value in values])
            several = [f"{key}={value}" for key, value in values if len(choices[key]) > 1]
            equal = {**unread(config, several, kind_of(config.task)), **equal}
            configs.append(config)
            trials.append(KeyTrial(config=_placed(config, values), values=values))
        except UserError as error:
            problems |= dict.fromkeys(problem.removeprefix("command line: ") for problem in error.problems)
    same = dict.fromkeys(argument for argument in _same(trials, configs) if argument.partition("=")[0] not in equal)
    problems |= dict.fromkeys(f"{argument} mean the same; leave one out" for argument in same)
    way_out = "runs would be equal: leave this list out, or sweep it where it is read"
    UserError.raise_all(
        f"--sweep: {problem}" for problem in [*problems, *(f"{one}; {way_out}" for one in equal.values())]
    )
    name = trials[0].config.run.name.rpartition("/")[0]
    twice = _twice([trial.config.run.name for trial in trials])
    ConfigError.raise_all(f"--sweep: two trials would lie in {place}; leave one of their values out" for place in twice)
    return KeySweep(replace(study, name=name), tuple(trials))


def _list(argument: str) -> tuple[str, list[str]]:
    """Returns key=a,b,c as (key, values); commas in brackets belong to a value. Raises ConfigError."""
    key, equals, text = argument.partition("=")
    values, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            values.append("")
        else:
            values[-1] += letter
    if not key or not equals or "" in values:
        raise ConfigError(f"--sweep {argument!r}: write a key and its values, like optimizer.lr=1e-3,1e-4")
    if key in OWN_KEYS:
        raise ConfigError(f"--sweep: {key} is the same for all trials; give it as {key}={values[0]}")
    ConfigError.raise_all(f"--sweep: {key} has the value {value} twice; leave one out" for value in _twice(values))
    return key, values


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _same(trials: Sequence[KeyTrial], configs: Sequence[Config]) -> Iterator[str]:
    """Yields "KEY=A and KEY=B" of values that are written in two ways, so that runs would be equal."""
    for (one, first), (other, second) in combinations(zip(trials, configs, strict=True), 2):
        apart = [(key, a, b) for (key, a), (_, b) in zip(one.values, other.values, strict=True) if a != b]
        if len(apart) == 1 and first == second:
            key, a, b = apart[0]
            yield f"{key}={a} and {key}={b}"


def _placed(config: Config, values: Values) -> Config:
    """Returns the configuration in a folder that says the values: lr-1e-3_seed-2."""
    parts = ((key.rpartition(".")[2], re.sub(r"[^A-Za-z0-9.-]+", "-", value).strip(".")) for key, value in values)
    sweep = f"{config.run.name}-sweep"
    place = f"{sweep}/{'_'.join(f'{key}-{value}' for key, value in parts)}"
    config = tracked(config, sweep, arm=" ".join(f"{key}={value}" for key, value in values))
    return replace(config, run=replace(config.run, name=place))
