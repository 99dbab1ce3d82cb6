"""What `train.profile` found, for people: profile/summary.html, and a section of a run's report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import byte_size
from gpt1_ds.config import Config
from gpt1_ds.report import figures, profile_figures
from gpt1_ds.report.template import render
from gpt1_ds.tracking.record import read_records

WAITING = ("send", "receive", "agreement")  # phases in which a rank does little but wait for others
BESIDES = ("evaluation", "save")  # happen in some steps only
OPERATORS_SHOWN = 20


Rows = list[dict[str, str]]  # of a table: column -> text


def write_profile(folder: Path) -> Path:
    """Write the page of a run's profile; its path. Raises DataError for a run without one, and UserError where
    matplotlib or jinja2 is missing.
    """
    view = read_view(folder)
    if view is None:
        raise DataError(f"{folder}: no profile; run it with train.profile=START:STOP")
    out = RunDir(folder).profile / "summary.html"
    write_atomic(out, render("profile.html", "report", title=folder.name, profile=view))
    return out


def update_profile(config: Config) -> None:
    """Write the page of a run that has just ended, where there is a new profile. Rank 0 alone does it, and a problem is
    told, not raised: the run itself went well.
    """
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    summary, page = run_dir.profile / "summary.json", run_dir.profile / "summary.html"
    if config.train.profile is None or os.environ.get("RANK", "0") != "0" or not summary.exists():
        return
    if page.exists() and page.stat().st_mtime >= summary.stat().st_mtime:
        return  # by an earlier segment of the run
    try:
        say(f"{write_profile(run_dir.path)}: where the time of a step goes")
    except (UserError, OSError) as problem:
        say(f"{page}: not written: {problem}")


def read_view(folder: Path) -> dict[str, Any] | None:
    """What profile_body.html shows; None for a run that was not profiled. Raises DataError for another file."""
    run_dir = RunDir(folder)
    path = run_dir.profile / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text())
        on_device = summary["device"] != "cpu"
        return {
            "facts": _facts(summary, _step_seconds(run_dir, summary["steps"])),
            "figures": [(caption, figures.as_svg(figure)) for caption, figure in profile_figures.draw(summary)],
            "phases": _phases(summary, on_device),
            "operators": _operators(summary, on_device),
            "ranks": _ranks(summary),
            "traces": sorted((path.name for path in run_dir.profile.glob("*.trace.json.gz")), key=_number),
        }
    except (ValueError, KeyError, TypeError, IndexError):
        raise DataError(f"{path}: not a profile's summary; profile the run again, or remove the file") from None


def _number(name: str) -> int:
    digits = name.removeprefix("rank-").partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _step_seconds(run_dir: RunDir, profiled: Sequence[int]) -> float | None:
    """Median of the logged steps around the window: what a step takes when nobody looks."""
    lines = [line for line in read_records(run_dir.metrics) if line["kind"] == "train"]
    others = [line["step_seconds"] for line in lines if line["step"] not in profiled and line["step"] > 1]
    return median(others) if others else None


def _facts(summary: dict[str, Any], usual: float | None) -> list[tuple[str, str]]:
    layout, steps, threads, bubble = (summary[key] for key in ("layout", "steps", "threads", "bubble"))
    seconds, micro, ranks = summary["step_seconds"], summary["micro_batches"], len(summary["ranks"])
    besides = sum(summary["phases"][name]["seconds"] for name in BESIDES if name in summary["phases"])
    added = f", {_ms(seconds)} ms with evaluation and saves" if besides else ""
    names = ", ".join(f"{name} {size}" for name, size in layout.items() if size > 1)
    cpu = f"cpu, {threads} thread{'s' * (threads > 1)} a rank"
    rows = [
        ("steps", f"{steps[0]} to {steps[-1]}" if steps[1:] else str(steps[0])),
        ("a step", f"{_ms(seconds - besides)} ms, mean of steps and ranks{added}"),
        ("without the profiler", "" if usual is None else f"{_ms(usual)} ms, median of the other logged steps"),
        ("ranks", f"{ranks} ({names})" if ranks > 1 else "1"),
        ("micro-batches per step", f"{micro} on every rank"),
        ("device", cpu if summary["device"] == "cpu" else summary["device"]),
        ("matrix products", _products(summary)),
    ]
    if bubble is not None:
        text = f"{bubble['measured']:.1%} of the pipeline's time without work; {bubble['ideal']:.1%} is the least that "
        rows.append(("bubble", f"{text}{layout['pipeline']} equal stages and {micro} micro-batches allow"))
    return [(what, value) for what, value in rows if value]


def _products(summary: dict[str, Any]) -> str:
    """How much of the step is matrix products, and how fast they are; empty where there are none."""
    steps = sum(len(rank["steps"]) for rank in summary["ranks"])
    seconds, flops = (sum(rank["products"][key] for rank in summary["ranks"]) for key in ("seconds", "flops"))
    if not seconds:
        return ""
    fraction = seconds / steps / summary["step_seconds"]
    return f"{fraction:.1%} of the step, {_rate(flops, seconds)} GFLOP/s a rank meanwhile"


def _phases(summary: dict[str, Any], on_device: bool) -> Rows:
    between = summary["step_seconds"] - sum(phase["seconds"] for phase in summary["phases"].values())
    rest = {"seconds": between, "share": between / summary["step_seconds"]}
    rows = []
    for name, phase in {**summary["phases"], "(the profiler)": rest}.items():
        row = {"phase": name, "ms per step": _ms(phase["seconds"]), "share": f"{phase['share']:.1%}"}
        if len(summary["ranks"]) > 1:
            row |= {"least of a rank": _ms(phase.get("least")), "most of a rank": _ms(phase.get("most"))}
        rows.append(row | ({"on the device": _ms(phase.get("device_seconds"))} if on_device else {}))
    return rows


def _operators(summary: dict[str, Any], on_device: bool) -> Rows:
    rows = []
    for one in summary["operators"][:OPERATORS_SHOWN]:
        seconds = one["device_seconds"] if on_device else one["seconds"]
        rows.append(
            {
                **{"operator": one["name"], "shapes": one["shapes"], "calls per step": f"{one['calls']:.4g}"},
                **{"ms per step": _ms(one["seconds"]), **({"on the device": _ms(seconds)} if on_device else {})},
                "share": f"{seconds / summary['step_seconds']:.1%}",
                "GFLOP/s": _rate(one["flops"], seconds) if one["flops"] and seconds else "",
            }
        )
    return rows


def _ranks(summary: dict[str, Any]) -> Rows:
    rows, bubble = [], summary["bubble"]
    for number, rank in enumerate(summary["ranks"]):
        steps = rank["steps"]
        waiting = fmean(sum(step["phases"].get(name, 0.0) for name in WAITING) for step in steps)
        rows.append(
            {
                **{"rank": str(rank["rank"]), "stage": str(rank["stage"]), "host": rank["host"]},
                "ms per step": _ms(fmean(step["seconds"] for step in steps)),
                "work": _ms(fmean(step["work"][2] if step["work"] else 0.0 for step in steps)),
                "send, receive, agree": _ms(waiting),
                "bubble": f"{bubble['ranks'][number]:.1%}" if bubble else "",
                "most memory": byte_size(max(held for _, held in rank["memory"])),
            }
        )
    return rows


def _rate(flops: float, seconds: float) -> str:
    giga = flops / seconds / 1e9
    return f"{giga:,.0f}" if giga >= 100 else f"{giga:.1f}"


def _ms(seconds: float | None) -> str:
    """Milliseconds in three digits or more."""
    if seconds is None:
        return ""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 1000 else 0}f}"
