"""What contacts with GPUs found (tools/gpu/contact.sh): their goals as rows, from files that others sent.

Whoever made one sends its results.jsonl; it is kept in tools/bench/results/ as gpu-contact-HOST-DATE.jsonl. A file of
somebody else is no more than text: it is bounded, read as JSON alone, and shown without what a terminal would obey.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError, one_line
from gpt1_ds.common.files import parse_json
from gpt1_ds.common.text import shown
from tools.gpu.record import FORMAT

NAME = "gpu-contact"  # how file names begin
MOST_BYTES, MOST_LINES = 15 << 20, 10_000
KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {  # kind of line: what it must have
    "start": {"format": int, "host": str, "date": str, "device": str, "tiny": bool},
    "fact": {"name": str},
    "series": {"name": str, "unit": str, "values": list},
    "check": {"name": str, "ok": bool, "note": str},
    "skipped": {"reason": str},
    "failed": {"error": str, "trace": str},
    "end": {"outcome": str},
}
NONE_YET = "GPU contacts: none yet; `bash tools/gpu/contact.sh` makes one, for tools/bench/results/"
HEAD = ("| goal | wanted | measured | |", "|---|---|---|---|")
SAMPLING = ("sampling", "sampling_transformers")  # phases
SAME_LOSS = 2e-2  # nats: contenders whose first losses are farther apart compute something else

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """The lines of a contact's file; the first of them says where it was."""

    lines: list[Line]

    @property
    def start(self) -> Line:
        return self.lines[0]

    def of(self, kind: str, phase: str | None = None) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind and phase in (None, line["phase"])]

    def series(self, phase: str, name: str | None = None) -> Line | None:
        """Returns the series of a phase, by its name or the fastest of several; None where it has none."""
        found = [line for line in self.of("series", phase) if name in (None, line["name"])]
        return max(found, key=lambda line: statistics.median(line["values"]), default=None)

    def checks(self, beginning: str) -> list[Line]:
        return [line for line in self.of("check") if line["name"].startswith(beginning)]

    def fact(self, phase: str, name: str) -> Any:
        return next((line.get("value") for line in self.of("fact", phase) if line["name"] == name), None)


def read(path: Path) -> Results:
    """Returns what a contact wrote; a last line that was cut short is left out. Raises DataError for another file."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
        texts = data.split(b"\n")[:-1]  # what follows the last line end is a line that was cut short
        if len(texts) > MOST_LINES:
            raise ValueError(f"more than {MOST_LINES} lines")
        lines = [_line(number, text) for number, text in enumerate(texts, 1)]
        if not lines or lines[0]["kind"] != "start":
            raise ValueError("its first line does not say where it was made")
        if lines[0]["format"] != FORMAT:
            raise ValueError(f"format {lines[0]['format']!r}, this program reads {FORMAT}")
        return Results(lines)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{path}: not a contact's results ({one_line(error)})"
        raise DataError(f"{problem}; make them again: bash tools/gpu/contact.sh") from None


def _line(number: int, text: bytes) -> Line:
    line = parse_json(text)
    if not isinstance(line, dict) or line.get("kind") not in KINDS:
        raise ValueError(f"line {number} is of no kind that is known")
    wanted = {"phase": str, "seconds": (int, float), **KINDS[line["kind"]]}
    if missing := [key for key, kind in wanted.items() if not isinstance(line.get(key), kind)]:
        raise ValueError(f"line {number} has no {missing[0]}")
    if line["kind"] == "series" and not (line["values"] and all(_is_number(one) and one > 0 for one in line["values"])):
        raise ValueError(f"line {number} has a series without figures above 0")
    if line["kind"] == "check" and not all(_is_number(line[key]) for key in ("value", "limit") if line.get(key)):
        raise ValueError(f"line {number} has a check whose figures are none")
    return line


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class Measured:
    """A goal's figure and its spread. `note` says more; `wrong` why the figure says nothing."""

    value: float
    least: float
    most: float
    note: str = ""
    wrong: str = ""


@dataclass(frozen=True)
class Goal:
    name: str
    wanted: str
    measure: Callable[[Results], Measured | None]  # None: not measured
    reached: Callable[[float], bool]
    device: str = ""  # part of the name of the only one that it is a goal of


