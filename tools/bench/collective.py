"""Row 12: sums over two processes of one host, by gloo and by a shared-memory prototype.

One all-reduce of fp32 at three sizes, beside plain copying.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from tools.bench.ranks import started
from tools.bench.rows import Options, Ratio, Row, Series, ratio, take_turns

APART = True  # torch is imported by other processes
SIZES = {"64 KB": 64 << 10, "1.5 MB": 3 << 19, "32 MB": 32 << 20}
JUDGED, TARGET = "1.5 MB", 5.0  # times gloo's rate
GLOO, SHARED, COPY = "gloo", "shared memory", "copying"


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


def measure(options: Options) -> Row:
    series, ratios = _alone(options)
    return Row(
        number=12,
        title="sums over two processes of a host, by gloo and by a prototype",
        unit="ms",
        series=series,
        ratios=ratios,
        configuration={"sizes": SIZES},
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
