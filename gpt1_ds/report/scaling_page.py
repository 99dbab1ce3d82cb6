"""`scaling report`: one self-contained page about a scaling study, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import scaling_figures, scaling_tables
from gpt1_ds.report.scaling_results import Study, read
from gpt1_ds.report.template import render


def write_scaling_report(folder: Path) -> Path:
    """Write `report.html` and figures/*.png, *.svg into a study's folder, from the files there; the page's path.

    Needs results.csv; what fit.json, predictions.csv, downstream.csv and run folders would add is named as not done.
    Raises DataError where results.csv cannot be used, UserError where matplotlib or jinja2 is not installed.
    """
    study = read(folder)
    drawn, missing = scaling_figures.draw(study, folder / "figures")
    told = {"study": study, "tables": scaling_tables, "not_done": _not_done(study)}
    page = render("scaling.html", "scaling", figures=drawn, missing=missing, **told)
    write_atomic(folder / "report.html", page)
    return folder / "report.html"


def _not_done(study: Study) -> list[str]:
    """Steps of the study that have not been taken, apart from single cells."""
    steps = []
    if study.fit is None:
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