def ratio(results: Results, above: tuple[str, str | None], below: tuple[str, str | None]) -> Measured | None:
    """Returns the ratio of the medians of two series (phase, name), with the least and the most that their figures
    allow; None where one was not measured.
    """
    first, second = results.series(*above), results.series(*below)
    if first is None or second is None:
        return None
    a, b = first["values"], second["values"]
    middle = statistics.median(a) / statistics.median(b)
    return Measured(middle, min(a) / max(b), max(a) / min(b), _rows(first, second), _unlike(first, second))


def _rows(first: Line, second: Line) -> str:
    """Says so where memory ran out and a contender had fewer rows in a step."""
    one, other = first.get("rows"), second.get("rows")
    known = isinstance(one, int) and isinstance(other, int)
    return f"{one} rows beside {other}" if known and one != other else ""


def _unlike(first: Line, second: Line) -> str:
    """Says so where two contenders compute something else."""
    one, other = first.get("first_loss"), second.get("first_loss")
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return ""
    apart = abs(one - other)
    return "" if apart <= SAME_LOSS else f"they compute something else: first losses {apart:.3g} apart"


def _of_series(line: Line | None, scale: float = 1.0) -> Measured | None:
    if line is None:
        return None
    values = [scale * value for value in line["values"]]
    return Measured(statistics.median(values), min(values), max(values))


def _share_of_ceiling(results: Results) -> Measured | None:
    step, ceiling = results.series("step"), results.series("ceilings", "bf16 product")
    if step is None or ceiling is None or not isinstance(step.get("flops_per_token"), int):
        return None
    return _of_series(step, step["flops_per_token"] / 1e12 / statistics.median(ceiling["values"]))


def _memory(results: Results) -> Measured | None:
    step = results.series("step") or {}
    used, planned = step.get("allocated_gib"), step.get("planned_gib")
    if not isinstance(used, int | float) or not isinstance(planned, int | float) or planned <= 0:
        return None
    return Measured(used / planned, used / planned, used / planned, f"{used:.2f} GiB, planned {planned:.2f}")


def _worst(beginning: str, count: int) -> Callable[[Results], Measured | None]:
    """Measures the largest value of the checks whose names begin so, of which there must be `count`."""

    def measure(results: Results) -> Measured | None:
        values = [line["value"] for line in results.checks(beginning) if line.get("value") is not None]
        return Measured(max(values), min(values), max(values)) if len(values) >= count else None

    return measure


def _graphs(results: Results) -> Measured | None:
    """Returns how many graphs proved themselves to the bit."""
    found = results.fact("step", "graphs")
    if not isinstance(found, dict) or not isinstance(found.get("count"), int):
        return None
    count, problem = float(found["count"]), found.get("problem")
    return Measured(count, count, count, "" if problem is None else str(problem)[:200])


def _ratio(above: str, below: str) -> Callable[[Results], Measured | None]:
    """Measures the ratio of the series of two phases."""
    return lambda results: ratio(results, (above, None), (below, None))


def _finetuning(results: Results) -> Measured | None:
    return ratio(results, ("finetuning", "ours"), ("finetuning", "transformers"))


def _least(value: float) -> Callable[[float], bool]:
    return lambda found: found >= value


def _most(value: float) -> Callable[[float], bool]:
    return lambda found: found <= value


GOALS = (
    Goal("ours / plain PyTorch with SDPA, both compiled", ">= 1.25", _ratio("step", "plain_compiled"), _least(1.25)),
    Goal("ours / transformers, bf16 autocast", ">= 3", _ratio("step", "transformers"), _least(3)),
    Goal("ours, tokens/s", ">= 560,000", lambda results: _of_series(results.series("step")), _least(560e3), "H100"),
    Goal("ours, share of the measured product ceiling", ">= 0.45", _share_of_ceiling, _least(0.45)),
    Goal("memory / plan", "0.95 to 1.05", _memory, lambda found: 0.95 <= found <= 1.05),
    Goal("dropout masks from the CPU's, bits that differ", "0", _worst("dropout masks", 2), _most(0)),
    Goal("20 losses from the CPU's, fp32", "<= 1e-5", _worst("losses, fp32", 1), _most(1e-5)),
    Goal("20 losses from the CPU's, bf16", "<= 2e-3", _worst("losses, bf16", 2), _most(2e-3)),
    Goal("killed and resumed, losses and weights that differ", "0", _worst("killed and resumed", 2), _most(0)),
    Goal("CUDA graphs with the bits of ordinary passes", ">= 1", _graphs, _least(1)),
    Goal("fine-tuning: ours / transformers", ">= 1.5", _finetuning, _least(1.5)),
    Goal("sampling with caches: ours / transformers", ">= 1.5", _ratio(*SAMPLING), _least(1.5)),
    *(
        Goal(f"{title}: ours / transformers", ">= 1.5", _ratio(phase, f"{phase}_transformers"), _least(1.5))
        for phase, title in (("t5", "T5 base"), ("bert", "BERT base"), ("roberta", "RoBERTa base"))
    ),
)


