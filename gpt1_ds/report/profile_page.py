"""What `train.profile` found, for people: profile/summary.html, a section of a run's report, and their figures: one
step as every rank spent it, all steps, all ranks, and memory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import byte_size
from gpt1_ds.config import Config
from gpt1_ds.report import figures
from gpt1_ds.report.template import render
from gpt1_ds.tracking.record import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes


COLOURS = {
    **{"data": "#b8860b", "forward": "#4c78a8", "loss": "#9ecae9", "backward": "#f58518", "send": "#c9c9c9"},
    **{"receive": "#e6e6e6", "reduce": "#b279a2", "optimizer": "#54a24b", "agreement": "#9d9d9d", "log": "#6b6b6b"},
    **{"evaluation": "#72b7b2", "save": "#e45756"},
}
OTHER = "#222222"
RANKS_SHOWN = 16
CAPTIONS = {
    "timeline": "One step (step {step}) as {ranks} spent it{waits}.",
    "steps": "Time by phase of each profiled step, mean of all ranks.",
    "ranks": "Time by phase of {ranks}, mean of all steps. A rank with more work than others makes them wait.",
    "memory": "Memory in use as each phase begins ({what}), {ranks}. Dotted: a step begins.",
}
CPU_MEMORY = "resident, of the whole process: what the profiler keeps of the operators counts, too, and grows"

Rank = dict[str, Any]


def draw(summary: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns (caption, matplotlib figure) of each. Raises UserError where matplotlib is not installed."""
    ranks = shown(summary["ranks"])
    few = len(ranks) < len(summary["ranks"])
    words = {
        "step": ranks[0]["timeline"]["step"],
        "ranks": f"{len(ranks)} of {len(summary['ranks'])} ranks" if few else "every rank" if ranks[1:] else "the rank",
        "waits": "; light grey is waiting for another one" if ranks[1:] else "",
        "what": CPU_MEMORY if summary["device"] == "cpu" else "tensors on the device",
    }
    drawn = {"timeline": _timeline(summary, ranks), "steps": _steps(summary)}
    if len(ranks) > 1:
        drawn["ranks"] = _all_ranks(summary, ranks)
    drawn["memory"] = _memory(ranks)
    return [(CAPTIONS[name].format(**words), figure) for name, figure in drawn.items()]


