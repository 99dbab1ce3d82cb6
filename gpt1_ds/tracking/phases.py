"""The arithmetic of a profile: from what one rank recorded to its share of profile/summary.json, and from all shares to
the whole. Seconds everywhere, since a moment that all ranks share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

# What each phase that a rank announces counts as, by the first word that is said
PHASES = {
    **{"data": "data", "load": "data", "forward": "forward", "loss": "loss", "backward": "backward"},
    **{"sending": "send", "receiving": "receive", "reduction": "reduce", "update": "optimizer"},
    **{"agreement": "agreement", "log": "log", "evaluation": "evaluation", "save": "save"},
}
ORDER = tuple(dict.fromkeys(PHASES.values()))
WORK = ("forward", "loss", "backward")  # what a pipeline is there for; the rest of its time is the bubble
_OUTER = ("data", "agreement", "log", "evaluation", "save", "set-up")  # announced by the run itself, not its engine
_ENCLOSING = ("evaluation", "save")  # what an engine announces during these is part of them
OPERATORS = 30  # kept of a rank


@dataclass(frozen=True)
class TimeSpan:
    """A step, a phase or a kernel: what, from when to when."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class Operator:
    """All calls of an operator with the same shapes: of matrix products the inputs', of others none."""

    name: str
    shapes: str
    calls: float
    seconds: float  # of the CPU, without the operators that it called
    device_seconds: float = 0.0  # of its kernels
    flops: float = 0.0  # of matrix products


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one rank recorded. Phases follow one another without a gap, as announced; `memory[i]` is held, in bytes, as
    phase i begins. `kernels` of a device are named by the phase that launched them; without a device there are none.
    """

    steps: list[TimeSpan]  # named by their number
    phases: list[TimeSpan]
    memory: list[int]
    operators: list[Operator] = field(default_factory=list)
    kernels: list[TimeSpan] = field(default_factory=list)


def counted(phases: Iterable[TimeSpan]) -> list[TimeSpan]:
    """Phases as announced ("forward of micro-batch 3") -> as they count ("forward")."""
    found, enclosing = [], None
    for phase in phases:
        if phase.name in _OUTER:
            enclosing = phase.name if phase.name in _ENCLOSING else None
        first = phase.name.split()[0]
        found.append(TimeSpan(enclosing or PHASES.get(first, first), phase.begin, phase.end))
    return found


def share_of(recording: Recording) -> dict[str, Any]:
    """Returns one rank's part of the summary."""
    phases = counted(recording.phases)
    work = recording.kernels or phases
    return {
        "steps": [_step(step, phases, work) for step in recording.steps],
        # an event that torch lost may cost a moment of this line, but not the run
        "memory": [[span.begin, held] for span, held in zip(phases, recording.memory, strict=False)],
        "timeline": _timeline(recording.steps, phases),
        "operators": [asdict(operator) for operator in _largest(recording.operators)],
        "device_seconds": _sums(recording.kernels),
        "products": _products(recording.operators),
    }


def _products(operators: Iterable[Operator]) -> dict[str, float]:
    """Matrix products of the whole window; `seconds` on the device where there is one."""
    products = [one for one in operators if one.flops]
    seconds = sum(one.device_seconds or one.seconds for one in products)
    return {"seconds": seconds, "flops": sum(one.flops for one in products)}


def _step(step: TimeSpan, phases: Sequence[TimeSpan], work: Sequence[TimeSpan]) -> dict[str, Any]:
    """Returns a step's time by phase; `work` is when its first work began, its last ended, and how much it was."""
    inside = _inside(step, phases)
    done = [span for span in _inside(step, work) if span.name in WORK]
    found = {"step": int(step.name), "begin": step.begin, "seconds": step.seconds, "phases": _sums(inside)}
    worked = [min(span.begin for span in done), max(span.end for span in done), union(done)] if done else None
    return {**found, "work": worked}


