"""Synthetic points of a known law, and CSVs of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.scaling.tables import write_table

TRUTH = {"alpha": 0.34, "beta": 0.28, "E": 1.7, "A": 400.0, "B": 410.0}


def law(n: Any, d: Any, alpha: float, beta: float, E: float, A: float, B: float) -> Any:
    return E + A / np.power(n, alpha) + B / np.power(d, beta)


def grid(sizes: int = 5, budgets: int = 5) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """N from 10M to 1B by D from 1B to 100B, each (sizes * budgets,)."""
    n, d = np.meshgrid(np.geomspace(1e7, 1e9, sizes), np.geomspace(1e9, 1e11, budgets))
    return n.ravel(), d.ravel()


def random_law(rng: np.random.Generator) -> dict[str, float]:
    """A ground truth whose two terms are 0.3 to 1.2 nats in the middle of `grid`."""
    alpha, beta = rng.uniform(0.2, 0.6, 2)
    terms = rng.uniform(0.3, 1.2, 2)
    scales = {"A": terms[0] * 1e8**alpha, "B": terms[1] * 1e10**beta}
    return {"alpha": alpha, "beta": beta, "E": rng.uniform(1.2, 2.5), **scales}


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    write_table(file, rows[0], rows)
    return file


def rows_of(n: Iterable[float], d: Iterable[float], loss: Iterable[float], **more: Any) -> list[dict[str, Any]]:
    """Rows n, d, loss; what is in `more` is the same in all of them."""
    return [{"n": a, "d": b, "loss": c, **more} for a, b, c in zip(n, d, loss, strict=True)]


def truth_csv(folder: Path, sizes: int = 5, budgets: int = 5, noise: float = 0.002) -> Path:
    """A CSV of TRUTH with noise, the largest cell held out."""
    n, d = grid(sizes, budgets)
    loss = law(n, d, **TRUTH) * np.exp(noise * np.random.default_rng(1).standard_normal(len(n)))
    rows = rows_of(n, d, loss, held_out=0)
    rows[-1]["held_out"] = 1
    return write_csv(folder / "points.csv", rows)
