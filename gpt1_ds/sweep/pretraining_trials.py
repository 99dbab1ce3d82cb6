"""The models that a fine-tuning study trains first: a sweep of its own, in the folder `pretrained` of the study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.text import decimals
from gpt1_ds.config import Config
from gpt1_ds.data.sources import needs_embedded_corpus, open_data
from gpt1_ds.scaling.tables import DIVERGED
from gpt1_ds.sweep.finetuning_study import OWN_KEYS, PRETRAINED, STEP, FinetuningStudy, folder_name, named_last
from gpt1_ds.sweep.outcome import SAMPLE, held_out_losses
from gpt1_ds.sweep.study_file import refuse_keys
from gpt1_ds.sweep.trial import TAKEN_KEYS, TRAINING_KEYS, Sweep, Trial, tracked

FOLDER = PRETRAINED
RESULT_KEYS = (  # a run that differs in one of these is another model, or has a loss that does not compare
    *TRAINING_KEYS,
    *("model.", "objective.", "data.", SAMPLE),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PretrainingTrial(Trial):
    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name}, pre-training, seed {self.seed}"

    @property
    def done(self) -> bool:
        return self.run_dir.done.exists() or bool(self.divergence)

    @property
    def result(self) -> str:
        """The last held-out loss."""
        if problem := self.divergence:
            return f"{DIVERGED}: {problem}"
        losses = held_out_losses(self.run_dir)
        if not losses:
            return "no held-out loss"
        return f"held-out loss {decimals(losses[-1])}"

    def must_keep(self, key: str) -> bool:
        return key.startswith(RESULT_KEYS) and key not in TAKEN_KEYS


@dataclass(frozen=True)
class PretrainingSweep(Sweep):
    study: FinetuningStudy
    trials: tuple[PretrainingTrial, ...]

    @property
    def folder(self) -> Path:
        return Path(self.trials[0].config.run.dir) / _place(self.study)

    @property
    def by_name(self) -> Mapping[tuple[str, int], PretrainingTrial]:
        """(name, seed) -> trial."""
        return {(trial.name, trial.seed): trial for trial in self.trials}

    @property
    def configs(self) -> Mapping[str, Config]:
        """The configuration of each model, that of the first seed."""
        return {trial.name: trial.config for trial in reversed(self.trials)}

    def describe(self) -> dict[str, Any]:
        return {"name": self.study.name, "cells": [{"name": one.name, "seed": one.seed} for one in self.trials]}

    def check(self) -> None:
        """Raises UserError also for data that are not there, where a trial still reads them."""
        for config in {trial.name: trial.config for trial in self.trials if not trial.done}.values():
            if not needs_embedded_corpus(config):  # before a dry run it is not there
                open_data(config)
        super().check()

    def left_out(self) -> Iterator[str]:
        """Yields nothing: models have no table, and several studies may share them."""
        return iter(())

    def remove_checkpoints(self) -> None:
        """Fine-tuning needs them."""

    def table(self) -> Iterator[str]:
        """Yields a line per trial."""
        for trial in self.trials:
            yield f"{trial.early_end or ('done ' if trial.done else 'to do')}  {trial}"


def make_pretraining(
    study: FinetuningStudy, configure: Callable[[Sequence[str], Sequence[str]], Config], overrides: Sequence[str] = ()
) -> PretrainingSweep | None:
    """Returns the sweep of the study's `pretrain`, all models of a seed before those of the next; None where there is
    nothing. Of the `overrides` only keys of `run` and `slurm` count.

    Raises ConfigError naming every problem of every configuration.
    """
    refuse_keys(OWN_KEYS, overrides)
    common = [override for override in (*study.overrides, *overrides) if override.startswith(("run.", "slurm."))]
    configs: dict[str, Config] = {}
    problems: list[str] = []
    for one in study.pretrain:
        try:
            configs[one.name] = configure([one.preset], [*common, *one.overrides])
            if configs[one.name].task is not None:
                raise ConfigError(f"{one.preset} has a task section; choose a preset like pretrain/books_cpu")
        except UserError as error:
            reasons = (problem.removeprefix("command line: ") for problem in error.problems)
            problems += [f"{study.name}: pretrain.{one.name}: {reason}" for reason in reasons]
    problems += _lacking_steps(study, configs)
    ConfigError.raise_all(problems)
    trials = [
        PretrainingTrial(config=_of_seed(study, name, seed, config), name=name, seed=seed)
        for seed in study.seeds
        for name, config in configs.items()
    ]
    return PretrainingSweep(study, tuple(trials)) if trials else None


def _lacking_steps(study: FinetuningStudy, configs: Mapping[str, Config]) -> Iterator[str]:
    """Yields problems of rows that begin with a checkpoint which its model will not keep."""
    for row, overrides in study.variants.items():
        model, step = named_last(PRETRAINED, overrides), int(named_last(STEP, overrides) or 0)
        if step and model is not None and model in configs:
            settings, last = configs[model].checkpoint, configs[model].train.steps or step
            every = math.lcm(settings.every, settings.keep_every)
            if step != configs[model].train.steps and (not every or step % every or step > last):
                yield (
                    f"{study.name}: variants.{row}: pretrained_step={step}: {model} does not keep that checkpoint; "
                    f"set its checkpoint.every and checkpoint.keep_every so that they divide it"
                )


def _of_seed(study: FinetuningStudy, name: str, seed: int, config: Config) -> Config:
    place = f"{_place(study)}/{folder_name(name)}/seed-{seed}"
    config = replace(config, run=replace(config.run, name=place, seed=seed))
    return tracked(config, study.models or study.name, arm=name)


def _place(study: FinetuningStudy) -> str:
    """Returns the folder of the models, below run.dir."""
    return f"{study.models or study.name}/{FOLDER}"
