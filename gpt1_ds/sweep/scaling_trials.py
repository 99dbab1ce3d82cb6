"""From a scaling study to its trials: every pre-training run with its whole configuration and its place in the laws:
N, D, U and C.

With the schedule wsd the trials of one size, seed and rate share a trunk: the largest budget is one run from scratch,
and every smaller one branches off it at the last checkpoint before its own decay, so that trunk tokens are paid once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from gpt1_ds.architecture.count import counts, training_flops_per_token
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.text import count
from gpt1_ds.config import Config, ModelConfig, load, world_problems
from gpt1_ds.config.validate import problems
from gpt1_ds.launcher.accelerator import with_fitted_micro_batch
from gpt1_ds.plan.report import ASSUMED_VOCABULARY
from gpt1_ds.scaling.tables import DIVERGED, DOMINATED, DONE, FAILED, WAITING
from gpt1_ds.sweep import outcome
from gpt1_ds.sweep.scaling_study import OWN_KEYS, Arm, ScalingStudy, load_scaling
from gpt1_ds.sweep.study_file import refuse_keys
from gpt1_ds.sweep.trial import Trial
from gpt1_ds.training import resume
from gpt1_ds.training.configuration import trained_config

TRUNK_SAVES = 0.02  # of a trunk's steps: about how much a branch repeats at most
EVALUATIONS = 10  # of the held-out data in a run


@dataclass(frozen=True, eq=False, kw_only=True)
class ScalingTrial(Trial):
    name: str  # of its run folder in the study's
    arm: str
    kind: str
    rate: float  # multiple of the rule's learning rate
    budget: int  # tokens, before they are rounded to whole steps
    steps: int
    unique: int  # distinct tokens it sees
    vocab_size: int
    convention: str
    held_out: bool

    def __str__(self) -> str:
        return self.name

    @property
    def record(self) -> outcome.RunRecord:
        """What its run folder says now. A branch whose trunk ended too early for it has ended as the trunk has: their
        steps up to there are the same.
        """
        record = outcome.read(self.run_dir, self.steps)
        if self.trunk is None or self.ready or record.outcome not in (FAILED, WAITING):
            return record
        trunk = outcome.read(self.trunk.run_dir, self.trunk.config.train.steps or 0)
        if trunk.outcome not in (DIVERGED, DOMINATED):
            return record
        return replace(record, outcome=trunk.outcome, reason=f"its trunk, {self.trunk}: {trunk.reason}")

    @property
    def done(self) -> bool:
        """Trained to its end, or ended early for good."""
        return self.record.outcome in outcome.ENDED

    @property
    def early_end(self) -> str:
        outcome_of_run = self.record.outcome
        return outcome_of_run if outcome_of_run in (DIVERGED, DOMINATED) else ""

    @property
    def result(self) -> str:
        record = self.record
        loss = "no held-out loss" if record.loss is None else f"held-out loss {record.loss:.4f}"
        return loss if record.outcome == DONE else f"{record.outcome}: {record.reason}"

    def must_keep(self, key: str) -> bool:
        return key == outcome.SAMPLE or not key.startswith(resume.MAY_CHANGE)

    @property
    def point(self) -> tuple[int, int, int]:
        """N, D and U: where it lies in the laws."""
        return self.parameters, self.tokens, self.unique

    @property
    def tokens(self) -> int:
        """D: trained on, those of the trunk included."""
        return self.config.batch_sizes.before(self.steps + 1) * self.config.row.fed

    @property
    def epochs(self) -> float:
        return self.tokens / self.unique

    @cached_property
    def sizes(self) -> dict[str, int]:
        """N in every convention."""
        return counts(self.config.model, self.vocab_size)

    @property
    def parameters(self) -> int:
        """N in the study's convention."""
        return self.sizes[self.convention]

    @cached_property
    def flops(self) -> int:
        """C: model FLOPs that D tokens take, whoever paid for them."""
        return self.tokens * training_flops_per_token(self.config, self.vocab_size)

    @property
    def own_share(self) -> float:
        """Returns the share of its steps that it runs itself."""
        return (self.steps - self.begin) / self.steps


def make_trials(
    study: ScalingStudy, overrides: Sequence[str], vocab_size: int | None, data_tokens: int | None
) -> tuple[ScalingTrial, ...]:
    """Returns the trials of `study` in the order in which they start: trunks before branches, large before small,
    because a large one that starts last keeps all others waiting. The command line's `overrides` hold for all of them.
    `vocab_size` and `data_tokens` are those of the data, None where they are not there yet.

    Raises ConfigError naming every problem.
    """
    base = base_config(study, overrides)
    maker = _Maker(study, base, base.model.vocab_size or vocab_size, data_tokens)
    made = [trial for arm in study.arms for trial in maker.of(arm)]
    ConfigError.raise_all(dict.fromkeys([*maker.problems, *_problems(study, made)]))
    if study.schedule == "wsd":
        made = _branched(made)
    needed = sum(trial.flops * trial.own_share for trial in made)
    if study.budget_flops is not None and needed > study.budget_flops:
        raise ConfigError(
            f"budget_flops={study.budget_flops:.3g}: the cells need {needed:.3g} FLOPs; take some out, or raise it"
        )
    return tuple(sorted(made, key=lambda trial: (trial.trunk is not None, -trial.flops, trial.name)))


