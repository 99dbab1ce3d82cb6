"""`report`: one self-contained page about one or several runs, and its figures as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.files import write_atomic
from gpt1_ds.report import curves, facts, figures, minimal_pairs, run_figures
from gpt1_ds.report.profile_page import read_view
from gpt1_ds.report.runs import read_all
from gpt1_ds.report.template import render

HERE = Path(__file__).parent
SCRIPTS = ("scale.js", "chart.js", "crosshair.js", "page.js")  # in this order
EVENTS = 2000  # rows of a run's table of events: the latest ones


def write_report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Writes `report.html` (and figures/*.png, *.svg) into `out`, else the first run's folder. Returns its path."""
    stories = read_all(folders)
    out = out or folders[0]
    (out / "figures").mkdir(parents=True, exist_ok=True)
    data = curves.data(stories)
    page = render(
        "page.html",
        facts=facts,
        curves=curves,
        minimal_pairs=minimal_pairs,
        title=", ".join(story.name for story in stories),
        stories=stories,
        summaries=[facts.summary(story) for story in stories],
        settings=facts.settings(stories),
        environments=[facts.environment(story) for story in stories],
        evaluations=facts.evaluations(stories),
        data=embedded(data),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        scripts="\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS),
        static=[figures.save(figure, out / "figures" / name) for name, figure in run_figures.draw(data).items()],
        events=[(story, story.events[-EVENTS:]) for story in stories],
        profiles=[(story.name, read_view(folder)) for story, folder in zip(stories, folders, strict=True)],
    )
    write_atomic(out / "report.html", page)
    return out / "report.html"


def embedded(value: Any) -> str:
    """Returns JSON that may stand inside a <script> element whatever its strings hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
