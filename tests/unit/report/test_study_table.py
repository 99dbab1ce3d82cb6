"""A study's table, figure and page, made from its folder alone."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.report import paper
from gpt1_ds.report.study_page import curves, layer_transfer, rows, write_study
from gpt1_ds.report.study_results import read_study_results
from gpt1_ds.report.study_table import average, cell_mean, make_table, mean
from gpt1_ds.tasks.kinds import KINDS
from gpt1_ds.tasks.registry import SPECS

TIME = "2026-11-22T00:00:00Z"
TASKS = {"cola": "matthews", "mnli": "accuracy", "copa": "accuracy"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three tasks (one is not the paper's), two variants, two seeds, a curve; nothing is done yet."""
    cells = [
        {"task": task, "variant": variant, "seed": seed, "folder": f"{task}/{variant}/{seed}"}
        for task in TASKS
        for variant in ("full", "mine")
        for seed in (1, 2)
    ]
    curve = [{"layers": 4, **cell} for cell in cells if cell["task"] == "mnli" and cell["variant"] == "full"]
    less = {"task": "mnli", "variant": "transfer 0", "seed": 1, "folder": "mnli/transfer-0/1"}
    told = {
        "name": "<b>odd",
        "checkpoint": "runs/x",
        "tasks": [{"name": name, "task": name, "metric": metric, "table": True} for name, metric in TASKS.items()],
        "variants": ["full", "mine"],
        "seeds": [1, 2],
        "cells": [*cells, less],
        "layer_transfer": [*curve, {"layers": 0, **less}],
    }
    (tmp_path / "study.json").write_text(json.dumps(told))
    return tmp_path


def finish(folder: Path, cell: str, **splits: dict[str, float | None]) -> None:
    place = folder / cell
    place.mkdir(parents=True)
    task = cell.partition("/")[0]
    entries: list[dict[str, Any]] = [
        {"task": task, "split": split, "step": 7, "loss": 1.0, "metrics": metrics} for split, metrics in splits.items()
    ]
    (place / "eval.json").write_text(json.dumps(entries))
    (place / "DONE").write_text("{}")
    lines = [{"event": "stopped", "seconds": 20.0}, {"event": "started"}, {"event": "stopped", "seconds": 10.5}]
    (place / "events.jsonl").write_text("".join(json.dumps({"time": TIME, **line}) + "\n" for line in lines))


def finish_all(folder: Path) -> None:
    for variant, bonus in (("full", 0.1), ("mine", 0.0)):
        for seed in (1, 2):
            finish(folder, f"cola/{variant}/{seed}", dev={"matthews": 0.2 * seed + bonus, "accuracy": 0.7})
            finish(folder, f"mnli/{variant}/{seed}", dev={"accuracy": 0.4}, dev_mm={"accuracy": 0.5 + bonus})
            finish(folder, f"copa/{variant}/{seed}", dev={"accuracy": 0.9})


def test_means_and_standard_errors() -> None:
    assert mean([]) is None
    one = mean([50.0])
    assert (str(one), one.error if one else 0) == ("50.0", None)
    three = mean([50.0, 52.0, 57.0], [1.0, 2.0, 6.0])
    assert three is not None
    assert three.mean == 53
    assert three.error == pytest.approx(math.sqrt((9 + 1 + 16) / 2) / math.sqrt(3))
    assert three.seconds == 3
    assert str(three) == "53.0"


def test_the_table_in_the_papers_shape(folder: Path) -> None:
    finish_all(folder)
    table = make_table(read_study_results(folder))
    assert table.head == ["", "avg of 2", "CoLA", "MNLI", "COPA"]
    # cola 30 and 50, mnli 50 twice: averages 40 and 50; COPA is no task of the paper's
    assert table.wide[0] == ["full", "45.0", "40.0", "50.0", "90.0"]
    assert table.wide[1] == ["the paper's full", "63.6", "45.4", "81.8", "-"]
    assert table.wide[2] == ["mine", "37.5", "30.0", "45.0", "90.0"]
    assert len(table.wide) == 3, "the paper says nothing of `mine`"
    assert table.long[0] == ["CoLA", "full", "Matthews' correlation", "40.0", "-", "2", "10.0", "30 s", "45.4"]
    known = make_table(read_study_results(folder), {("cola", "full"): (21.0, 59.0), ("copa", "full"): (75.0, 100.0)})
    assert known.wide[0] == ["full", "45.0", "40.0 ± 19.0", "50.0", "90.0 ± 15.0"]
    assert known.long[0][3:6] == ["40.0", "21.0 to 59.0", "2"]


