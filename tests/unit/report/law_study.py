"""Studies of a few cells on a known law, and lines of a figure."""

from __future__ import annotations

import json
from pathlib import Path

from gpt1_ds.report.scaling_results import ScalingResults, read_scaling_results
from tests.helpers.laws import law

SHAPED = {"alpha": 0.34, "beta": 0.28, "E": 1.7, "A": 400.0, "B": 300.0}


def study_on_law(path: Path, rows: list[tuple[float, float]], fit: dict[str, object] | None = None) -> ScalingResults:
    """A study of cells (N, D) on the law SHAPED."""
    text = "".join(f"{n!r},{d!r},{float(law(n, d, **SHAPED))!r}\n" for n, d in rows)
    (path / "results.csv").write_text("n,d,loss\n" + text)
    if fit is not None:
        write_fit(path, fit)
    return read_scaling_results(path)


def write_fit(path: Path, fit: dict[str, object]) -> None:
    (path / "fit.json").write_text(json.dumps({"format": 1, "bootstrap": {"samples": {}}, **fit}))


def line(axes: object, label: str) -> object:
    (found,) = [one for one in axes.lines if one.get_label() == label]  # type: ignore[attr-defined]
    return found