def shown(ranks: Sequence[Rank]) -> list[Rank]:
    """Returns all ranks, or of very many some at equal distances."""
    count = min(len(ranks), RANKS_SHOWN)
    return [ranks[number * len(ranks) // count] for number in range(count)]


def name_of(rank: Rank, summary: dict[str, Any]) -> str:
    stage = f", stage {rank['stage']}" if summary["layout"]["pipeline"] > 1 else ""
    return f"rank {rank['rank']}{stage}"


def _timeline(summary: dict[str, Any], ranks: Sequence[Rank]) -> Any:
    zero = min(rank["timeline"]["spans"][0][1] for rank in ranks)
    rows = [[(name, begin - zero, end - begin) for name, begin, end in rank["timeline"]["spans"]] for rank in ranks]
    return _bars(summary, ranks, rows, "milliseconds since the step began")


def _all_ranks(summary: dict[str, Any], ranks: Sequence[Rank]) -> Any:
    rows = []
    for rank in ranks:
        means = [fmean(step["phases"].get(name, 0.0) for step in rank["steps"]) for name in summary["phases"]]
        rows.append(list(zip(summary["phases"], accumulate(means, initial=0.0), means, strict=False)))
    return _bars(summary, ranks, rows, "milliseconds per step")


def _bars(
    summary: dict[str, Any], ranks: Sequence[Rank], rows: Sequence[Sequence[tuple[str, float, float]]], label: str
) -> Any:
    """Returns a row per rank: (phase, where its bar begins, how long it is) each, in seconds."""
    figure, axes = _canvas(1.0 + 0.34 * len(ranks))
    for row, bars in enumerate(rows):
        for name, begin, seconds in bars:
            axes.barh(row, 1e3 * seconds, left=1e3 * begin, color=COLOURS.get(name, OTHER), height=0.8, lw=0)
    axes.set_yticks(range(len(ranks)), [name_of(rank, summary) for rank in ranks])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    seen = {name for bars in rows for name, _, _ in bars}
    _legend(figure, [name for name in summary["phases"] if name in seen])
    return figure


def _steps(summary: dict[str, Any]) -> Any:
    figure, axes = _canvas(2.6)
    ranks, steps = summary["ranks"], summary["steps"]
    bottom = np.zeros(len(steps))
    for name in summary["phases"]:
        heights = np.mean([[1e3 * step["phases"].get(name, 0.0) for step in rank["steps"]] for rank in ranks], axis=0)
        axes.bar(range(len(steps)), heights, bottom=bottom, color=COLOURS.get(name, OTHER), width=0.8, lw=0)
        bottom += heights
    labelled = range(0, len(steps), max(1, len(steps) // 12))
    axes.set_xticks([*labelled], [str(steps[number]) for number in labelled])
    axes.set_xlim(-0.7, max(len(steps), 8) - 0.3)  # a bar is no wall
    axes.set_xlabel("step")
    axes.set_ylabel("milliseconds")
    _legend(figure, list(summary["phases"]))
    return figure


def _memory(ranks: Sequence[Rank]) -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, axes = _canvas(2.6)
    zero = min(rank["memory"][0][0] for rank in ranks)
    for number, rank in enumerate(ranks):
        moments = [moment - zero for moment, _ in rank["memory"]]
        held = [held for _, held in rank["memory"]]
        axes.step(moments, held, where="post", lw=1, color=f"C{number % 10}", label=f"rank {rank['rank']}")
    for step in ranks[0]["steps"]:
        axes.axvline(step["begin"] - zero, color="0.6", linestyle=":", lw=0.8, zorder=0)
    axes.set_xlabel("seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_size(value)))
    axes.grid(axis="y", alpha=0.25)
    if len(ranks) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=4)
    return figure


def _canvas(height: float) -> tuple[Any, Axes]:
    figure = figures.new_figure(9.0, height)
    return figure, figure.subplots()


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS.get(name, OTHER), label=name, lw=0) for name in names]
    style = {"frameon": False, "fontsize": 8, "handlelength": 0.9, "columnspacing": 1.0}
    figure.legend(handles=patches, loc="outside upper left", ncols=12, **style)


WAITING = ("send", "receive", "agreement")  # phases in which a rank does little but wait for others
BESIDES = ("evaluation", "save")  # happen in some steps only
OPERATORS_SHOWN = 20


Rows = list[dict[str, str]]  # of a table: column -> text


def write_profile(folder: Path) -> Path:
    """Writes the page of a run's profile, and returns its path. Raises DataError for a run without one, and UserError
    where matplotlib is missing.
    """
    view = read_view(folder)
    if view is None:
        raise DataError(f"{folder}: no profile; run it with train.profile=START:STOP")
    out = RunDir(folder).profile / "summary.html"
    write_atomic(out, render("profile.html", title=folder.name, profile=view))
    return out


def update_profile(config: Config) -> None:
    """Writes the page of a run that has just ended, where there is a new profile. Rank 0 alone does it. A problem is
    printed and not raised: the run itself went well.
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
    """Returns what profile_body.html shows; None for a run that was not profiled. Raises DataError for another file."""
    run_dir = RunDir(folder)
    path = run_dir.profile / "summary.json"
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        on_device = summary["device"] != "cpu"
        return {
            "facts": _facts(summary, _step_seconds(run_dir, summary["steps"])),
            "figures": [(caption, figures.as_svg(figure)) for caption, figure in draw(summary)],
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
    """Returns the median of the logged steps around the window: what a step takes when nobody looks."""
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
    """Returns how much of the step is matrix products, and how fast they are; empty where there are none."""
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
    """Returns the milliseconds in three digits or more."""
    if seconds is None:
        return ""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.{2 if milliseconds < 10 else 1 if milliseconds < 1000 else 0}f}"
