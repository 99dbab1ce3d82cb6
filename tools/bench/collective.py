"""Row 12: sums over two processes of one host, by gloo and by a shared-memory prototype, alone and in training.

Alone: one all-reduce of fp32 at three sizes, beside plain copying. In training: steps of the books' model and of a
full-width one, under tensor and data parallelism, with gloo's all-reduce and with the prototype in its place; and the
share of a gloo step that its profile finds inside gloo, waiting for the other rank included.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from tools.bench.ranks import started, trainer
from tools.bench.rows import Options, Ratio, Row, Series, ratio, take_turns

APART = True  # torch is imported by other processes
SIZES = {"64 KB": 64 << 10, "1.5 MB": 3 << 19, "32 MB": 32 << 20}
JUDGED, TARGET = "1.5 MB", 5.0  # times gloo's rate
GLOO, SHARED, COPY = "gloo", "shared memory", "copying"
PRECISION = ["train.precision=bf16", "parallel.zero=1"]
BOOKS = ["model.layers=4", "model.width=192", "model.heads=6", "model.context=256"]
FULL = ["model.layers=12", "model.width=768", "model.heads=12", "model.context=512"]
MODELS = {  # vocabulary, words
    "books": (8000, [*BOOKS, "train.global_batch=16", "train.micro_batch=8"]),
    "full width": (40478, [*FULL, "train.global_batch=8", "train.micro_batch=4"]),
}
TINY = (1000, ["model.layers=2", "model.width=64", "model.heads=2", "model.context=64", "train.global_batch=16"])
LAYOUTS = {"TP2": ["parallel.tensor=2"], "DP2": []}


def reducer() -> Callable[[str, int, int], float]:
    """Told (who, bytes, repeats) on every rank: median seconds of one all-reduce of as many bytes."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect
    from tools.bench.shared_sum import SharedSum

    connect(600)
    assert dist.group.WORLD is not None, "connected"
    shared = SharedSum(dist.group.WORLD)
    rank, world = dist.get_rank(), dist.get_world_size()

    def act(who: str, size: int, repeats: int) -> float:
        given = torch.rand(size // 4, generator=torch.Generator().manual_seed(rank))
        expected = given.clone()
        dist.all_reduce(expected)
        tensor, seconds = given.clone(), []
        actions = {GLOO: dist.all_reduce, SHARED: shared.all_reduce, COPY: given.copy_}
        for turn in range(repeats + 2):
            tensor.copy_(given)
            dist.barrier()
            began = time.perf_counter()
            actions[who](tensor)
            if turn > 1:
                seconds.append(time.perf_counter() - began)
        same = torch.equal(tensor, expected) if world == 2 else torch.allclose(tensor, expected)
        assert same or who == COPY, f"{who} finds another sum"
        return statistics.median(seconds)

    return act


def profiled_trainer(words: list[str], vocabulary: int) -> Callable[[str, int], dict[str, float]]:
    """Told (how, step): trains it with gloo or with shared memory, or profiles a gloo step: its share inside gloo."""
    import torch
    import torch.distributed as dist

    from tools.bench.shared_sum import SharedSum

    os.environ["KINETO_LOG_LEVEL"] = "9"  # the profiler tells when it starts and stops
    step = trainer(words, vocabulary)
    assert dist.group.WORLD is not None, "the trainer connected"
    shared, gloo = SharedSum(dist.group.WORLD), dist.all_reduce
    calls: list[int] = []  # bytes of this step's sums over both ranks

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        whole = group is None or group.size() == dist.get_world_size()
        if not whole or op != dist.ReduceOp.SUM or not tensor.is_contiguous():
            return gloo(tensor, op, group, async_op)
        calls.append(tensor.numel() * tensor.element_size())
        if through == GLOO:
            return gloo(tensor, op, group, async_op)
        shared.all_reduce(tensor)
        return _Done() if async_op else None

    dist.all_reduce, through = all_reduce, GLOO

    def act(how: str, number: int) -> dict[str, float]:
        nonlocal through
        if how == "profile":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                found = step(number)
            inside = [event for event in profile.events() if event.name.startswith("gloo:")]
            return {**found, "inside": _covered([(e.time_range.start, e.time_range.end) for e in inside]) / 1e6}
        through = how
        calls.clear()
        found = step(number)
        through = GLOO
        return {**found, "calls": len(calls), "bytes": sum(calls)}

    return act


class _Done:
    """Of a sum that was asked for in the background and is done already."""

    def wait(self) -> None:
        """At once."""


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(spans):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def measure(options: Options) -> Row:
    series, ratios = _alone(options)
    checks: dict[str, Any] = {}
    models = {"tiny": TINY} if options.quick else MODELS
    for model, (vocabulary, words) in models.items():
        for layout, extra in LAYOUTS.items():
            name = f"{layout} {model}"
            found, judged, checks[name] = _training(name, [*words, *PRECISION, *extra], vocabulary, options.rounds)
            series |= found
            ratios += judged
    return Row(
        number=12,
        title="sums over two processes of a host, by gloo and by a prototype",
        unit="ms",
        series=series,
        ratios=ratios,
        configuration={"sizes": SIZES, "models": models, "layouts": LAYOUTS, "precision": PRECISION},
        checks=checks,
        note="shared memory is a prototype of this benchmark; training uses gloo",
    )


def _alone(options: Options) -> tuple[Series, list[Ratio]]:
    """All-reduce by itself."""
    repeats = 3 if options.quick else 20

    with started("tools.bench.collective:reducer", (), 2) as ranks:

        def turn(who: str, size: int) -> Callable[[], float]:
            return lambda: 1e3 * max(ranks.ask(who, size, repeats))

        turns = {f"{who} {name}": turn(who, size) for name, size in SIZES.items() for who in (GLOO, SHARED, COPY)}
        series = take_turns(turns, options.rounds)
    ratios = []
    for name in SIZES:
        target = TARGET if name == JUDGED else None
        ratios.append(
            Ratio(f"{name}: gloo / shared memory", ratio(series, f"{GLOO} {name}", f"{SHARED} {name}"), target)
        )
        for who in (GLOO, SHARED):
            ratios.append(Ratio(f"{name}: {who} / copying", ratio(series, f"{who} {name}", f"{COPY} {name}")))
    return series, ratios


def _training(name: str, words: list[str], vocabulary: int, rounds: int) -> tuple[Series, list[Ratio], dict[str, Any]]:
    """Steps with either sum; all train alike."""
    numbers, facts = itertools.count(), {}  # of steps; what the sums carried

    with started("tools.bench.collective:profiled_trainer", (words, vocabulary), 2) as ranks:

        def turn(how: str) -> Callable[[], float]:
            def act() -> float:
                answers = ranks.ask(how, next(numbers))
                facts[how] = {key: answers[0][key] for key in ("calls", "bytes", "loss")}
                return 1e3 * max(answer["seconds"] for answer in answers)

            return act

        def profile() -> float:
            answers = ranks.ask("profile", next(numbers))
            return statistics.mean(answer["inside"] / answer["seconds"] for answer in answers)

        found = take_turns({GLOO: turn(GLOO), SHARED: turn(SHARED), "share": profile}, rounds)
    assert facts[SHARED]["bytes"] == facts[GLOO]["bytes"] > 0, f"{name}: no sum went through shared memory"
    series = {f"{name} step, {who}": found[who] for who in (GLOO, SHARED)}
    ratios = [
        Ratio(f"{name}: share of a step inside gloo", found["share"], at_least=False),
        Ratio(f"{name}: step with gloo / with shared memory", ratio(found, GLOO, SHARED)),
    ]
    return series, ratios, facts