def table(results: Results) -> str:
    """Returns the goals, then each figure and each check, then what failed, in Markdown."""
    return "\n".join([*_head(results), "", *HEAD, *map(_cells, _goals(results)), "", *_details(results)]) + "\n"


def tables(folder: Path) -> str:
    """Returns the table of every contact in `folder`, oldest first. Raises DataError for a file that is none."""
    found = [(path, read(path)) for path in sorted(folder.glob(f"{NAME}-*.jsonl"))]
    found.sort(key=lambda one: (one[1].start["date"], one[0]))
    return "\n".join(f"{shown(path.name)}: {table(results)}" for path, results in found) or NONE_YET + "\n"


def file_name(results: Results) -> str:
    """Returns the name under which the results are kept."""
    host, date = (re.sub("[^A-Za-z0-9.-]", "_", results.start[key]) for key in ("host", "date"))
    return f"{NAME}-{host}-{date}.jsonl"


def _head(results: Results) -> Iterator[str]:
    start = results.start
    versions = results.fact("environment", "versions")
    known = ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
    device = results.fact("environment", "device") or start["device"]
    yield _flat(f"{device} on {start['host']}, {start['date']}; {known}")
    if start["tiny"]:
        yield "tiny sizes: these figures say nothing about speed"


def _goals(results: Results) -> Iterator[tuple[str, str, str, str]]:
    device = str(results.fact("environment", "device"))
    for goal in GOALS:
        found = goal.measure(results)
        if found is not None and goal.device not in device:
            yield goal.name, "", _spread(found), found.note
            continue
        if found is None:
            yield goal.name, goal.wanted, "not measured", ""
            continue
        verdict = found.wrong or ("reached" if goal.reached(found.value) else "falls short")
        note = f"; {found.note}" if found.note else ""
        yield goal.name, goal.wanted, _spread(found), "tiny" if results.start["tiny"] else verdict + note


def _spread(found: Measured) -> str:
    if found.least == found.most:
        return _figure(found.value)
    return f"{_figure(found.value)} ({_figure(found.least)} to {_figure(found.most)})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3g}"


def _details(results: Results) -> Iterator[str]:
    yield "| phase | what | three series | GiB, planned |"
    yield "|---|---|---|---|"
    for line in results.of("series"):
        figures = ", ".join(map(_figure, line["values"]))
        memory = ", ".join(f"{line[key]}" for key in ("allocated_gib", "planned_gib") if line.get(key) is not None)
        yield _cells((line["phase"], line["name"], f"{figures} {line['unit']}", memory))
    yield ""
    for line in results.of("check"):
        value = "" if line.get("value") is None else f" {line['value']:.4g}"
        limit = "" if line.get("limit") is None else f" (limit {line['limit']:.4g})"
        note = "" if line["ok"] else f"; {line['note'][-300:]}"
        yield _flat(f"{'ok' if line['ok'] else 'BAD':4}{line['phase']}: {line['name']}:{value}{limit}{note}")
    for line in results.of("failed"):
        yield _flat(f"failed in {line['phase']}: {line.get('name', '')} {line['error'][:300]}")
    for line in results.of("skipped"):
        yield _flat(f"skipped: {line['phase']}: {line['reason']}")
    for line in results.of("end"):
        if line["outcome"] != "done":
            yield _flat(f"{line['phase']}: {line['outcome']}")


def _cells(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", "/") for cell in cells) + " |"


def _flat(text: str) -> str:
    return shown(" ".join(text.split()))