def _inside(step: TimeSpan, spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    return [span for span in spans if step.begin <= span.begin < step.end]


def union(spans: Iterable[TimeSpan]) -> float:
    """Returns the seconds in which at least one of the spans lasts."""
    total, reached = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        total += max(0.0, span.end - max(reached, span.begin))
        reached = max(reached, span.end)
    return total


def _sums(spans: Iterable[TimeSpan]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for span in spans:
        sums[span.name] = sums.get(span.name, 0.0) + span.seconds
    return {name: sums[name] for name in sorted(sums, key=_place)}


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _timeline(steps: Sequence[TimeSpan], phases: Sequence[TimeSpan]) -> dict[str, Any]:
    """Returns the spans of one step, the same on every rank: the last one that neither evaluates nor saves, if there is
    one.
    """
    plain = [step for step in steps if not {span.name for span in _inside(step, phases)} & {*_ENCLOSING}]
    step = (plain or list(steps))[-1]
    return {"step": int(step.name), "spans": [[span.name, span.begin, span.end] for span in _inside(step, phases)]}


def _largest(operators: Iterable[Operator]) -> list[Operator]:
    return sorted(operators, key=lambda one: (-one.device_seconds, -one.seconds))[:OPERATORS]


def combine(shares: Sequence[dict[str, Any]], layout: dict[str, int], micro_batches: int) -> dict[str, Any]:
    """profile/summary.json: what the ranks' shares say together, and the shares. Each has its `rank`, its `stage` of
    the pipeline and its `replica`. Means are over ranks and steps, so that the phases sum up to the step.
    """
    steps = [step for share in shares for step in share["steps"]]
    names = sorted({name for step in steps for name in step["phases"]}, key=_place)
    seconds = fmean(step["seconds"] for step in steps)
    return {
        "steps": [step["step"] for step in shares[0]["steps"]],
        "step_seconds": seconds,
        "layout": layout,
        "micro_batches": micro_batches,
        "phases": {name: _phase(name, shares, seconds) for name in names},
        "bubble": _bubble(shares, layout["pipeline"], micro_batches),
        "operators": _operators(shares),
        "ranks": [{key: value for key, value in share.items() if key != "operators"} for share in shares],
    }


def _phase(name: str, shares: Sequence[dict[str, Any]], step_seconds: float) -> dict[str, float]:
    """Returns the seconds of one phase per step: the mean, and the means of the ranks with the least and the most of
    it.
    """
    ranks = [fmean(step["phases"].get(name, 0.0) for step in share["steps"]) for share in shares]
    device = fmean(share["device_seconds"].get(name, 0.0) / len(share["steps"]) for share in shares)
    mean = fmean(ranks)
    found = {"seconds": mean, "share": mean / step_seconds, "least": min(ranks), "most": max(ranks)}
    return {**found, "device_seconds": device}


def _bubble(shares: Sequence[dict[str, Any]], stages: int, micro_batches: int) -> dict[str, Any] | None:
    """Returns the fraction of a pipeline's time in which a rank has no work. That time is from the first forward pass
    of any of its ranks to the last backward pass of any.

    1F1B over equal stages leaves (p - 1) / (m + p - 1) with p stages and m micro-batches (Narayanan et al. 2021).
    """
    if stages == 1:
        return None
    ranks = [_idle(share, [other for other in shares if other["replica"] == share["replica"]]) for share in shares]
    ideal = (stages - 1) / (micro_batches + stages - 1)
    return {"measured": fmean(ranks), "ideal": ideal, "ranks": ranks}


def _idle(share: dict[str, Any], pipeline: Sequence[dict[str, Any]]) -> float:
    shares = []
    for number, step in enumerate(share["steps"]):
        works = [other["steps"][number]["work"] for other in pipeline]
        if all(works):
            span = max(work[1] for work in works) - min(work[0] for work in works)
            shares.append(1 - step["work"][2] / span)
    return fmean(shares) if shares else 0.0


def _operators(shares: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the largest operators of all ranks: means per rank and step."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for share in shares:
        for one in share["operators"]:
            found = sums.setdefault((one["name"], one["shapes"]), dict.fromkeys(_NUMBERS, 0.0))
            for key in _NUMBERS:
                found[key] += one[key] / len(share["steps"]) / len(shares)
    merged = [Operator(name=name, shapes=shapes, **numbers) for (name, shapes), numbers in sums.items()]
    return [asdict(operator) for operator in _largest(merged)]


_NUMBERS = ("calls", "seconds", "device_seconds", "flops")


def table(summary: dict[str, Any]) -> list[str]:
    """Returns the phases as lines of text."""
    lines = []
    for name, phase in summary["phases"].items():
        lines.append(f"  {name:<10} {1e3 * phase['seconds']:9.2f} ms {phase['share']:6.1%}")
    if summary["bubble"] is not None:
        bubble = summary["bubble"]
        lines.append(f"  bubble {bubble['measured']:.1%} of the pipeline's time; ideally {bubble['ideal']:.1%}")
    return lines
