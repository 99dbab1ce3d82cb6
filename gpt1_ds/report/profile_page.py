"""What `train.profile` found, for people: profile/summary.html, and a section of a run's report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpt1_ds import __version__
from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.common.units import byte_size
from gpt1_ds.config import Config
from gpt1_ds.report import figures, profile_figures

WAITING = ("send", "receive", "agreement")  # phases in which a rank does little but wait for others
BESIDES = ("evaluation", "save")  # happen in some steps only
OPERATORS_SHOWN = 20


@dataclass(frozen=True)
class Table:
    """Text by row and column; the first `words` columns are no numbers."""

    head: list[str]
    rows: list[list[str]]
    words: int


@dataclass(frozen=True)
class ProfileView:
    """What the page shows."""

    facts: list[tuple[str, str]]
    figures: list[tuple[str, str]]  # (caption, svg)
    phases: Table
    operators: Table
    ranks: Table
    traces: list[str]


def write_profile(folder: Path) -> Path:
    """Write the page of a run's profile; its path. Raises DataError for a run without one, and UserError where
    matplotlib or jinja2 is missing.
    """
    try:
        from jinja2 import Environment, FileSystemLoader
    except ImportError:
        raise UserError("jinja2 is not installed: pip install 'gpt1-ds[report]'") from None
    view = read_view(folder)
    if view is None:
        raise DataError(f"{folder}: no profile; run it with train.profile=START:STOP")
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("profile.html").render(title=folder.name, profile=view, version=__version__)
    out = RunDir(folder).profile / "summary.html"
    write_atomic(out, page)
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


def read_view(folder: Path) -> ProfileView | None:
    """None for a run that was not profiled; DataError for a summary that is none."""
    run_dir = RunDir(folder)
    path = run_dir.profile / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text())
        drawn = profile_figures.draw(summary)
        device = summary["device"] != "cpu"
        return ProfileView(
            facts=_facts(summary, _step_seconds(run_dir, summary["steps"])),
            figures=[(caption, figures.as_svg(figure)) for caption, figure in drawn],
            phases=_phases(summary, device),
            operators=_operators(summary, device),
            ranks=_ranks(summary),
            traces=sorted((path.name for path in run_dir.profile.glob("*.trace.json.gz")), key=_number),
        )
    except (ValueError, KeyError, TypeError, IndexError):
        raise DataError(f"{path}: not a profile's summary; profile the run again, or remove the file") from None


def _number(name: str) -> int:
    digits = name.removeprefix("rank-").partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _step_seconds(run_dir: RunDir, profiled: Sequence[int]) -> float | None:
    """Median of the logged steps around the window: what a step takes when nobody looks."""
    lines = [line for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"]
    others = [line["step_seconds"] for line in lines if line["step"] not in profiled and line["step"] > 1]
    return median(others) if others else None


def _facts(summary: dict[str, Any], usual: float | None) -> list[tuple[str, str]]:
    layout, steps = summary["layout"], summary["steps"]
    seconds = summary["step_seconds"]
    ranks = len(summary["ranks"])
    besides = sum(summary["phases"][name]["seconds"] for name in BESIDES if name in summary["phases"])
    added = f", {_ms(seconds)} ms with evaluation and saves" if besides else ""
    rows = [
        ("steps", f"{steps[0]} to {steps[-1]}" if steps[1:] else str(steps[0])),
        ("a step", f"{_ms(seconds - besides)} ms, mean of steps and ranks{added}"),
    ]
    if usual is not None:
        rows.append(("without the profiler", f"{_ms(usual)} ms, median of the other logged steps"))
    names = (f"{name} {size}" for name, size in layout.items() if size > 1)
    rows.append(("ranks", f"{ranks} ({', '.join(names)})" if ranks > 1 else "1"))
    micro = summary["micro_batches"]
    rows.append(("micro-batches per step", f"{micro} on every rank"))
    threads = summary["threads"]
    rows.append(
        (
            "device",
            f"cpu, {threads} thread{'s' * (threads > 1)} a rank" if summary["device"] == "cpu" else summary["device"],
        )
    )
    rows += _products(summary)
    bubble = summary["bubble"]
    if bubble is not None:
        rows.append(
            (
                "bubble",
                f"{bubble['measured']:.1%} of the pipeline's time without work; {bubble['ideal']:.1%} is the least "
                f"that {layout['pipeline']} equal stages and {micro} micro-batches allow",
            )
        )
    return rows


def _products(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """How much of the step is matrix products, and how fast they are."""
    steps = sum(len(rank["steps"]) for rank in summary["ranks"])
    seconds, flops = (sum(rank["products"][key] for rank in summary["ranks"]) for key in ("seconds", "flops"))
    if not seconds:
        return []
    share = seconds / steps / summary["step_seconds"]
    return [("matrix products", f"{share:.1%} of the step, {_rate(flops, seconds)} GFLOP/s a rank meanwhile")]


def _phases(summary: dict[str, Any], device: bool) -> Table:
    rows, several = [], len(summary["ranks"]) > 1
    for name, phase in summary["phases"].items():
        apart = [_ms(phase["least"]), _ms(phase["most"])] * several
        on_device = [_ms(phase["device_seconds"])] * device
        rows.append([name, _ms(phase["seconds"]), f"{phase['share']:.1%}", *apart, *on_device])
    between = summary["step_seconds"] - sum(phase["seconds"] for phase in summary["phases"].values())
    rows.append(
        ["(the profiler)", _ms(between), f"{between / summary['step_seconds']:.1%}", *[""] * (2 * several + device)]
    )
    apart = ["least of a rank", "most of a rank"] * several
    return Table(["phase", "ms per step", "share", *apart, *["on the device"] * device], rows, words=1)


def _operators(summary: dict[str, Any], device: bool) -> Table:
    rows = []
    for one in summary["operators"][:OPERATORS_SHOWN]:
        seconds = one["device_seconds"] if device else one["seconds"]
        rate = _rate(one["flops"], seconds) if one["flops"] and seconds else ""
        share = f"{seconds / summary['step_seconds']:.1%}"
        row = [one["name"], one["shapes"], f"{one['calls']:.4g}", _ms(one["seconds"])]
        rows.append([*row, *[_ms(seconds)] * device, share, rate])
    head = ["operator", "shapes", "calls per step", "ms per step", *["on the device"] * device, "share", "GFLOP/s"]
    return Table(head, rows, words=2)


def _ranks(summary: dict[str, Any]) -> Table:
    rows = []
    bubble = summary["bubble"]
    for number, rank in enumerate(summary["ranks"]):
        steps = rank["steps"]
        seconds = sum(step["seconds"] for step in steps) / len(steps)
        work = sum(step["work"][2] for step in steps if step["work"]) / len(steps)
        waiting = sum(step["phases"].get(name, 0.0) for step in steps for name in WAITING) / len(steps)
        idle = f"{bubble['ranks'][number]:.1%}" if bubble else ""
        memory = byte_size(max(held for _, held in rank["memory"]))
        row = [str(rank["rank"]), str(rank["stage"]), rank["host"], _ms(seconds), _ms(work), _ms(waiting), idle, memory]
        rows.append(row)
    head = ["rank", "stage", "host", "ms per step", "work", "send, receive, agree", "bubble", "most memory"]
    return Table(head, rows, words=3)


def _rate(flops: float, seconds: float) -> str:
    giga = flops / seconds / 1e9
    return f"{giga:,.0f}" if giga >= 100 else f"{giga:.1f}"


def _ms(seconds: float) -> str:
    """Milliseconds in three digits or more."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 1000 else 0}f}"
