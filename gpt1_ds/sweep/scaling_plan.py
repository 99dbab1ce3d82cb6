"""A scaling study before it costs anything: its cells, what they need, and whether they can answer the question."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.common.units import count, duration
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import Machine
from gpt1_ds.scaling.checks import DECADE
from gpt1_ds.scaling.tables import CONVENTIONS, DOMINATED, DONE
from gpt1_ds.sweep import outcome
from gpt1_ds.sweep.scaling_study import ScalingStudy
from gpt1_ds.sweep.scaling_trials import Cell

FEWEST_SIZES = FEWEST_BUDGETS = 3  # of a joint fit over N and D
EVALUATION_LOAD = 1.05  # time of a run beside its steps


@dataclass(frozen=True)
class StudyPlan:
    """All cells of a study and the machine that their time is counted on."""

    study: ScalingStudy
    cells: tuple[Cell, ...]
    machine: Machine | None = None

    @property
    def folder(self) -> Path:
        return Path(self.cells[0].config.run.dir) / self.study.name

    def describe(self) -> dict[str, Any]:
        """The study as JSON values: what collect, fit and report need to know beside the run folders."""
        keys = ("name", "arm", "kind", "rate", "steps", "begin", "held_out")
        listed = [{key: getattr(cell, key) for key in keys} for cell in self.cells]
        return {"study": asdict(self.study), "cells": listed}

    def seconds(self, cell: Cell) -> float:
        """Of the steps that `cell` runs itself, by the planner."""
        assert self.machine is not None, "asked for with a machine"
        step = cost(cell.config, self.study.nproc, cell.vocab_size, self.machine).step
        return EVALUATION_LOAD * step * (cell.steps - cell.begin)

    def watch(self, running: Mapping[Cell, float], spent: float) -> str:
        """End hopeless cells; say so when the hours are used up."""
        hours = self.study.budget_hours
        if hours is not None and spent * self.study.nproc >= hours * 3600:
            return f"budget_hours={hours:g} is used up"
        for cell in running if self.study.stop.behind else ():
            record = outcome.read(cell.run_dir, cell.steps)
            reason = outcome.dominated(self.study.stop, record, cell.steps, self._rivals(cell))
            if reason and record.outcome not in outcome.ENDED:
                cell.run_dir.add_event(DOMINATED, reason=reason)
                cell.run_dir.stop.touch()
        return ""

    def _rivals(self, cell: Cell) -> dict[str, outcome.Record]:
        """Finished records of the same cell at other learning rates."""
        same = [
            other
            for other in self.cells
            if other.rate != cell.rate
            and _place(other) == _place(cell)
            and other.config.run.seed == cell.config.run.seed
        ]
        records = {other.name: outcome.read(other.run_dir, other.steps) for other in same}
        return {name: record for name, record in records.items() if record.outcome == DONE}

    def tidy(self) -> None:
        """Remove checkpoints that no branch needs any more."""
        if self.study.keep_checkpoints:
            return
        kept = [cell for cell in self.cells if cell.run_dir.checkpoints.exists()]  # few, also in a large study
        needed = {cell.trunk for cell in self.cells if cell.trunk in kept and not cell.done}
        for cell in kept:
            if cell not in needed and cell.done:
                shutil.rmtree(cell.run_dir.checkpoints, ignore_errors=True)

    # What people read

    def table(self) -> Iterator[str]:
        """One line per cell, and the totals."""
        wide = max(len(cell.name) for cell in self.cells)
        units = f"{'hours':>8}" if self.machine else ""
        yield (
            f"{'cell':<{wide}}  {'arm':<10}{'N':>8}{'N all':>8}{'N blocks':>9}{'D':>8}{'U':>8}{'epochs':>7}{'C':>10}"
            f"{'lr':>10}  {'begins':<8}{units}"
        )
        for cell in self.cells:
            yield self._line(cell, wide)
        yield from self._totals()

    def _line(self, cell: Cell, wide: int) -> str:
        begins = f"{cell.begin / cell.steps:.0%} trunk" if cell.trunk else "scratch"
        hours = f"{self.seconds(cell) * self.study.nproc / 3600:8.2f}" if self.machine else ""
        return (
            f"{cell.name:<{wide}}  {cell.arm:<10}{count(cell.parameters):>8}{count(cell.sizes['all']):>8}"
            f"{count(cell.sizes['transformer']):>9}{count(cell.tokens):>8}{count(cell.unique):>8}{cell.epochs:>7.2f}"
            f"{cell.flops:>10.2e}{cell.config.optimizer.lr:>10.2e}  {begins:<9}{hours}{'  held out' * cell.held_out}"
        )

    def _totals(self) -> Iterator[str]:
        own = sum(cell.flops * cell.own_share for cell in self.cells)
        held_out = sum(cell.held_out for cell in self.cells)
        yield (
            f"{self.folder}: {len(self.cells)} cells, {held_out} held out, {own:.3g} operations; N counts "
            f"{CONVENTIONS[self.study.convention]}; schedule {self.study.schedule}"
        )
        if self.machine is not None:
            seconds = sum(self.seconds(cell) for cell in self.cells)
            at_once = f"{duration(seconds / self.study.jobs)} with {self.study.jobs} at a time"
            yield (
                f"about {seconds * self.study.nproc / 3600:.3g} hours of ranks, {at_once}, on {self.machine.name} "
                f"({self.machine.source})"
            )
        limits = [("budget_flops", self.study.budget_flops), ("budget_hours", self.study.budget_hours)]
        for key, limit in limits:
            if limit is not None:
                yield f"{key}={limit:g}"
        yield from (f"warning: {warning}" for warning in warnings(self.cells))


def _place(cell: Cell) -> tuple[int, int, int]:
    return cell.parameters, cell.tokens, cell.unique


def fitted(cells: Sequence[Cell]) -> list[Cell]:
    """Those that a joint fit over N and D may see."""
    return [cell for cell in cells if not cell.held_out and cell.kind == "ladder"]


def unidentified(cells: Sequence[Cell]) -> Iterator[str]:
    """Why no law can be fitted to these cells."""
    seen = fitted(cells)
    if not any(cell.kind == "ladder" for cell in cells):
        return  # depth, shape and data answer other questions
    sizes, budgets = {cell.parameters for cell in seen}, {cell.tokens for cell in seen}
    if len(sizes) < FEWEST_SIZES or len(budgets) < FEWEST_BUDGETS:
        yield (
            f"arms: {len(sizes)} sizes x {len(budgets)} budgets that are not held out cannot identify "
            f"E + A/N^alpha + B/D^beta; use at least {FEWEST_SIZES} x {FEWEST_BUDGETS}"
        )
    elif _range([cell.tokens / cell.parameters for cell in seen]) < DECADE:
        low, high = (f(cell.tokens / cell.parameters for cell in seen) for f in (min, max))
        yield (
            f"arms: tokens per parameter go from {low:.3g} to {high:.3g}, less than a decade, so that alpha and beta "
            "cannot be told apart; use larger and smaller budgets"
        )


def warnings(cells: Sequence[Cell]) -> Iterator[str]:
    """What a fit to these cells will not know well."""
    seen = fitted(cells)
    if not seen:
        return
    for name, values in (("D", [x.tokens for x in seen]), ("N", [x.parameters for x in seen])):
        if (span := _range(values)) < DECADE:
            yield f"{name} spans a factor of {span:.3g}, less than a decade: its exponent will be vague"
    target = max((cell.flops for cell in cells if cell.held_out), default=0)
    if target > DECADE * max(cell.flops for cell in seen):
        yield "a held-out cell needs more than 10 times the compute of any fitted one: a long extrapolation"
    if not any(seeds > 1 for seeds in _seeds(cells).values()):
        yield "no cell has a second seed: there will be no noise floor to hold errors against"
    if not any(cell.held_out for cell in cells):
        yield "no cell is held out: nothing will test the prediction"


def _seeds(cells: Sequence[Cell]) -> dict[tuple[int, int, int], int]:
    places = [(_place(cell), cell.config.run.seed) for cell in cells if cell.rate == 1]
    return {place: len({seed for other, seed in places if other == place}) for place, _ in places}


def _range(values: Sequence[float]) -> float:
    return max(values) / min(values)
