"""A study's folder for people: results.csv, table.md, study.html and figures/, written anew after every cell."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import figures
from gpt1_ds.report.study_figures import CAPTIONS, layer_transfer, rows
from gpt1_ds.report.study_results import read_study, write_csv
from gpt1_ds.report.study_table import LONG_HEAD, as_markdown, make_table, progress
from gpt1_ds.report.template import render

RELOAD_SECONDS = 60  # of the page while cells are left


def write_study(folder: Path) -> None:
    """Raises UserError where matplotlib or jinja2 is missing; results.csv and table.md are written before."""
    results = read_study(folder)
    write_csv(results, folder / "results.csv")
    write_atomic(folder / "table.md", as_markdown(results))
    drawn = {"rows": rows(results), "layer_transfer": layer_transfer(results)}
    (folder / "figures").mkdir(exist_ok=True)
    svg = {name: figures.save(one, folder / "figures" / name) for name, one in drawn.items() if one is not None}
    shown = {"results": results, "progress": progress(results), "table": make_table(results), "long_head": LONG_HEAD}
    reload = RELOAD_SECONDS if results.done < len(results.cells) else 0
    page = render("study.html", "report", svg=svg, captions=CAPTIONS, reload=reload, **shown)
    write_atomic(folder / "study.html", page)
