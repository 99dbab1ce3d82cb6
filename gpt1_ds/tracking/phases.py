"""The arithmetic of a profile: from what one rank recorded to the summary of a rank, and from these to
profile/summary.json. Times are seconds since a moment that is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

# The first word of a phase that a rank reports -> the name under which its time is added up
PHASES = {
    **{"data": "data", "load": "data", "forward": "forward", "loss": "loss", "backward": "backward"},
    **{"sending": "send", "receiving": "receive", "reduction": "reduce", "update": "optimizer"},
    **{"agreement": "agreement", "log": "log", "evaluation": "evaluation", "save": "save"},
}
ORDER = tuple(dict.fromkeys(PHASES.values()))
WORK = ("forward", "loss", "backward")  # what a pipeline is there for; the rest of its time is the bubble
_OUTER = ("data", "agreement", "log", "evaluation", "save", "set-up")  # reported by the run itself, not its engine
_ENCLOSING = ("evaluation", "save")  # what an engine reports during these is part of them
OPERATORS = 30  # kept of a rank


@dataclass(frozen=True)
class TimeSpan:
    """A step, a phase or a kernel."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class Operator:
    """All calls of an operator; of a matrix product, those with the same shapes."""

    name: str
    shapes: str  # of a matrix product's inputs; "" of others
    calls: float
    seconds: float  # of the CPU, without the operators that it called
    device_seconds: float = 0.0  # of its kernels
    flops: float = 0.0  # of matrix products


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What one rank recorded. Phases follow one another without a gap, as reported; `memory[i]` is held, in bytes, as
    phase i begins. `kernels` of a device are named by the phase that launched them; without a device there are none.
    """

    steps: list[TimeSpan]  # named by their number
    phases: list[TimeSpan]
    memory: list[int]
    operators: list[Operator] = field(default_factory=list)
    kernels: list[TimeSpan] = field(default_factory=list)


def counted(phases: Iterable[TimeSpan]) -> list[TimeSpan]:
    """Returns phases under the names of PHASES: "forward of micro-batch 3" is "forward", and what an engine reports
    during an evaluation is "evaluation".
    """
    spans, enclosing = [], None
    for phase in phases:
        if phase.name in _OUTER:
            enclosing = phase.name if phase.name in _ENCLOSING else None
        first = phase.name.split()[0]
        spans.append(TimeSpan(enclosing or PHASES.get(first, first), phase.begin, phase.end))
    return spans


def rank_summary(recording: Recording) -> dict[str, Any]:
    """Returns the summary of one rank."""
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
    """Returns the sums over matrix products of the whole window; `seconds` on the device where there is one."""
    products = [operator for operator in operators if operator.flops]
    seconds = sum(product.device_seconds or product.seconds for product in products)
    return {"seconds": seconds, "flops": sum(product.flops for product in products)}


def _step(step: TimeSpan, phases: Sequence[TimeSpan], work: Sequence[TimeSpan]) -> dict[str, Any]:
    """Returns a step's time by phase; `work` is when its first work began, its last ended, and how much it was."""
    spans = [span for span in _inside(step, work) if span.name in WORK]
    return {
        "step": int(step.name),
        "begin": step.begin,
        "seconds": step.seconds,
        "phases": _sums(_inside(step, phases)),
        "work": [min(span.begin for span in spans), max(span.end for span in spans), union(spans)] if spans else None,
    }


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
    return sorted(operators, key=lambda operator: (-operator.device_seconds, -operator.seconds))[:OPERATORS]


def combine(ranks: Sequence[dict[str, Any]], layout: dict[str, int], micro_batches: int) -> dict[str, Any]:
    """Returns profile/summary.json: means over ranks and steps, so that the phases sum up to the step; and the ranks'
    own summaries. Each of `ranks` has its `rank`, its `stage` of the pipeline and its `replica`.
    """
    steps = [step for rank in ranks for step in rank["steps"]]
    names = sorted({name for step in steps for name in step["phases"]}, key=_place)
    seconds = fmean(step["seconds"] for step in steps)
    return {
        "steps": [step["step"] for step in ranks[0]["steps"]],
        "step_seconds": seconds,
        "layout": layout,
        "micro_batches": micro_batches,
        "phases": {name: _phase(name, ranks, seconds) for name in names},
        "bubble": _bubble(ranks, layout["pipeline"], micro_batches),
        "operators": _operators(ranks),
        "ranks": [{key: value for key, value in rank.items() if key != "operators"} for rank in ranks],
    }


def _phase(name: str, ranks: Sequence[dict[str, Any]], step_seconds: float) -> dict[str, float]:
    """Returns the seconds of one phase per step: the mean, and the means of the ranks with the least and the most of
    it.
    """
    means = [fmean(step["phases"].get(name, 0.0) for step in rank["steps"]) for rank in ranks]
    mean = fmean(means)
    return {
        "seconds": mean,
        "share": mean / step_seconds,
        "least": min(means),
        "most": max(means),
        "device_seconds": fmean(rank["device_seconds"].get(name, 0.0) / len(rank["steps"]) for rank in ranks),
    }


def _bubble(ranks: Sequence[dict[str, Any]], stages: int, micro_batches: int) -> dict[str, Any] | None:
    """Returns the fraction of a pipeline's time in which a rank has no work. That time is from the first forward pass
    of any of its ranks to the last backward pass of any.

    1F1B over equal stages leaves (p - 1) / (m + p - 1) with p stages and m micro-batches (Narayanan et al. 2021).
    """
    if stages == 1:
        return None
    idle = [_idle(rank, [other for other in ranks if other["replica"] == rank["replica"]]) for rank in ranks]
    ideal = (stages - 1) / (micro_batches + stages - 1)
    return {"measured": fmean(idle), "ideal": ideal, "ranks": idle}


def _idle(rank: dict[str, Any], pipeline: Sequence[dict[str, Any]]) -> float:
    """Returns the mean over steps of the fraction of its pipeline's time in which a rank has no work."""
    fractions = []
    for number, step in enumerate(rank["steps"]):
        works = [other["steps"][number]["work"] for other in pipeline]
        if all(works):
            span = max(work[1] for work in works) - min(work[0] for work in works)
            fractions.append(1 - step["work"][2] / span)
    return fmean(fractions) if fractions else 0.0


def _operators(ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the largest operators of all ranks: means per rank and step."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for rank in ranks:
        for operator in rank["operators"]:
            numbers = sums.setdefault((operator["name"], operator["shapes"]), dict.fromkeys(_NUMBERS, 0.0))
            for key in _NUMBERS:
                numbers[key] += operator[key] / len(rank["steps"]) / len(ranks)
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
