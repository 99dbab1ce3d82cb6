"""What GPUs did that no developer had: a table row for each file of `gpt1-ds doctor --gpu` or `slurm check`.

Whoever ran one sends its file; it lies in tools/bench/results/ under the name that it was written with.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpt1_ds.diagnostics.report import NAME, Report, read_report

NONE_YET = "GPU checks: none yet; `gpt1-ds doctor --gpu` writes one, for tools/bench/results/"
HEAD = ("| GPUs | torch, CUDA, driver | checks that hold | all-reduce, GB/s | tokens/s | origin |", "|---" * 6 + "|")


def table(folder: Path) -> str:
    """In Markdown, oldest first. Raises DataError for a file that is none."""
    found = [(path, read_report(path)) for path in sorted(folder.glob(f"{NAME}-*.json"))]
    rows = [_row(path, report) for path, report in sorted(found, key=lambda one: (one[1].date, one[0]))]
    return "\n".join([*HEAD, *rows] if rows else [NONE_YET]) + "\n"


def _row(path: Path, report: Report) -> str:
    tools = report.toolchain
    versions = ", ".join(str(tools.get(name)) for name in ("torch", "cuda", "driver"))
    held = f"{len(report.records) - len(report.failing)} of {len(report.records)}"
    failing = "".join(f"; not: {record.name}" for record in report.failing)
    cells = (
        f"{report.world} x {tools.get('device')} on {len(report.devices)} hosts",
        versions,
        held + failing,
        _figure(max(_values(report, "all-reduce of "), default=None)),
        _figure(report.value("a step of the real engine")),
        f"{path.name}, {report.date}, gpt1_ds {tools.get('gpt1_ds')}",
    )
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _values(report: Report, name: str) -> Iterator[float]:
    return (one.value for one in report.records if one.name.startswith(name) and one.value is not None)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