def test_what_is_missing_is_not_guessed(folder: Path) -> None:
    results = read_study_results(folder)
    assert results.done == 0
    assert make_table(results).wide[0] == ["full", "-", "-", "-", "-"]
    finish(folder, "cola/full/1", dev={"matthews": 0.3})
    finish(folder, "cola/full/2", dev={"matthews": None})  # every answer was the same class
    finish(folder, "mnli/full/2", dev={"accuracy": 0.4}, dev_mm={"accuracy": 0.5})
    results = read_study_results(folder)
    row = make_table(results).wide[0]
    assert row == ["full", "-", "30.0", "45.0", "-"], "no seed has both tasks"
    assert average(results, "full") is None
    finish(folder, "mnli/full/1", dev={"accuracy": 0.6}, dev_mm={"accuracy": 0.6})
    results = read_study_results(folder)
    assert str(average(results, "full")) == "45.0", "of the one seed that has both"
    one = cell_mean(results, results.columns[0], "full")
    assert one is not None
    assert (one.seeds, one.error) == (1, None)


def test_controls_stand_below_the_variants(folder: Path) -> None:
    finish_all(folder)
    scores = [
        {"control": "majority", "split": split, "metric": "matthews", "value": value}
        for split, value in (("dev", 0.0), ("test", 0.1))
    ]
    (folder / "controls.json").write_text(json.dumps({"cola": {"examples": "", "scores": scores}}))
    results = read_study_results(folder)
    assert results.done == 12, "a control is no cell"
    table = make_table(results)
    assert table.wide[-1] == ["majority", "-", "0.0", "-", "-"]
    write_study(folder)
    row = (folder / "results.csv").read_text().splitlines()[-2]
    assert row == "cola,majority,,dev,matthews,0.0,,,"
    figure = rows(results, {})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["full", "mine", "majority"]
    lines = [line.get_xydata().round(6).tolist() for line in figure.axes[0].lines]
    assert [[0.0, 2.0]] in lines, "the control, on the last row"
    assert [[0.0, 0.0], [0.0, 1.0]] in lines, "the best control, from bottom to top"
    assert [[30.0, 0.0], [50.0, 0.0]] in lines, "the first row's runs"
    told = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**told, "controls": ["mine"]}))
    figure = rows(read_study_results(folder), {})
    runs = {line.get_ydata()[0]: line.get_color() for line in figure.axes[0].lines if line.get_marker() == "."}
    assert runs == {0: "C0", 1: "0.4"}, "a row that is named a control is grey"
    kinds = [text.get_text() for text in figure.legends[0].get_texts()]
    assert kinds == ["model", "control that is fine-tuned, too", "control without a network", "the best of these"]


def test_a_task_that_was_taken_out_is_on_no_page(folder: Path) -> None:
    """Its controls ended the study in a traceback, and cells of it that had failed stayed on the page."""
    told = json.loads((folder / "study.json").read_text())
    for key, name in (("tasks", "name"), ("cells", "task")):
        told[key] = [one for one in told[key] if one[name] != "cola"]
    (folder / "study.json").write_text(json.dumps(told))
    scores = [{"control": "majority", "split": "dev", "metric": "matthews", "value": 0.0}]
    (folder / "controls.json").write_text(json.dumps({"cola": {"examples": "", "scores": scores}}))
    for cell in ("cola/full/1", "mnli/full/1"):
        RunDir(folder).add_event("failed", cell=cell, reason="out of luck")
    write_study(folder)
    assert list(read_study_results(folder).failed) == ["mnli/full/1"]
    assert "cola" not in (folder / "results.csv").read_text() + (folder / "study.html").read_text()


def test_a_table_of_test_splits(folder: Path) -> None:
    finish(folder, "cola/full/1", dev={"matthews": 0.3}, test={"matthews": 0.2})
    told = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**told, "split": "test"}))
    table = make_table(read_study_results(folder))
    assert table.wide[0][2] == "20.0"
    assert any("test split" in note for note in table.notes)


def test_a_cell_counts_when_it_is_done(folder: Path) -> None:
    finish(folder, "cola/full/1", dev={"matthews": 0.3})
    (folder / "cola/full/1/DONE").unlink()
    assert read_study_results(folder).done == 0


def test_the_csv_is_tidy(folder: Path) -> None:
    finish(folder, "mnli/full/1", dev={"accuracy": 1 / 3}, dev_mm={"accuracy": 0.5})
    write_study(folder)
    with open(folder / "results.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["task"], row["variant"], row["seed"], row["split"]) for row in found] == [
        ("mnli", "full", "1", "dev"),
        ("mnli", "full", "1", "dev_mm"),
    ]
    assert float(found[0]["value"]) == 1 / 3, "never rounded"
    assert (found[0]["metric"], found[0]["seconds"], found[0]["step"]) == ("accuracy", "30.5", "7")


