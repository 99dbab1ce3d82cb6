"""The figures of a scaling study, in the order of its page, each with a caption that says what it does not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.report import figures
from gpt1_ds.report.plots import Drawing, NoDataError, Sizes
from gpt1_ds.report.scaling_fit_figures import bootstrap, residuals
from gpt1_ds.report.scaling_loss_figures import compute, fit_and_points, isoflop
from gpt1_ds.report.scaling_results import Study
from gpt1_ds.report.scaling_run_figures import downstream, training_curves
from gpt1_ds.report.scaling_sweep_figures import depth, learning_rates, repetition

FIGURES: Mapping[str, tuple[str, Callable[[Study, Sizes], Drawing]]] = {
    "compute": ("Loss against compute", compute),
    "isoflop": ("IsoFLOP curves", isoflop),
    "fit": ("The fit and its points", fit_and_points),
    "residuals": ("Residuals", residuals),
    "bootstrap": ("Bootstrap", bootstrap),
    "depth": ("Loss against depth", depth),
    "repetition": ("Epochs against excess loss", repetition),
    "learning_rate": ("Learning-rate sensitivity", learning_rates),
    "training": ("Training curves", training_curves),
    "downstream": ("Downstream scores", downstream),
}


@dataclass(frozen=True)
class Figure:
    """One figure of the page; `name` is its file's."""

    name: str
    title: str
    svg: str
    caption: str
    note: str  # N's convention, the schedule, how many cells, and which are not shown


def draw(study: Study, folder: Path) -> tuple[list[Figure], dict[str, str]]:
    """The figures that the study has data for, written into `folder`, and of each other one its title and what is
    missing. Old figures that the study has no data for are removed: they would mislead.

    Raises UserError where matplotlib is not installed.
    """
    figures.set_up("scaling")
    folder.mkdir(exist_ok=True)
    sizes = Sizes(study)
    drawn: list[Figure] = []
    missing: dict[str, str] = {}
    for name, (title, make) in FIGURES.items():
        try:
            drawing = make(study, sizes)
        except NoDataError as reason:
            missing[title] = str(reason)
            for suffix in (".png", ".svg"):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
        else:
            svg = figures.save(drawing.figure, folder / name)
            drawn.append(Figure(name, title, svg, drawing.text, _note(study, drawing)))
    return drawn, missing


def _note(study: Study, drawing: Drawing) -> str:
    shown = {cell.cell for cell in drawing.cells}
    others = [cell for cell in study.cells if cell.cell not in shown]
    ended = Counter(cell.outcome for cell in others if not cell.done)
    finished = Counter(cell.arm for cell in others if cell.done)
    left = [f"{number} {outcome}" for outcome, number in ended.items()]
    if finished:
        arms = ", ".join(f"{number} of {arm}" for arm, number in finished.items() if arm)
        left.append(f"{finished.total()} that are done" + (f" ({arms})" if arms else ""))
    text = f"N: {study.convention}. Schedule: {study.schedule}. {len(shown)} cell{'s' if len(shown) != 1 else ''}"
    return text + (f"; not shown: {', '.join(left)}." if left else ", all there are.")
