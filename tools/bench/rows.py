"""What a row of the performance table is, and how its contenders take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Series = dict[str, list[float]]


@dataclass(frozen=True)
class Options:
    """What the command line asks of every row."""

    device: str = "cpu"  # cpu or cuda
    threads: int = 2  # of every contender together, on a CPU
    rounds: int = 5
    quick: bool = False  # small sizes: shows that the row works, says nothing about speed
    text: tuple[str, ...] = ()  # files and folders for rows 15 and 19; none: the embedded corpus
    bpe: str | None = None  # folder of the 2018 release's vocabulary, for row 15


@dataclass(frozen=True)
class Ratio:
    """A figure that a row is judged by, once per round; `target` None where it is only reported."""

    name: str
    values: list[float]
    target: float | None = None
    at_least: bool = True  # else at most

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def reached(self) -> bool | None:
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


@dataclass(frozen=True)
class Row:
    """What was measured. `series` holds one figure per contender and round, in `unit`."""

    number: int
    title: str
    unit: str
    series: Series
    ratios: list[Ratio]
    configuration: dict[str, Any]
    checks: dict[str, Any] = field(default_factory=dict)  # losses that agree, shapes, back ends
    note: str = ""


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> Series:
    """A B A B ...: each contender does its work and returns its figure (a rate or seconds). What other work does to the
    machine meanwhile meets them all; only ratios within a round count.
    """
    series: Series = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name, work in contenders.items():
            figure = work()
            if number >= warm_up:
                series[name].append(figure)
    return series


def ratio(series: Series, above: str, below: str) -> list[float]:
    """Returns the ratio of two contenders' figures, round by round."""
    return [a / b for a, b in zip(series[above], series[below], strict=True)]


def fastest(series: Series, names: Iterable[str]) -> str:
    """Returns the contender whose rates have the highest median."""
    return max(names, key=lambda name: statistics.median(series[name]))


def seconds(work: Callable[[], object], device: str) -> float:
    """That `work` takes, until the device has done it, too."""
    wait_for(device)
    begin = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - begin


def rate(work: Callable[[], object], amount: float, device: str, repeats: int = 1) -> Callable[[], float]:
    """A contender: `amount` (tokens) of each `work`, per second over `repeats` of them."""

    def repeated() -> None:
        for _ in range(repeats):
            work()

    return lambda: repeats * amount / seconds(repeated, device)


def wait_for(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