def base_config(study: ScalingStudy, overrides: Sequence[str]) -> Config:
    """Returns what all trials have in common. Raises ConfigError for `overrides` of what the study says of each."""
    refuse_keys(OWN_KEYS, overrides)
    sizes = [f"model.layers={study.arms[0].layers[0]}", f"model.width={study.head_width}", "model.heads=1"]
    words = [*study.overrides, *overrides, *sizes]
    return trained_config(load(study.base, words), study.base, words)


def study_folder(name: str, overrides: Sequence[str] = ()) -> Path:
    """Returns the folder of the study in the file `name`, run with the command line's `overrides`, or `name` itself
    where it is a folder. Raises ConfigError.
    """
    if Path(name).is_dir():
        ConfigError.raise_all(f"{word}: {name} is a folder, whose cells have run; leave it out" for word in overrides)
        return Path(name)
    study = load_scaling(name)
    return Path(base_config(study, overrides).run.dir) / study.name


class _Maker:
    def __init__(self, study: ScalingStudy, base: Config, vocab_size: int | None, data_tokens: int | None) -> None:
        self.study, self.base, self.data_tokens = study, base, data_tokens
        self.problems: list[str] = []
        if vocab_size is None:
            self.problems.append("model.vocab_size: the data are not there yet; build them, or say how large it is")
        self.vocab_size = vocab_size or ASSUMED_VOCABULARY  # to find what else is wrong
        self.smallest: dict[ModelConfig, int] = {}  # budget of a size
        for arm in study.arms:
            for layers in arm.layers:
                model = self._model(arm, layers)
                self.smallest[model] = min([self.smallest.get(model, arm.tokens[0]), *arm.tokens])

    def of(self, arm: Arm) -> Iterator[ScalingTrial]:
        uniques: list[int | None] = [*arm.unique_tokens] or [None]
        for layers in arm.layers:
            model = self._model(arm, layers)
            for tokens, unique, seed, rate in product(arm.tokens, uniques, arm.seeds, arm.rates):
                yield self._trial(arm, model, tokens, unique, seed, rate)

    def _model(self, arm: Arm, layers: int) -> ModelConfig:
        head = self.study.head_width
        if arm.kind == "ladder":
            width = self.study.width_per_layer * layers
        elif arm.kind == "shape":
            assert arm.parameters is not None, "checked when the study was read"
            width = max(1, round(math.sqrt(arm.parameters / (12 * layers)) / head)) * head  # 12 L w^2 in the blocks
        else:
            assert arm.width is not None, "checked when the study was read"
            width = arm.width
        if width % head:
            self.problems.append(
                f"arms.{arm.name}: width {width} of {layers} layers is no multiple of head_width={head}; change one"
            )
        heads = max(1, width // head)
        return replace(self.base.model, layers=layers, width=width, heads=heads, vocab_size=self.vocab_size)

    def _trial(
        self, arm: Arm, model: ModelConfig, tokens: int, unique: int | None, seed: int, rate: float
    ) -> ScalingTrial:
        study, base = self.study, self.base
        fed = base.objective.lengths(model).fed
        per_step, sizes = base.train.global_batch * fed, base.train.batch_sizes(fed)
        shortest = self.smallest[model] if study.schedule == "wsd" else tokens
        steps = sizes.steps(tokens / per_step)
        needed = sizes.before(steps + 1) * fed
        there = min(unique or needed, self.data_tokens or needed)
        name = f"l{model.layers}w{model.width}-{count(tokens)}"
        name += (
            (f"-u{count(unique)}" if unique else "")
            + (f"-lr{rate:g}".replace("+", "") if rate != 1 else "")
            + f"-seed{seed}"
        )
        number = counts(model, self.vocab_size)[study.convention]
        facts = {"study": study.name, "arm": arm.name, "N": number, "D": needed, "U": min(there, needed)}
        config = replace(
            base,
            run=replace(base.run, name=f"{study.name}/{name}", seed=seed),
            model=model,
            data=replace(base.data, unique_tokens=unique, epochs_limit=None),
            train=replace(
                base.train, steps=steps, tokens=None, epochs=None, eval_every=max(1, math.ceil(steps / EVALUATIONS))
            ),
            optimizer=replace(base.optimizer, lr=study.learning_rate.at(model.width) * rate),
            schedule=replace(
                base.schedule,
                kind=study.schedule,
                warmup_steps=max(1, sizes.steps(self._warmup(model, shortest) / per_step)),
                warmup_fraction=None,
            ),
            checkpoint=replace(base.checkpoint, every=max(1, math.ceil(steps / EVALUATIONS)), keep=1),
            guard=replace(base.guard, rise=study.stop.rise),
            tracking=replace(base.tracking, group=study.name, facts={**base.tracking.facts, **facts}),
        )
        config = with_fitted_micro_batch(config, study.nproc)
        found = [*problems(config), *world_problems(config, study.nproc)]
        self.problems += [f"arms.{arm.name}: {problem}" for problem in found]
        if arm.kind != "data" and needed > study.epochs_limit * there:
            self.problems.append(
                f"arms.{arm.name}: {count(tokens)} tokens are {needed / there:.1f} passes over the "
                f"{count(there)} of the data; raise epochs_limit={study.epochs_limit:g}, or use kind data"
            )
        return ScalingTrial(
            name=name,
            arm=arm.name,
            kind=arm.kind,
            rate=rate,
            config=config,
            budget=tokens,
            steps=steps,
            unique=min(there, needed),
            vocab_size=self.vocab_size,
            convention=study.convention,
            held_out=name in study.held_out,
        )

    def _warmup(self, model: ModelConfig, shortest: int) -> float:
        """Returns tokens, in proportion to N (Porian et al. 2024); with wsd the same for all budgets of a size, or they
        could not share a trunk.
        """
        wanted = self.study.warmup * counts(model, self.vocab_size)[self.study.convention]
        return min(wanted, shortest / 4)


def _problems(study: ScalingStudy, made: Sequence[ScalingTrial]) -> Iterator[str]:
    arms: dict[str, list[str]] = {}
    for trial in made:
        arms.setdefault(trial.name, []).append(trial.arm)
    for name, where in arms.items():
        if len(where) > 1:
            yield f"arms: {' and '.join(where)} both have a cell {name}; leave it out of one"
    budgets: dict[tuple[object, ...], set[int]] = {}  # of cells that are one and the same run
    for trial in made:
        budgets.setdefault((*_line(trial), trial.steps), set()).add(trial.budget)
    for (*_, steps), equal in budgets.items():
        if len(equal) > 1:
            tokens = " and ".join(map(str, sorted(equal)))
            yield f"arms: budgets of {tokens} tokens are the same {steps} steps; leave one out"
    for name in study.held_out:
        if name not in arms:
            near = difflib.get_close_matches(name, arms, 3) or list(arms)[:3]
            yield f"held_out: {name} is no cell of the study; did you mean {' or '.join(near)}?"


def _line(trial: ScalingTrial) -> tuple[object, ...]:
    """Returns what cells have in common that differ in their budgets alone."""
    model = trial.config.model
    return model.layers, model.width, trial.config.run.seed, trial.rate, trial.config.data.unique_tokens


def _branched(made: Sequence[ScalingTrial]) -> list[ScalingTrial]:
    """Returns the trials, with every smaller budget set to begin from its trunk."""
    groups: dict[object, list[ScalingTrial]] = {}
    for trial in made:
        groups.setdefault(_line(trial), []).append(trial)
    done: list[ScalingTrial] = []
    for group in groups.values():
        *smaller, largest = sorted(group, key=lambda trial: trial.steps)
        every = _trunk_saves(largest, smaller)
        kept = replace(largest.config.checkpoint, every=every, keep_every=every if smaller else 0)
        trunk = replace(largest, config=replace(largest.config, checkpoint=kept))
        done += [trunk, *(_branch(trial, trunk, every) for trial in smaller)]
    return done


def _decay_begins(trial: ScalingTrial) -> int:
    """Returns the last step at the full rate (training/schedule.py)."""
    return trial.steps - max(1, round(trial.config.schedule.decay_fraction * trial.steps))


def _trunk_saves(trunk: ScalingTrial, branches: Sequence[ScalingTrial]) -> int:
    """Steps between a trunk's checkpoints: a branch repeats what lies between the last one before it and its start,
    TRUNK_SAVES of the whole at most, unless that takes more than four saves before the first branch.
    """
    if not branches:
        return trunk.config.checkpoint.every
    first = max(1, _decay_begins(branches[0]))
    parts = math.ceil(first / max(1, TRUNK_SAVES * trunk.steps))
    return max(1, first // min(parts, 4))


def _branch(trial: ScalingTrial, trunk: ScalingTrial, every: int) -> ScalingTrial:
    begin = _decay_begins(trial) // every * every
    if begin < (trial.config.schedule.warmup_steps or 1):
        return trial  # too short to share anything
    place = trunk.run_dir.checkpoint(begin)
    if not (place.is_dir() or trial.done) and trunk.done and trunk.record.last >= begin:
        return trial  # the trunk's checkpoints are gone: it comes to the same from scratch, and costs less than a trunk
    checkpoint = replace(trial.config.checkpoint, resume=str(place))
    return replace(trial, config=replace(trial.config, checkpoint=checkpoint), trunk=trunk, begin=begin)
