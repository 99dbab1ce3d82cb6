"""A scaling study's sweep: its trials, what they need, how far they are, whether they can answer the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.text import amount, count, duration
from gpt1_ds.config import world_problems
from gpt1_ds.data.sources import found_data, open_data, with_embedded_corpus
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import Machine, expected
from gpt1_ds.plan.memory import peak
from gpt1_ds.plan.planning import usable_bytes
from gpt1_ds.scaling.checks import DECADE
from gpt1_ds.scaling.tables import CONVENTIONS, DOMINATED, DONE
from gpt1_ds.sweep import outcome
from gpt1_ds.sweep.scaling_study import ScalingStudy, load_scaling
from gpt1_ds.sweep.scaling_trials import ScalingTrial, base_config, make_trials
from gpt1_ds.sweep.trial import Sweep

FEWEST_SIZES = FEWEST_BUDGETS = 3  # of a joint fit over N and D
EVALUATION_LOAD = 1.05  # time of a run beside its steps


@dataclass(frozen=True)
class ScalingSweep(Sweep):
    """`machine` is the one that the planner counts the time on."""

    study: ScalingStudy
    trials: tuple[ScalingTrial, ...]
    machine: Machine

    def describe(self) -> dict[str, Any]:
        keys = ("name", "arm", "kind", "rate", "steps", "begin", "held_out")
        listed = [{key: getattr(trial, key) for key in keys} for trial in self.trials]
        return {"study": asdict(self.study), "cells": listed}

    @property
    def has_law(self) -> bool:
        """Whether it has cells that a law of N and D can be fitted to; depth, shape and data answer other questions."""
        return any(trial.kind == "ladder" for trial in self.trials)

    def check(self) -> None:
        """Raises UserError also for data that are not there, or lack the text whose loss is the result of a cell."""
        config = self.trials[0].config
        if open_data(config).held_out is None:
            raise ConfigError(
                f"data.path: {config.data.path[0].path} has no held-out text, by whose loss a study judges its cells; "
                "build it with --validation above 0"
            )
        super().check()

    def watch(self, running: Mapping[ScalingTrial, float], spent: float) -> str:
        """Also ends the trials that are dominated."""
        hours = self.study.budget_hours
        if hours is not None and spent * self.study.nproc >= hours * 3600:
            return f"budget_hours={hours:g} is used up"
        for trial in running if self.study.stop.behind else ():
            record = trial.record
            reason = outcome.dominated(self.study.stop, record, trial.steps, self._competitors(trial))
            if reason and record.outcome not in outcome.ENDED:
                trial.run_dir.add_event(DOMINATED, reason=reason)
                trial.run_dir.stop.touch()
        return ""

    def _competitors(self, trial: ScalingTrial) -> dict[str, outcome.RunRecord]:
        """Returns finished records of the same trial at other learning rates."""
        seed = trial.config.run.seed
        same = [x for x in self.trials if x.rate != trial.rate and x.point == trial.point and x.config.run.seed == seed]
        records = {other.name: other.record for other in same}
        return {name: record for name, record in records.items() if record.outcome == DONE}

    def seconds(self, trial: ScalingTrial, ranks: int) -> float:
        """Returns how long so many ranks take for the steps that `trial` runs itself, by the planner."""
        step = cost(trial.config, ranks, trial.vocab_size, self.machine).step
        return EVALUATION_LOAD * step * (trial.steps - trial.begin)

    def ranks_needed(self, trial: ScalingTrial) -> int:
        """Returns the study's `nproc`; with `fit_ranks` the smallest power of two below it of ranks that hold the trial
        and end it within one job, by the planner.
        """
        most, config = self.study.nproc, trial.config
        slurm = config.slurm
        for ranks in (1 << power for power in range(most.bit_length()) if self.study.fit_ranks):
            whole_nodes = ranks <= slurm.ranks or ranks % slurm.ranks == 0
            if not whole_nodes or any(world_problems(config, ranks)):
                continue
            held = peak(config, ranks, trial.vocab_size, self.machine.device).peak
            in_time = self.seconds(trial, ranks) <= slurm.seconds - slurm.warning
            if in_time and held <= usable_bytes(None, self.machine, ranks):
                return ranks
        return most

    # What people read

    def table(self) -> Iterator[str]:
        """Yields what every trial is and needs, and the totals."""
        wide = max(len(trial.name) for trial in self.trials)
        yield (
            f"{'cell':<{wide}}  {'arm':<10}{'N':>8}{'N all':>8}{'N blocks':>9}{'D':>8}{'U':>8}{'epochs':>7}{'C':>10}"
            f"{'lr':>10}  {'begins':<8}{'hours':>8}{'  ranks' if self.study.fit_ranks else ''}"
        )
        for trial in self.trials:
            ranks = self.ranks_needed(trial)
            begins = f"{trial.begin / trial.steps:.0%} trunk" if trial.trunk else "scratch"
            yield (
                f"{trial.name:<{wide}}  {trial.arm:<10}{count(trial.parameters):>8}{count(trial.sizes['all']):>8}"
                f"{count(trial.sizes['transformer']):>9}{count(trial.tokens):>8}{count(trial.unique):>8}"
                f"{trial.epochs:>7.2f}{trial.flops:>10.2e}{trial.config.optimizer.lr:>10.2e}  {begins:<9}"
                f"{self.seconds(trial, ranks) * ranks / 3600:8.2f}{f'{ranks:>7}' if self.study.fit_ranks else ''}"
                f"{'  held out' * trial.held_out}"
            )
        yield from self._totals()

    def _totals(self) -> Iterator[str]:
        own = sum(trial.flops * trial.own_share for trial in self.trials)
        held_out = sum(trial.held_out for trial in self.trials)
        yield (
            f"{self.folder}: {amount(len(self.trials), 'cell')}, {held_out} held out, {own:.3g} FLOPs; N counts "
            f"{CONVENTIONS[self.study.convention]}; schedule {self.study.schedule}"
        )
        needed = [(self.seconds(trial, ranks), ranks) for trial in self.trials for ranks in [self.ranks_needed(trial)]]
        seconds, rank_seconds = sum(one for one, _ in needed), sum(one * ranks for one, ranks in needed)
        yield (
            f"about {rank_seconds / 3600:.3g} hours of ranks, {duration(seconds / self.study.jobs)} with "
            f"{self.study.jobs} at a time, on {self.machine.name} ({self.machine.source})"
        )
        for key in ("budget_flops", "budget_hours"):
            limit = getattr(self.study, key)
            if limit is not None:
                yield f"{key}={limit:g}"
        yield from (f"warning: {warning}" for warning in warnings(self.trials))

    def status(self) -> Iterator[str]:
        """Yields how far every trial is, and how many have which outcome. Raises ConfigError as `collect` does."""
        self.check_configurations()
        wide = max(len(trial.name) for trial in self.trials)
        yield f"{'cell':<{wide}}  {'N':>6}{'D':>8}  {'outcome':<10}{'step':>14}  {'loss':>7}  {'time':<12}"
        ended: Counter[str] = Counter()
        for trial in self.trials:
            record = trial.record
            ended[record.outcome] += 1
            step = record.train[-1]["step"] if record.train else 0
            loss = "" if record.loss is None else f"{record.loss:.4f}"
            time = duration(record.seconds) if record.seconds else ""
            yield (
                f"{trial.name:<{wide}}  {count(trial.parameters):>6}{count(trial.tokens):>8}  {record.outcome:<10}"
                f"{f'{step}/{trial.steps}':>14}  {loss:>7}  {time:<12}{record.reason}".rstrip()
            )
        yield f"{self.folder}: {', '.join(f'{number} {name}' for name, number in ended.most_common())}"


def read_sweep(file: str, overrides: Sequence[str], prepare: bool = False) -> ScalingSweep:
    """Returns the sweep of a study's file. Nothing is written, unless `prepare` asks for the corpus inside Python.

    Raises ConfigError naming every problem, also of a study that cannot answer its question.
    """
    study = load_scaling(file)
    base = base_config(study, overrides)
    found = with_embedded_corpus(base, prepare).data.path
    if found != base.data.path:
        overrides = [*overrides, f"data.path={found[0].path}"]
        base = base_config(study, overrides)
    trials = make_trials(study, overrides, *found_data(base))
    ConfigError.raise_all(f"{file}: {problem}" for problem in unidentified(trials))
    return ScalingSweep(study, trials, expected("cuda" if base.slurm.gpus else "cpu"))


def unidentified(trials: Sequence[ScalingTrial]) -> Iterator[str]:
    """Yields why no law can be fitted to these trials."""
    if not any(trial.kind == "ladder" for trial in trials):
        return  # depth, shape and data answer other questions
    fitted = _fitted(trials)
    sizes, budgets = {trial.parameters for trial in fitted}, {trial.tokens for trial in fitted}
    per_parameter = [trial.tokens / trial.parameters for trial in fitted]
    if len(sizes) < FEWEST_SIZES or len(budgets) < FEWEST_BUDGETS:
        yield (
            f"arms: {len(sizes)} sizes x {len(budgets)} budgets that are not held out cannot identify "
            f"E + A/N^alpha + B/D^beta; use at least {FEWEST_SIZES} x {FEWEST_BUDGETS}"
        )
    elif _range(per_parameter) < DECADE:
        yield (
            f"arms: tokens per parameter go from {min(per_parameter):.3g} to {max(per_parameter):.3g}, less than a "
            "decade, so that no fit can separate alpha from beta; use larger and smaller budgets"
        )


def warnings(trials: Sequence[ScalingTrial]) -> Iterator[str]:
    """Yields what a fit to these trials will not know well."""
    fitted = _fitted(trials)
    if not fitted:
        return
    for name, values in (("D", [x.tokens for x in fitted]), ("N", [x.parameters for x in fitted])):
        if (span := _range(values)) < DECADE:
            yield f"{name} spans a factor of {span:.3g}, less than a decade: its exponent will be vague"
    furthest = max((trial.flops for trial in trials if trial.held_out), default=0)
    if furthest > DECADE * max(trial.flops for trial in fitted):
        yield "a held-out cell needs more than 10 times the compute of any fitted one: a long extrapolation"
    runs = {(trial.point, trial.config.run.seed) for trial in trials if trial.rate == 1}
    if len({point for point, _ in runs}) == len(runs):
        yield "no cell has a second seed: there will be no noise floor to hold errors against"
    if not any(trial.held_out for trial in trials):
        yield "no cell is held out: nothing will test the prediction"


def _fitted(trials: Iterable[ScalingTrial]) -> list[ScalingTrial]:
    """Returns the trials that a joint fit over N and D may see."""
    return [trial for trial in trials if not trial.held_out and trial.kind == "ladder"]


def _range(values: Sequence[float]) -> float:
    return max(values) / min(values)
