"""A study's folder for people, written anew after every cell: results.csv, comparisons.csv, table.md, study.html and
figures/.
"""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import figures
from gpt1_ds.report.study_comparisons import HEAD, StudyAnswers, as_rows, comparisons, intervals, write_comparisons
from gpt1_ds.report.study_figures import CAPTIONS, forest, layer_transfer, learning, rows
from gpt1_ds.report.study_results import read_study_results, write_csv
from gpt1_ds.report.study_table import LONG_HEAD, as_markdown, make_table, progress
from gpt1_ds.report.template import render

RELOAD_SECONDS = 60  # of the page while cells are left


def is_study(folder: Path) -> bool:
    """Whether a fine-tuning study ran there."""
    file = folder / "study.json"
    return file.is_file() and '"variants"' in file.read_text()


def write_study(folder: Path) -> None:
    """Raises UserError where matplotlib or jinja2 is missing; results.csv and table.md are written before."""
    results = read_study_results(folder)
    write_csv(results, folder / "results.csv")
    answers = StudyAnswers(folder, results)
    ends, compared = intervals(answers), list(comparisons(answers))
    if results.compare:
        write_comparisons(compared, folder / "comparisons.csv")
    table, differences = make_table(results, ends), [HEAD, *as_rows(compared)] if compared else []
    write_atomic(folder / "table.md", as_markdown(results, table, differences))
    drawn = {
        "rows": rows(results, ends),
        "learning": learning(results, ends),
        "compared": forest(compared),
        "layer_transfer": layer_transfer(results),
    }
    (folder / "figures").mkdir(exist_ok=True)
    svg = {name: figures.save(one, folder / "figures" / name) for name, one in drawn.items() if one is not None}
    shown = {"results": results, "progress": progress(results), "table": table, "long_head": LONG_HEAD}
    reload = RELOAD_SECONDS if results.done < len(results.cells) else 0
    page = render("study.html", "report", svg=svg, captions=CAPTIONS, reload=reload, differences=differences, **shown)
    write_atomic(folder / "study.html", page)