def test_the_page_and_the_table_as_text(folder: Path) -> None:
    finish_all(folder)
    lines = [("failed", "mnli/transfer-0/1", "<i>luck"), ("failed", "copa/full/2", "no"), ("done", "copa/full/2", "")]
    events = [{"time": TIME, "event": event, "cell": cell, "reason": reason} for event, cell, reason in lines]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    write_study(folder)
    text = (folder / "table.md").read_text()
    assert "| full | 45.0 | 40.0 | 50.0 | 90.0 |" in text
    assert "12 of 13 cells are done, from runs/x; 1 failed." in text
    page = (folder / "study.html").read_text()
    for words in ("&lt;b&gt;odd", "45.0", "&lt;i&gt;luck", "hidden test sets", "Layer transfer", "http-equiv"):
        assert words in page, words
    assert page.count("<svg") == 2
    for name in ("rows", "layer_transfer"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 5_000


def test_the_curve(folder: Path) -> None:
    assert layer_transfer(read_study_results(folder)) is None, "nothing to draw yet"
    assert rows(read_study_results(folder), {}) is None
    finish_all(folder)
    finish(folder, "mnli/transfer-0/1", dev={"accuracy": 0.3})
    results = read_study_results(folder)
    assert curves(results) == {"mnli": {0: [30.0], 4: [pytest.approx(50), pytest.approx(50)]}}
    figure = layer_transfer(results)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "4"]
    assert list(figure.axes[0].lines[0].get_xydata().ravel()) == pytest.approx([0, 30, 4, 50])
    write_study(folder)
    assert "http-equiv" not in (folder / "study.html").read_text(), "a finished study does not reload"


def test_a_study_of_other_tasks_is_no_table_of_the_paper(folder: Path) -> None:
    """It was called Table 5, had a row of dashes for the paper's model, and named its tables and test sets."""
    told = json.loads((folder / "study.json").read_text())
    told |= {"tasks": told["tasks"][2:], "layer_transfer": []}
    told["cells"] = [cell for cell in told["cells"] if cell["task"] == "copa"]
    (folder / "study.json").write_text(json.dumps(told))
    assert [row[0] for row in make_table(read_study_results(folder)).wide] == ["full", "mine"]
    write_study(folder)
    page = (folder / "study.html").read_text()
    assert "<h2>Scores</h2>" in page
    assert "Table 5" not in page
    assert "paper's" not in page


@pytest.mark.parametrize("variant", paper.TABLE_5)
def test_the_papers_averages_are_those_of_its_numbers(variant: str) -> None:
    """To a tenth: the LSTM's recomputes to 69.16, and 69.1 is printed."""
    row = paper.TABLE_5[variant]
    assert sum(row[task] for task in paper.TASKS) / 8 == pytest.approx(row["avg"], abs=0.1)
    assert paper.printed_average(variant, paper.TASKS) == row["avg"]
    assert paper.printed_average(variant, ["cola", "rte"]) == pytest.approx((row["cola"] + row["rte"]) / 2)
    assert paper.printed_average(variant, ["copa"]) is None


def test_what_the_paper_says_elsewhere() -> None:
    assert paper.printed_score("full", "snli") == 89.9
    assert paper.printed_score("no pre-training", "snli") is None
    assert paper.printed_score("mine", "cola") is None
    assert paper.printed_score("LSTM", "stsb") == 71.8


def test_what_was_evaluated_later_is_no_score_of_the_cell(folder: Path) -> None:
    finish(folder, "cola/full/1", dev={"matthews": 0.3})
    file = folder / "cola" / "full" / "1" / "eval.json"
    (own,) = json.loads(file.read_text())
    other = {**own, "metrics": {"matthews": 0.9}}
    told = [{**own, "data": "a"}, {**other, "step": 3, "data": "a"}, {**other, "data": "b"}, {**other, "task": "sts"}]
    file.write_text(json.dumps(told))
    assert make_table(read_study_results(folder)).wide[0] == ["full", "-", "30.0", "-", "-"]


def test_the_metric_of_every_task_has_a_name() -> None:
    """A study of tags or of written texts had no page, and ended after its first cell."""
    first = {one.metrics[0] for one in SPECS.values()}
    assert first.union(*(kind.fitting_metrics for kind in KINDS.values())) <= paper.METRICS.keys()
