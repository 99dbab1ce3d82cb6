"""The figure of zero-shot probes over the checkpoints of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config.task import SCALES
from gpt1_ds.report import curves, run_figures
from gpt1_ds.report.curves import about_probes, normalised
from gpt1_ds.report.page import write_report
from gpt1_ds.report.runs import read
from tests.unit.report.test_page import run as plain_run

run = plain_run


def entry(name: str, step: int, **metrics: float) -> dict[str, Any]:
    split, counts = "dev", {"chance": 0.5, "examples": 20}
    return {"task": f"zero-shot/{name}", "split": split, "step": step, "metrics": {**counts, **metrics}}


def add(run: Path, *entries: dict[str, Any]) -> None:
    path = run / "eval.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), *entries]))


def test_0_is_chance_and_1_the_best() -> None:
    assert normalised("sst2", {"accuracy": 0.5, "chance": 0.5}) == 0
    assert normalised("sst2", {"accuracy": 0.913, "chance": 0.5}) == 1
    assert normalised("race", {"accuracy": 0.42, "chance": 0.25}) == pytest.approx(0.5)
    assert normalised("cola", {"matthews": 0.227, "accuracy": 0.9, "chance": 0.0}) == pytest.approx(0.5)
    assert normalised("copa", {"accuracy": 0.4, "chance": 0.5}) == pytest.approx(-0.2)


def test_the_scales_of_what_is_drawn_are_said() -> None:
    for name, scale in SCALES.items():
        said = " ".join(about_probes({name: False}))
        assert f"Best is for {name} {scale.best:g} ({scale.source})." in said
        assert not [other for other in SCALES if f"{other} " in said and other != name]
        assert "Dashed" not in said
    said = " ".join(about_probes(dict.fromkeys(SCALES, False)))
    assert said.count("Best is for") == len({scale.source for scale in SCALES.values()})


def test_a_line_per_probe_over_the_steps(run: Path) -> None:
    add(
        run,
        entry("sst2", 100, accuracy=0.6),
        entry("sst2", 10, accuracy=0.5),
        entry("copa", 10, accuracy=0.75),
        entry("copa", 100, accuracy=0.85),
    )
    story = read(run)
    (axes,) = run_figures.draw(curves.data([story]))["zero_shot"].axes
    lines = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert list(lines["sst2"].get_xdata()) == [10, 100]
    assert list(lines["sst2"].get_ydata()) == pytest.approx([0, 0.1 / 0.413], rel=1e-5)
    assert list(lines["copa"].get_ydata()) == [0.5, 0.7]
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize(("steps", "some"), [((20, 40, 60), {"20", "40", "60"}), ((0, 1000, 100_000), {"1K", "100K"})])
def test_steps_are_written_out(run: Path, steps: tuple[int, ...], some: set[str]) -> None:
    """Within a decade matplotlib's own labels are products, such as 2 x 10^1."""
    add(run, *(entry("sst2", step, accuracy=0.6) for step in steps))
    figure = run_figures.draw(curves.data([read(run)]))["zero_shot"]
    figure.canvas.draw()
    (axes,) = figure.axes
    shown = {text.get_text() for text in axes.xaxis.get_ticklabels(which="both")} - {""}
    assert some <= shown
    assert not [text for text in shown if "^" in text]


def test_a_control_is_dashed_in_the_colour_of_its_probe(run: Path) -> None:
    add(run, entry("copa", 10, accuracy=0.75, control=0.5), entry("copa", 100, accuracy=0.85, control=0.6))
    add(run, entry("sst2", 10, accuracy=0.5), entry("sst2", 100, accuracy=0.6, control=0.5))
    (axes,) = run_figures.draw(curves.data([read(run)]))["zero_shot"].axes
    lines = {line.get_label(): line for line in axes.lines}
    score, control = lines["copa"], lines["copa, control"]
    assert list(control.get_ydata()) == pytest.approx([0, 0.2])
    assert control.get_color() == score.get_color()
    assert (control.get_linestyle(), score.get_linestyle()) == ("--", "-")
    assert (control.get_marker(), score.get_marker()) == ("None", "o")
    assert list(lines["sst2, control"].get_xdata()) == [100], "an older version left none"
    (chart,) = [one for one in curves.data([read(run)])["charts"] if one["name"] == "zero_shot"]
    assert "Dashed" in chart["caption"]


def test_it_is_on_the_page_where_there_are_several_checkpoints(run: Path) -> None:
    add(run, entry("sst2", 10, accuracy=0.625))
    page = write_report([run]).read_text()
    assert page.count("<svg") == 4, "one checkpoint is no evolution"
    assert "accuracy 0.625 of 20 questions, chance 0.500, after 10 steps" in page
    add(run, entry("sst2", 100, accuracy=0.75, low=0.7, high=0.8, control=0.51))
    page = write_report([run, run]).read_text()
    assert page.count("<svg") == 5
    assert "accuracy 0.750 (0.700 to 0.800) of 20 questions, control 0.510, chance 0.500, after 100 steps" in page
    assert "training steps" in page
    assert "odd: sst2" in page, "of several runs, which one"
    assert (run / "figures" / "zero_shot.png").stat().st_size > 5000


def test_the_curve_is_of_one_text(run: Path) -> None:
    first, other = ({"loss": loss, "perplexity": 9.0, "bits_per_byte": None} for loss in (3.0, 1.0))
    one = {"task": "held-out", "split": "validation", "step": 10, "metrics": first, "data": "a"}
    add(run, one, {**one, "data": "b", "metrics": other}, {**one, "step": 20})
    assert read(run).evaluations[1:] == [{"step": 10, **first}, {"step": 20, **first}]


@pytest.mark.parametrize("task", ["held-out", "zero-shot/sst2"])
def test_results_that_lack_a_part_are_named(task: str, run: Path) -> None:
    """Another program may have written them, or a hand."""
    shown = {"loss": 3.0, "perplexity": 9.0, "bits_per_byte": 1.0}
    if task != "held-out":
        shown = {"accuracy": 0.5, "chance": 0.5, "examples": 4}
    for key in shown:
        one: dict[str, Any] = {"task": task, "split": "dev", "step": 10, "metrics": {**shown}}
        del one["metrics"][key]
        (run / "eval.json").write_text(json.dumps([one]))
        with pytest.raises(DataError, match=rf"eval\.json: the result of {task} at step 10 has no {key}; remove this"):
            write_report([run])
    if task != "held-out":
        (run / "eval.json").write_text(json.dumps([{**one, "metrics": {**shown, "low": None}}]))
        with pytest.raises(DataError, match=r"low is None, no finite number; remove this record"):
            write_report([run])
