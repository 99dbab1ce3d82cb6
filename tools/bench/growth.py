"""Row 18: what a training step costs as the model grows in depth, width and context.

bf16 steps of the dense assembly, every point in fresh processes. What should be linear is held against a line: time
per token in depth (blocks, and what is there once) and in context (attention, and the rest); the line goes through all
points but the last and says what the last may take. A wider model has larger matrices, so an operation may only become
cheaper. Memory is held against the planner as in tools/plan_check.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from gpt1_ds.plan.memory import memory
from tools.bench.rows import Options, Ratio, Row, Series, take_turns
from tools.plan_check import VOCABULARY

APART = True  # torch is imported by other processes
DEPTH, WIDTH, CONTEXT = "depth", "width", "context"
AXES = {DEPTH: (2, 4, 8, 16, 32, 48), WIDTH: (128, 256, 512, 768, 1024), CONTEXT: (128, 256, 512, 1024, 2048)}
BASE, TOKENS = {DEPTH: 4, WIDTH: 256, CONTEXT: 256}, 2048  # tokens of a step
QUICK_AXES = {DEPTH: (1, 2, 3), WIDTH: (32, 64, 128), CONTEXT: (32, 64, 128)}
QUICK_BASE, QUICK_TOKENS = {DEPTH: 1, WIDTH: 64, CONTEXT: 64}, 256
STEPS, WARM_UP = 7, 2
LINEAR = 1.1  # times what the line of the smaller ones says


@dataclass(frozen=True)
class Point:
    """One size of the model."""

    depth: int
    width: int
    context: int
    tokens: int  # of a step

    @property
    def name(self) -> str:
        return f"{self.depth} x {self.width}, context {self.context}"

    @property
    def overrides(self) -> list[str]:
        rows = self.tokens // self.context
        sizes = {"layers": self.depth, "width": self.width, "heads": max(1, self.width // 64), "context": self.context}
        batch = [f"train.global_batch={rows}", f"train.micro_batch={rows}", "train.precision=bf16"]
        return [*(f"model.{key}={value}" for key, value in sizes.items()), *batch]

    @property
    def operations(self) -> int:
        """Returns the FLOPs of a token by PaLM's convention."""
        return flops_per_token(load([], self.overrides).model, VOCABULARY)

    def planned(self) -> float:
        """MiB."""
        return memory(load([], self.overrides), 1, VOCABULARY, "cpu")[0].peak / 2**20


def train(overrides: list[str], steps: int, keep: bool, threads: int) -> dict[str, Any]:
    """Runs on the rank of a point."""
    import torch

    from tools import plan_check

    torch.set_num_threads(threads)
    return plan_check.train(overrides, steps, keep)


def measure(options: Options) -> Row:
    axes = _points(options.quick)
    ones = list(dict.fromkeys(point for points in axes.values() for point in points))

    def turn(point: Point) -> Callable[[], float]:
        """Tokens per second."""

        def act() -> float:
            arguments = (point.overrides, 3 if options.quick else STEPS, True, options.threads)
            (found,) = launch.run("tools.bench.growth:train", arguments, 1)
            return point.tokens / statistics.median(found["seconds"][WARM_UP:])

        return act

    turns = {point.name: turn(point) for point in ones}
    series = take_turns(turns, options.rounds, warm_up=0)  # every process warms up for itself
    facts = {point.name: {**asdict(point), "operations": point.operations} for point in ones}
    for point in ones[:1] if options.quick else ones:
        (found,) = launch.run("tools.bench.growth:train", (point.overrides, 2, False, 1), 1)
        facts[point.name] |= {"planned_mib": point.planned(), "peak_mib": found["peak"]}
    return Row(
        number=18,
        title="cost of growth",
        unit="tokens/s",
        series=series,
        ratios=[_judge(axis, points, series) for axis, points in axes.items()],
        configuration={"threads": options.threads, "vocabulary": VOCABULARY, "precision": "bf16", "steps": STEPS},
        checks={"points": facts, "axes": {axis: [point.name for point in points] for axis, points in axes.items()}},
    )


def _points(quick: bool) -> dict[str, list[Point]]:
    axes, base, tokens = (QUICK_AXES, QUICK_BASE, QUICK_TOKENS) if quick else (AXES, BASE, TOKENS)
    return {axis: [Point(**{**base, axis: size}, tokens=tokens) for size in sizes] for axis, sizes in axes.items()}


def _judge(axis: str, points: list[Point], series: Series) -> Ratio:
    """How time per token grows along an axis, round by round."""
    rounds = [list(times) for times in zip(*([1 / rate for rate in series[p.name]] for p in points), strict=True)]
    sizes = [float(getattr(point, axis)) for point in points]
    work = [float(point.operations) for point in points]
    if axis == WIDTH:
        cheaper = [times[-1] / times[0] / (work[-1] / work[0]) for times in rounds]
        return Ratio("width: time of an operation, widest / narrowest", cheaper, 1.0, at_least=False)
    beyond = [times[-1] / extrapolated(sizes[:-1], times[:-1], sizes[-1]) for times in rounds]
    return Ratio(f"{axis}: {sizes[-1]:.0f} / the line of the smaller ones", beyond, LINEAR, at_least=False)


def extrapolated(sizes: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at `at` of the line through `values` that has least relative errors."""
    import numpy as np

    return float(np.polyval(np.polyfit(sizes, values, 1, w=1 / np.asarray(values)), at))


def draw(path: Path, row: Row) -> None:
    """Time against operations per token (on the dotted line nothing is lost), and planned against measured memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    points = row.checks["points"]
    figure, (cost, held) = pyplot.subplots(1, 2, figsize=(12, 5))
    rates = {name: statistics.median(row.series[name]) for name in points}
    best = max(points[name]["operations"] * rates[name] for name in points)
    places = {"o": (4, -10), "s": (4, -10), "^": (-22, 4)}  # of the sizes beside their marks
    for (axis, names), mark in zip(row.checks["axes"].items(), places, strict=True):
        work, times = ([points[name]["operations"] / 1e6 for name in names], [1e6 / rates[name] for name in names])
        label = f"{axis} {points[names[0]][axis]} to {points[names[-1]][axis]}"
        (line,) = cost.plot(work, times, marker=mark, label=label)
        for name, *place in zip(names, work, times, strict=True):
            text = {"xytext": places[mark], "textcoords": "offset points", "fontsize": 7, "color": line.get_color()}
            cost.annotate(points[name][axis], place, **text)
        there = [points[name] for name in names if "peak_mib" in points[name]]
        held.plot([p["peak_mib"] for p in there], [p["planned_mib"] for p in there], mark, label=axis)
    ends = [choose(p["operations"] for p in points.values()) / 1e6 for choose in (min, max)]
    line = [1e12 * end / best for end in ends]
    cost.plot(ends, line, ":", color="black", label=f"linear: the best rate, {best / 1e12:.2f} TFLOP/s")
    cost.set(xlabel="MFLOP per token (6 N + attention)", ylabel="microseconds per token")
    sizes = [p[key] for p in points.values() for key in ("peak_mib", "planned_mib") if key in p]
    held.plot([min(sizes), max(sizes)], [min(sizes), max(sizes)], ":", color="black", label="as planned")
    held.set(xlabel="measured peak, MiB", ylabel="planned peak, MiB")
    for axes in (cost, held):
        axes.set(xscale="log", yscale="log")
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            one.set_major_formatter("{x:g}")
            one.set_minor_formatter(ticker.NullFormatter())
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    figure.suptitle(f"bf16 training steps, {row.configuration['threads']} threads", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
