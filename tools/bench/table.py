"""Results as JSON, as a table in Markdown, as CSV and as a bar chart."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.scaling.tables import write_table
from tools.bench.rows import Ratio, Row

COLUMNS = ("row", "title", "ratio", "median", "least", "most", "target", "reached")  # of the ratios as CSV


def load(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The machine and the rows of a results file; nothing where there is none yet."""
    if not path.exists():
        return {}, []
    found = json.loads(path.read_text())
    return found["machine"], [
        Row(**{**row, "ratios": [Ratio(**one) for one in row["ratios"]]}) for row in found["rows"]
    ]


def save(path: Path, machine: dict[str, Any], rows: list[Row]) -> None:
    """`path` (.json), and beside it the table (.md), its ratios (.csv) and the chart (.png)."""
    rows = sorted(rows, key=lambda row: row.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(machine, rows))
    write_table(path.with_suffix(".csv"), COLUMNS, [_line(row, one) for row in rows for one in row.ratios])
    draw(path.with_suffix(".png"), machine, rows)


def _line(row: Row, one: Ratio) -> dict[str, Any]:
    figures = {"median": one.median, "least": min(one.values), "most": max(one.values), "target": one.target}
    return {"row": row.number, "title": row.title, "ratio": one.name, **figures, "reached": one.reached}


def markdown(machine: dict[str, Any], rows: list[Row]) -> str:
    """The brief table, then what each contender reached."""
    lines = [brief(machine, rows), "| row | median of the rounds |", "|---|---|"]
    for row in rows:
        figures = "; ".join(f"{name} {_figure(values)} {row.unit}" for name, values in row.series.items())
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| {row.number} {row.title} | {figures}{note} |")
    return "\n".join(lines) + "\n"


def brief(machine: dict[str, Any], rows: list[Row], judged: bool = False) -> str:
    """Where, with what, and the ratios: median (least to most of the rounds), and the target. Those that have a target
    alone, as measured, for the guide where `judged`.
    """
    where = machine["device"] or f"{machine['processor']}, {machine['cores']} cores, {machine['matrix_units']}"
    packages = ", ".join(f"{name} {machine[name]}" for name in ("torch", "deepspeed", "megatron-core", "transformers"))
    quick = ["tiny sizes: these figures say nothing about speed", ""] * machine["quick"]
    lines = [f"{where}; {packages}; {machine['date']}", "", *quick]
    lines += ["| row | | ratio |", "|---|---|---|"] if judged else ["| row | | ratio | target |", "|---|---|---|---|"]
    for row in rows:
        title = f"{row.number} {row.title}"
        for one in row.ratios:
            if judged and one.target is None:
                continue
            target = "" if judged else f" {_target(one)} |"
            lines.append(f"| {title} | {one.name} | {spread(one.values)} |{target}")
            title = ""
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    """Median (least to most)."""
    if len(values) == 1:
        return _figure(values)
    return f"{_figure(values)} ({min(values):.3g} to {max(values):.3g})"


def _figure(values: list[float]) -> str:
    return f"{statistics.median(values):.3g}"


def _target(one: Ratio) -> str:
    if one.target is None:
        return ""
    return f"{'>=' if one.at_least else '<='} {one.target:g}: {'reached' if one.reached else 'falls short'}"


def draw(path: Path, machine: dict[str, Any], rows: list[Row]) -> None:
    """Every ratio that has a target, as a share of it: 1 is the target, and to the right of it is better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    judged = [(row, one) for row in rows for one in row.ratios if one.target is not None]
    if not judged:
        return
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.4 * len(judged)))
    for place, (_, one) in enumerate(reversed(judged)):
        assert one.target is not None
        shares = sorted(v / one.target if one.at_least else one.target / v for v in one.values)
        middle = statistics.median(shares)
        axes.barh(place, middle, color="#2a7f62" if one.reached else "#c4722b")
        axes.plot([shares[0], shares[-1]], [place, place], color="black", linewidth=1)
        axes.text(max(shares[-1], middle) + 0.03, place, f"{one.median:.3g}", va="center", fontsize=8)
    axes.margins(x=0.1, y=0.02)  # room for the figures
    axes.axvline(1, color="black", linestyle=":", linewidth=1)
    axes.set_yticks(range(len(judged)), [f"{row.number}  {one.name}" for row, one in reversed(judged)], fontsize=8)
    axes.set_xlabel("share of the target (right is better; the line is least to most of the rounds)")
    axes.set_title(machine["device"] or f"{machine['processor']}, {machine['cores']} cores", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
