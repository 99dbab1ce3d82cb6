"""All layouts of a model on a number of ranks: which may run, which fit, which is fastest, and why the others lose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from gpt1_ds.common.text import byte_size
from gpt1_ds.config import Config, policy, world_problems
from gpt1_ds.config.validate import problems
from gpt1_ds.plan.cost import Cost, cost
from gpt1_ds.plan.machine import Machine
from gpt1_ds.plan.memory import RankMemory, peak

AXES = ("tensor", "pipeline", "zero", "micro_batch", "recompute", "sequence")


@dataclass(frozen=True)
class Candidate:
    """A layout that may run; `memory` is that of the ranks that need most."""

    config: Config
    world: int
    memory: RankMemory
    cost: Cost

    @property
    def data(self) -> int:
        return self.world // (self.config.parallel.tensor * self.config.parallel.pipeline)

    @cached_property
    def values(self) -> dict[str, int | str | bool]:
        """Returns the value of every axis."""
        keys = layout_keys(self.config)
        return {**keys["parallel"], **keys["train"]}

    @cached_property
    def order(self) -> tuple[float, ...]:
        """Returns the sort key: fastest first; of equal ones the simpler, then the one that needs less memory."""
        parallel, train = self.config.parallel, self.config.train
        simpler = (parallel.tensor, parallel.pipeline, abs(parallel.zero - 1), train.recompute != "none")
        return (self.cost.step, *simpler, parallel.sequence, self.memory.peak)

    def __str__(self) -> str:
        parallel, train = self.config.parallel, self.config.train
        extras = [", compiled"] * (train.compile == "on") + [", recompute"] * (train.recompute == "block")
        extras += [", sequence"] * parallel.sequence
        return (
            f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x data {self.data}, ZeRO {parallel.zero}, "
            f"micro-batch {train.micro_batch}{''.join(extras)}"
        )

    def overrides(self) -> list[str]:
        """Returns the keys that say this layout, as the command line takes them."""
        return [
            f"{section}.{key}={str(value).lower()}"
            for section, values in layout_keys(self.config).items()
            for key, value in values.items()
            if value is not False
        ]


def layout_keys(config: Config) -> dict[str, dict[str, Any]]:
    """Returns the keys that say a layout, by section; train.compile where it is decided."""
    parallel, train = config.parallel, config.train
    compiled = {"compile": train.compile} if train.compile != "auto" else {}
    return {
        "parallel": {key: getattr(parallel, key) for key in ("tensor", "pipeline", "zero", "sequence")},
        "train": {"micro_batch": train.micro_batch, "recompute": train.recompute, **compiled},
    }


@dataclass
class Ranking:
    """All layouts of a configuration on a number of ranks."""

    world: int
    limit: int  # bytes of one rank
    ranked: list[Candidate] = field(default_factory=list)  # those that fit, fastest first
    too_large: list[Candidate] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)  # how many, by the first reason against them
    eager: Candidate | None = None  # the best one without train.compile, where the search proposes to compile

    @property
    def total(self) -> int:
        return len(self.ranked) + len(self.too_large) + sum(self.refused.values())

    def losers(self) -> Iterator[str]:
        """Yields for every value of every axis that the best layout does not have why the best with it loses."""
        if not self.ranked:
            return
        best = self.ranked[0]
        for axis in AXES:
            values = sorted({candidate.values[axis] for candidate in (*self.ranked, *self.too_large)})
            if axis == "micro_batch":  # the neighbours are enough
                chosen = values.index(best.values[axis])
                values = values[max(0, chosen - 1) : chosen + 2]
            for value in values:
                if value != best.values[axis]:
                    yield f"{axis} {str(value).lower()}: {self._why(axis, value, best)}"
        if self.eager is not None:
            yield f"compile off: {_slower(self.eager, best)}"

    def _why(self, axis: str, value: int | str | bool, best: Candidate) -> str:
        rival = next((candidate for candidate in self.ranked if candidate.values[axis] == value), None)
        if rival is None:
            with_value = [candidate for candidate in self.too_large if candidate.values[axis] == value]
            least = min(with_value, key=lambda candidate: candidate.memory.peak)
            return f"does not fit: {byte_size(least.memory.peak)} per rank at best ({least.memory.peak_at})"
        return _slower(rival, best)


def _slower(rival: Candidate, best: Candidate) -> str:
    slower = rival.cost.step / best.cost.step - 1
    if slower < 0.001:
        return f"as fast; {byte_size(rival.memory.peak)} instead of {byte_size(best.memory.peak)} per rank"
    of_best = _seconds(best.cost)
    increase = {part: seconds - of_best[part] for part, seconds in _seconds(rival.cost).items()}
    reason = max(increase, key=lambda part: increase[part])
    return f"{slower:.1%} slower ({1e3 * increase[reason]:.3g} ms more per step of {reason}); best: {rival}"


def _seconds(costs: Cost) -> dict[str, float]:
    """Returns the seconds of a step by part."""
    working = costs.pipeline * (1 - costs.bubble)
    return {
        "reductions between tensor-parallel ranks": costs.tensor,
        "waiting in the pipeline": costs.pipeline * costs.bubble,
        "computing": working - costs.tensor,
        "reducing gradients": costs.reduction,
        "updating and gathering weights": costs.update,
    }


def search(config: Config, world: int, vocab_size: int, machine: Machine, limit: int) -> Ranking:
    """Returns every layout of `config` on `world` ranks with at most `limit` bytes each. On GPUs each says whether
    blocks are compiled; where the configuration leaves that open, as such a run does.
    """

    def candidate(layout: Config) -> Candidate:
        needed = peak(layout, world, vocab_size, machine.device)
        return Candidate(layout, world, needed, cost(layout, world, vocab_size, machine))

    ranking = Ranking(world, limit)
    for layout in layouts(config, world, machine):
        if machine.device == "cuda":
            layout = _with_compile(layout, "on" if policy.is_compiled(layout) else "off")
        reason = next(problems(layout), None) or next(world_problems(layout, world), None)
        if reason is not None:
            reason = reason.split(";")[0]
            ranking.refused[reason] = ranking.refused.get(reason, 0) + 1
            continue
        legal = candidate(layout)
        (ranking.ranked if legal.memory.peak <= limit else ranking.too_large).append(legal)
    ranking.ranked.sort(key=lambda legal: legal.order)
    if ranking.ranked and ranking.ranked[0].config.train.compile == "on":
        ranking.eager = candidate(_with_compile(ranking.ranked[0].config, "off"))
    return ranking


def _with_compile(config: Config, value: Literal["on", "off"]) -> Config:
    return replace(config, train=replace(config.train, compile=value))


def layouts(config: Config, world: int, machine: Machine) -> Iterator[Config]:
    """Yields every combination that divides the world, legal or not. Tensor-parallel ranks are of one node."""
    for tensor in divisors(world, min(machine.ranks_per_node, config.model.heads)):
        for pipeline in divisors(world // tensor, sum(config.model.blocks)):
            data = world // (tensor * pipeline)
            for micro_batch in divisors(max(1, config.train.smallest_batch // data)):
                yield from _variants(config, tensor, pipeline, micro_batch, machine.device == "cuda")


def _variants(config: Config, tensor: int, pipeline: int, micro_batch: int, cuda: bool) -> Iterator[Config]:
    recomputes: tuple[Literal["none", "block"], ...] = ("none", "block")
    if config.model.attention == "fused":
        recomputes = ("none",)
    zeros = (1,) if pipeline > 1 else (0, 1, 2, 3) if config.train.precision == "fp32" else (1, 2, 3)
    for recompute in recomputes:
        train = replace(config.train, micro_batch=micro_batch, recompute=recompute)
        for sequence in (False, True) if cuda and tensor > 1 else (False,):
            for zero in zeros:
                parallel = replace(
                    config.parallel,
                    tensor=tensor,
                    pipeline=pipeline,
                    zero=zero,
                    sequence=sequence,
                    assembly="auto",
                )
                yield replace(config, train=train, parallel=parallel)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Returns the divisors of `number` up to `most`, in ascending order."""
    most = number if most is None else most
    small = [n for n in range(1, min(math.isqrt(number), most) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n < number and number // n <= most]
