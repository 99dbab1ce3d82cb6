"""From a study to its cells: every pre-training run it is made of, with its whole configuration and its place in the
laws: N, D, U and C.

With the schedule wsd the cells of one size, seed and rate share a trunk: the largest budget is one run from scratch,
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

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.units import count
from gpt1_ds.config import Config, ModelConfig, load, world_problems
from gpt1_ds.config.validate import problems
from gpt1_ds.plan.count import counts, flops_per_token
from gpt1_ds.plan.dryrun import ASSUMED_VOCABULARY
from gpt1_ds.scaling.tables import DONE
from gpt1_ds.slurm.tries import newest_step
from gpt1_ds.sweep import outcome
from gpt1_ds.sweep.scaling_study import Arm, ScalingStudy

TRUNK_SAVES = 0.02  # of a trunk's steps: about how much a branch repeats at most
EVALUATIONS = 10  # of the held-out data in a run


@dataclass(frozen=True, eq=False)
class Cell:
    """One pre-training run of a study."""

    name: str  # of its run folder in the study's
    arm: str
    kind: str
    rate: float  # multiple of the rule's learning rate
    config: Config
    steps: int
    unique: int  # distinct tokens it sees
    vocab_size: int
    convention: str
    held_out: bool
    trunk: Cell | None = None  # whose checkpoint it begins from
    begin: int = 0  # step of that checkpoint

    def __str__(self) -> str:
        return self.name

    @cached_property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.config.run.dir) / self.config.run.name)

    @property
    def done(self) -> bool:
        """Nothing is left to do: trained to its end, or ended early for good."""
        return outcome.read(self.run_dir, self.steps).outcome in outcome.ENDED

    @property
    def ready(self) -> bool:
        """Whether what it begins from is there."""
        return (
            self.trunk is None or bool(newest_step(self.run_dir)) or self.trunk.run_dir.checkpoint(self.begin).is_dir()
        )

    @property
    def result(self) -> str:
        record = outcome.read(self.run_dir, self.steps)
        loss = "no held-out loss" if record.loss is None else f"held-out loss {record.loss:.4f}"
        return loss if record.outcome == DONE else f"{record.outcome}: {record.reason}"

    @property
    def tokens_per_step(self) -> int:
        return self.config.train.global_batch * self.config.model.context

    @property
    def tokens(self) -> int:
        """D: trained on, those of the trunk included."""
        return self.steps * self.tokens_per_step

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
        """C: model operations that D tokens take, whoever paid for them."""
        return self.tokens * flops_per_token(self.config.model, self.vocab_size)

    @property
    def own_share(self) -> float:
        """Of its steps, those that it runs itself."""
        return (self.steps - self.begin) / self.steps


def cells(
    study: ScalingStudy, words: Sequence[str], vocab_size: int | None, data_tokens: int | None
) -> tuple[Cell, ...]:
    """The cells of `study` in the order in which they begin: trunks before branches, large before small, because a
    large one that begins last keeps all others waiting. The command line's `words` hold for all of them. `vocab_size`
    and `data_tokens` are those of the data, None where they are not there yet.

    Raises ConfigError naming every problem.
    """
    base = base_config(study, words)
    maker = _Maker(study, base, base.model.vocab_size or vocab_size, data_tokens)
    made = [cell for arm in study.arms for cell in maker.of(arm)]
    ConfigError.raise_all(dict.fromkeys([*maker.problems, *_problems(study, made, maker.shortfalls)]))
    if study.schedule == "wsd":
        made = _branched(made)
    needed = sum(cell.flops * cell.own_share for cell in made)
    if study.budget_flops is not None and needed > study.budget_flops:
        raise ConfigError(
            f"budget_flops={study.budget_flops:.3g}: the cells need {needed:.3g} operations; take some out, or raise it"
        )
    return tuple(sorted(made, key=lambda cell: (cell.trunk is not None, -cell.flops, cell.name)))


def base_config(study: ScalingStudy, words: Sequence[str]) -> Config:
    """What all cells have in common."""
    sizes = [f"model.layers={study.arms[0].layers[0]}", f"model.width={study.head_width}", "model.heads=1"]
    return load(study.base, [*study.overrides, *words, *sizes])


class _Maker:
    def __init__(self, study: ScalingStudy, base: Config, vocab_size: int | None, data_tokens: int | None) -> None:
        self.study, self.base, self.data_tokens = study, base, data_tokens
        self.problems: list[str] = []
        self.shortfalls: list[str] = []
        if vocab_size is None:
            self.problems.append("model.vocab_size: the data are not there yet; build them, or say how large it is")
        self.vocab_size = vocab_size or ASSUMED_VOCABULARY  # to find what else is wrong
        self.smallest: dict[ModelConfig, int] = {}  # budget of a size
        for arm in study.arms:
            for layers in arm.layers:
                model = self._model(arm, layers)
                self.smallest[model] = min([self.smallest.get(model, arm.tokens[0]), *arm.tokens])

    def of(self, arm: Arm) -> Iterator[Cell]:
        uniques: list[int | None] = [*arm.unique_tokens] or [None]
        for layers in arm.layers:
            model = self._model(arm, layers)
            for tokens, unique, seed, rate in product(arm.tokens, uniques, arm.seeds, arm.rates):
                yield self._cell(arm, model, tokens, unique, seed, rate)

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

    def _cell(self, arm: Arm, model: ModelConfig, tokens: int, unique: int | None, seed: int, rate: float) -> Cell:
        study, base = self.study, self.base
        per_step = base.train.global_batch * model.context
        shortest = self.smallest[model] if study.schedule == "wsd" else tokens
        steps = math.ceil(tokens / per_step)
        there = min(unique or steps * per_step, self.data_tokens or steps * per_step)
        name = f"l{model.layers}w{model.width}-{count(tokens)}"
        name += (f"-u{count(unique)}" if unique else "") + (f"-lr{rate:g}" if rate != 1 else "") + f"-seed{seed}"
        config = replace(
            base,
            run=replace(base.run, name=f"{study.name}/{name}", seed=seed),
            model=model,
            data=replace(base.data, unique_tokens=unique, epochs_limit=None),
            train=replace(
                base.train, steps=steps, tokens=None, epochs=None, eval_every=max(1, math.ceil(steps / EVALUATIONS))
            ),
            optimizer=replace(base.optimizer, lr=self._rate(model.width) * rate),
            schedule=replace(
                base.schedule,
                kind=study.schedule,
                warmup_steps=self._warmup(model, shortest, per_step),
                warmup_fraction=None,
            ),
            checkpoint=replace(base.checkpoint, every=max(1, math.ceil(steps / EVALUATIONS)), keep=1),
            guard=replace(base.guard, rise=study.stop.rise),
            tracking=replace(base.tracking, group=study.name),
        )
        found = [*problems(config), *world_problems(config, study.nproc)]
        self.problems += [f"arms.{arm.name}: {problem}" for problem in found]
        if arm.kind != "data" and steps * per_step > study.epochs_limit * there:
            self.shortfalls.append(
                f"arms.{arm.name}: {count(tokens)} tokens are {steps * per_step / there:.1f} passes over the "
                f"{count(there)} of the data; raise epochs_limit={study.epochs_limit:g}, or use kind data"
            )
        return Cell(
            name=name,
            arm=arm.name,
            kind=arm.kind,
            rate=rate,
            config=config,
            steps=steps,
            unique=min(there, steps * per_step),
            vocab_size=self.vocab_size,
            convention=study.convention,
            held_out=name in study.held_out,
        )

    def _rate(self, width: int) -> float:
        rule = self.study.learning_rate
        return float(f"{rule.value * (width / rule.reference) ** rule.exponent:.4g}")

    def _warmup(self, model: ModelConfig, shortest: int, per_step: int) -> int:
        """Steps, in proportion to N (Porian et al. 2024); with wsd the same for all budgets of a size, or they could
        not share a trunk.
        """
        wanted = self.study.warmup * counts(model, self.vocab_size)[self.study.convention]
        return max(1, math.ceil(min(wanted, shortest / 4) / per_step))


def _problems(study: ScalingStudy, made: Sequence[Cell], shortfalls: Sequence[str]) -> Iterator[str]:
    yield from shortfalls
    arms: dict[str, list[str]] = {}
    for cell in made:
        arms.setdefault(cell.name, []).append(cell.arm)
    for name, where in arms.items():
        if len(where) > 1:
            yield f"arms: {' and '.join(where)} both have a cell {name}; leave it out of one"
    for name in study.held_out:
        if name not in arms:
            near = difflib.get_close_matches(name, arms, 3) or list(arms)[:3]
            yield f"held_out: {name} is no cell of the study; did you mean {' or '.join(near)}?"


def _branched(made: Sequence[Cell]) -> list[Cell]:
    """The cells with every smaller budget set to begin from its trunk."""
    groups: dict[object, list[Cell]] = {}
    for cell in made:
        model = cell.config.model
        key = (model.layers, model.width, cell.config.run.seed, cell.rate, cell.config.data.unique_tokens)
        groups.setdefault(key, []).append(cell)
    done: list[Cell] = []
    for group in groups.values():
        *smaller, largest = sorted(group, key=lambda cell: cell.steps)
        every = _trunk_saves(largest, smaller)
        kept = replace(largest.config.checkpoint, every=every, keep_every=every if smaller else 0)
        trunk = replace(largest, config=replace(largest.config, checkpoint=kept))
        done += [trunk, *(_branch(cell, trunk, every) for cell in smaller)]
    return done


def _decay_begins(cell: Cell) -> int:
    """The last step at the full rate (training/schedule.py)."""
    return cell.steps - max(1, round(cell.config.schedule.decay_fraction * cell.steps))


def _trunk_saves(trunk: Cell, branches: Sequence[Cell]) -> int:
    """Steps between a trunk's checkpoints: a divisor of the first branch's start, so that it repeats nothing, and no
    further apart than TRUNK_SAVES of the whole asks for.
    """
    if not branches:
        return trunk.config.checkpoint.every
    first = max(1, _decay_begins(branches[0]))
    parts = math.ceil(first / max(1, TRUNK_SAVES * trunk.steps))
    return max(1, first // min(parts, 4))


def _branch(cell: Cell, trunk: Cell, every: int) -> Cell:
    begin = _decay_begins(cell) // every * every
    if begin < (cell.config.schedule.warmup_steps or 1):
        return cell  # too short to share anything
    place = str(trunk.run_dir.checkpoint(begin))
    checkpoint = replace(cell.config.checkpoint, resume=place)
    return replace(cell, config=replace(cell.config, checkpoint=checkpoint), trunk=trunk, begin=begin)
