"""`scaling report`: one self-contained page about a scaling study, and its figures as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import figures, scaling_tables
from gpt1_ds.report.scaling_axes import Drawing, NoDataError, SizeColours
from gpt1_ds.report.scaling_cell_figures import depth, downstream, learning_rates, repetition, training_curves
from gpt1_ds.report.scaling_law_figures import bootstrap, compute, fit_and_points, isoflop_figure, residuals
from gpt1_ds.report.scaling_results import ScalingResults, read_scaling_results
from gpt1_ds.report.template import render

FIGURES: Mapping[str, tuple[str, Callable[[ScalingResults, SizeColours], Drawing]]] = {
    "compute": ("Loss against compute", compute),
    "isoflop": ("IsoFLOP curves", isoflop_figure),
    "fit": ("The fit and its points", fit_and_points),
    "residuals": ("Residuals", residuals),
    "bootstrap": ("Bootstrap", bootstrap),
    "depth": ("Loss against depth", depth),
    "repetition": ("Epochs against excess loss", repetition),
    "learning_rate": ("Learning-rate sensitivity", learning_rates),
    "training": ("Training curves", training_curves),
    "downstream": ("Downstream scores", downstream),
}


def write_scaling_report(folder: Path) -> Path:
    """Writes `report.html` and figures/*.png, *.svg into a study's folder, from the files there; the page's path.

    Needs results.csv; what fit.json, predictions.csv, downstream.csv and run folders would add is named as not done.
    Raises DataError where results.csv cannot be used, UserError where matplotlib is not installed.
    """
    study = read_scaling_results(folder)
    drawn, missing = _draw(study, folder / "figures")
    page = render(
        "scaling.html",
        study=study,
        tables=scaling_tables,
        figures=drawn,
        missing=missing,
        not_done=_not_done(study),
    )
    write_atomic(folder / "report.html", page)
    return folder / "report.html"


def _draw(study: ScalingResults, folder: Path) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Returns the figures that the study has data for, written into `folder`, and of each other one its title and what
    is missing. Old figures that the study has no data for are removed: they would mislead.
    """
    figures.set_up("scaling")
    folder.mkdir(exist_ok=True)
    sizes = SizeColours(study)
    drawn: list[dict[str, str]] = []
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
            note = _note(study, drawing)
            drawn.append({"name": name, "title": title, "caption": drawing.text, "note": note, "svg": svg})
    return drawn, missing


def _note(study: ScalingResults, drawing: Drawing) -> str:
    """Returns N's convention, the schedule, how many cells a figure shows, and which it does not."""
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


def _not_done(study: ScalingResults) -> list[str]:
    """Returns the steps of the study that have not been taken, apart from single cells."""
    steps = []
    if not study.fit:
        steps.append("No law has been fitted (no fit.json): `gpt1-ds scaling fit STUDY`.")
    elif not study.predictions:
        steps.append("The fit left no predictions.csv, so cells are not compared with it: `gpt1-ds scaling fit STUDY`.")
    if not any(cell.held_out for cell in study.cells):
        steps.append("No cell is held out, so nothing here tests a prediction.")
    elif not any(cell.held_out and cell.done for cell in study.cells):
        steps.append("No held-out cell is done yet, so nothing here tests a prediction.")
    runs = {(cell.n, cell.d, cell.u, cell.seed) for cell in study.done}
    if len({(n, d, u) for n, d, u, _ in runs}) == len(runs):
        steps.append("No cell was run with several seeds, so what chance alone does is not known.")
    return steps
