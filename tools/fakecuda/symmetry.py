"""Ranks of a world by their place in it: what travels along which axis, and what all ranks do if those of a pipeline
stage do alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from gpt1_ds.config import Config
from gpt1_ds.engine.process_groups import Layout
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS
from tools.fakecuda.counter import Collective
from tools.fakecuda.schedule import wire_bytes
from tools.fakecuda.steps import VOCABULARY

# What the plan leaves out
SCALARS = 256  # bytes, along each axis: the loss, the norm and what tells an overflow are summed up
PADDING = 0.0005  # of the bytes: parts are made equal, and begin at aligned addresses
AXES = ("tensor", "pipeline", "data")


def along(layout: Layout, rank: int, call: Collective) -> tuple[str, ...]:
    """The axes along which those differ who take part in `call` of `rank`."""
    return _axes(layout, call.ranks if call.peer is None else (rank, call.peer))


def sent(layout: Layout, rank: int, calls: Sequence[Collective]) -> dict[tuple[str, ...], float]:
    """Bytes that `rank` sends, by the axes along which they travel."""
    found: dict[tuple[str, ...], float] = {}
    for call in calls:
        axes = along(layout, rank, call)
        found[axes] = found.get(axes, 0.0) + wire_bytes(call)
    return found


def unplanned(config: Config, world: int, ranks: Mapping[int, Sequence[Collective]]) -> list[str]:
    """Where what `ranks` send in a step, at least one of each pipeline stage, is not what the planner says of the
    busiest of them: a line for each axis.
    """
    layout = Layout(
        config.parallel.tensor,
        config.parallel.pipeline,
        world // (config.parallel.tensor * config.parallel.pipeline),
    )
    plan = cost(config, world, config.model.vocab_size or VOCABULARY, PRESETS["h100"])
    planned = {"tensor": plan.tensor_bytes, "pipeline": plan.pipeline_bytes, "data": plan.data_bytes}
    counted = [sent(layout, rank, calls) for rank, calls in ranks.items()]
    lines = []
    for axis, size in planned.items():
        most = max(one.pop((axis,), 0.0) for one in counted)
        if abs(most - size) > SCALARS + PADDING * size:
            lines.append(f"{axis}: {most:,.0f} bytes are sent, {size:,.0f} are planned")
    beside = max(sum(one.values()) for one in counted)
    return lines + [f"along several axes: {beside:,.0f} bytes are sent"] * (beside > SCALARS)


def all_alike(layout: Layout, stages: Mapping[int, Sequence[Collective]]) -> dict[int, list[Collective]]:
    """The collectives of every rank of these pipeline stages, if it does what the one of its stage in `stages` does."""
    known = {layout.coordinates(rank)[1]: rank for rank in stages}
    origins = {rank: known.get(place[1]) for place, rank in _ranks(layout).items()}
    return {
        rank: [_moved(layout, origin, rank, call) for call in stages[origin]]
        for rank, origin in origins.items()
        if origin is not None
    }


def _moved(layout: Layout, rank: int, to: int, call: Collective) -> Collective:
    """`call` of `rank`, as `to` issues it in its own groups."""
    members = _elsewhere(layout, to, call.ranks, _axes(layout, call.ranks))
    if call.peer is None:
        return replace(call, ranks=members)
    (peer,) = _elsewhere(layout, to, [call.peer], along(layout, rank, call))
    return replace(call, ranks=members, peer=peer)


def _elsewhere(layout: Layout, to: int, ranks: Sequence[int], axes: tuple[str, ...]) -> tuple[int, ...]:
    """`ranks` with the coordinates of `to`, but for those along `axes`."""
    here, known = layout.coordinates(to), _ranks(layout)

    def place(rank: int) -> int:
        pairs = zip(AXES, layout.coordinates(rank), here, strict=True)
        tensor, pipeline, data = (own if axis in axes else at for axis, own, at in pairs)
        return known[tensor, pipeline, data]

    return tuple(map(place, ranks))


def _axes(layout: Layout, ranks: Sequence[int]) -> tuple[str, ...]:
    """Along which these ranks differ."""
    places = zip(*map(layout.coordinates, ranks), strict=True)
    return tuple(axis for axis, at in zip(AXES, places, strict=True) if len(set(at)) > 1)


@lru_cache(maxsize=8)
def _ranks(layout: Layout) -> dict[tuple[int, int, int], int]:
    """Returns the rank of every place."""
    return {layout.coordinates(rank): rank for rank in range(layout.tensor * layout.pipeline * layout.data)}
