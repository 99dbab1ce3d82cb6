"""`scaling report`: one self-contained page about a scaling study, and its figures as files."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds import __version__
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import figures, scaling_figures, scaling_tables
from gpt1_ds.report.scaling_study import Study, read


def write_scaling_report(folder: Path) -> Path:
    """Write `report.html` and figures/*.png, *.svg into a study's folder, from the files there; the page's path.

    Needs results.csv; what fit.json, predictions.csv, downstream.csv and run folders would add is named as not done.
    Raises DataError where results.csv cannot be used, UserError where matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError:
        raise UserError("jinja2 is not installed: pip install 'gpt1-ds[scaling]'") from None
    study = read(folder)
    drawn, missing = scaling_figures.draw(study)
    pictures = _save(folder / "figures", drawn)
    head, rows = scaling_tables.cells(study)
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("scaling.html").render(
        study=study,
        overview=scaling_tables.overview(study),
        warnings=scaling_tables.warnings(study),
        parameters=scaling_tables.parameters(study),
        quality=scaling_tables.quality(study),
        held_out=scaling_tables.held_out(study),
        noise=scaling_tables.noise(study),
        figures=list(zip(drawn, pictures, strict=True)),
        missing=missing,
        not_done=_not_done(study),
        head=head,
        cells=rows,
        unfinished=scaling_tables.unfinished(study),
        version=__version__,
    )
    write_atomic(folder / "report.html", page)
    return folder / "report.html"


def _save(folder: Path, drawn: list[scaling_figures.Figure]) -> list[str]:
    """The <svg> element of each. Old figures that this page has no data for are removed: they would mislead."""
    folder.mkdir(exist_ok=True)
    for name in set(scaling_figures.FIGURES) - {one.name for one in drawn}:
        for suffix in (".png", ".svg"):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    return [figures.save(one.figure, folder / one.name) for one in drawn]


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
    seeds = {(cell.n, cell.d, cell.u): set[int | None]() for cell in study.done}
    for cell in study.done:
        seeds[cell.n, cell.d, cell.u].add(cell.seed)
    if all(len(found) < 2 for found in seeds.values()):
        steps.append("No cell was run with several seeds, so what chance alone does is not known.")
    return steps
