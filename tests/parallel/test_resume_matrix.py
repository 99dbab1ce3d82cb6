"""Promise 2: any checkpoint resumes on any layout; masters and moments to the bit, the next losses the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tools.layouts import ONE, Layout, trace
from tools.resume_matrix import BF16_LAYOUTS, LAYOUTS, relative, resume_on, save_on

pytestmark = pytest.mark.slow

SAVED, MORE = 6, 3  # of the ten and five of tools/resume_matrix.py: moments and masks are there from the first step on
ORIGINS = {"fp32": LAYOUTS, "bf16": BF16_LAYOUTS}
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}


@pytest.fixture(scope="module")
def uninterrupted(tiny_data: Path) -> list[float]:
    return trace(ONE, tiny_data, SAVED + MORE).losses[SAVED:]


@pytest.fixture(scope="module")
def saved(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A checkpoint per layout, in a precision."""

    @cache
    def save(precision: str) -> list[Path]:
        folder = tmp_path_factory.mktemp(precision)
        return [save_on(layout, tiny_data, folder, precision, SAVED) for layout in ORIGINS[precision]]

    return save


@pytest.mark.parametrize(
    ("precision", "layout"),
    [("fp32", layout) for layout in LAYOUTS] + [("bf16", layout) for layout in BF16_LAYOUTS[1::3]],
    ids=lambda value: value if isinstance(value, str) else f"{value.ranks}-{value.name.replace(' ', '-')}",
)
def test_resumes_from_every_layout(  # type: ignore[no-untyped-def]
    precision: str, layout: Layout, saved, uninterrupted: list[float], tiny_data: Path
) -> None:
    results = resume_on(layout, tiny_data, saved(precision), precision, SAVED, MORE)
    for origin, (losses, wrong) in zip(ORIGINS[precision], results, strict=True):
        assert not wrong, f"saved on {origin.name}"
        assert relative(losses, uninterrupted) <= TOLERANCE[precision], f"saved on {origin.name}"
