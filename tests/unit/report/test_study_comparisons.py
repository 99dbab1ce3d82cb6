"""Comparisons of a study's rows, from the predictions of its cells and controls.json."""

import csv
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgba

from gpt1_ds.cli import main
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.report.study_comparisons import TREND, StudyAnswers, comparisons, intervals, verdict
from gpt1_ds.report.study_page import forest, learning, write_study
from gpt1_ds.report.study_results import Column, Results, StudyScore, read_study_results

ROOT = Path(__file__).parents[3]
N = 400
GOLD = {"rte": [number % 2 for number in range(N)], "stsb": [number % 5 for number in range(N)]}
LABELS = {"rte": ["entailment", "not_entailment"], "stsb": []}
METRIC = {"rte": "accuracy", "stsb": "pearson"}


def finish(place: Path, task: str, wrong: int) -> None:
    """A cell that answers `wrong` examples otherwise than is right, the first ones."""
    (place / "predictions").mkdir(parents=True)
    lines = ["index\tprediction"]
    for number, right in enumerate(GOLD[task]):
        if task == "rte":
            told = LABELS[task][1 - right if number < wrong else right]
        else:
            told = f"{(4 - right) if number < wrong else right:.3f}"
        lines.append(f"{number}\t{told}")
    (place / "predictions" / f"{task}-half.tsv").write_text("\n".join([*lines, "unlabelled\t0"]) + "\n")
    score = 1 - wrong / N
    entries = [{"task": task, "split": split, "step": 1, "metrics": {METRIC[task]: score}} for split in ("dev", "half")]
    (place / "eval.json").write_text(json.dumps(entries))
    (place / "DONE").write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows good and bad on two tasks, two seeds, each tried at two rates of which the second is worse on dev."""
    cells: list[dict[str, Any]] = []
    for task in GOLD:
        for row, wrong in (("good", 40), ("bad", 160)):
            for seed in (1, 2):
                for choice, more in (("lr=1", 0), ("lr=2", 80)):
                    name = f"{task}/{row}/{choice}/{seed}"
                    cells.append({"task": task, "variant": row, "seed": seed, "folder": name, "choice": choice})
                    finish(tmp_path / name, task, wrong + more + seed)
    common = {"margin": 2.0, "trend": False}
    compare = [
        {"first": "good", "second": "bad", "expect": "above", "tasks": [], "claim": "better", **common},
        {"first": "good", "second": "majority", "expect": "below", "tasks": ["rte"], "claim": "worse", **common},
    ]
    told = {
        "name": "s",
        "checkpoint": "runs/x",
        "tasks": [{"name": name, "task": name, "metric": METRIC[name], "table": True} for name in GOLD],
        "variants": ["good", "bad"],
        "seeds": [1, 2],
        "split": "unseen",
        "cells": cells,
        "layer_transfer": [],
        "compare": compare,
    }
    (tmp_path / "study.json").write_text(json.dumps(told))
    known = {}
    for task, gold in GOLD.items():
        answers = {"ids": [str(number) for number in range(N)], "gold": gold, "controls": {"majority": [0] * N}}
        score = {"control": "majority", "split": "half", "metric": METRIC[task], "value": 0.5}
        known[task] = {"examples": "", "labels": LABELS[task], "scores": [score], "answers": {"half": answers}}
    (tmp_path / "controls.json").write_text(json.dumps(known))
    return tmp_path


def test_dev_chooses_among_what_a_cell_tried(folder: Path) -> None:
    results = read_study_results(folder)
    assert len(results.cells) == results.done == 8
    assert {score.choice for score in results.scores if score.seed is not None} == {"lr=1"}
    assert results.points["rte", "good", 1] == pytest.approx(100 * (1 - 41 / N))


def test_a_cell_waits_for_all_that_it_tries(folder: Path) -> None:
    (folder / "rte/good/lr=2/1/DONE").unlink()
    results = read_study_results(folder)
    assert results.done == 7
    assert ("rte", "good", 1) not in results.points


def test_a_value_that_diverged_is_not_waited_for(folder: Path) -> None:
    """It would diverge again, and the row would stay empty for ever."""
    diverged = RunDir(folder / "rte/good/lr=2/1")
    diverged.done.unlink()
    for event in ("started", "spike", "failed"):
        diverged.add_event(event, step=2, action="raise", problem="the loss is not finite")
    results = read_study_results(folder)
    assert results.done == 8
    assert results.points["rte", "good", 1] == pytest.approx(100 * (1 - 41 / N))
    other = RunDir(folder / "rte/good/lr=1/1")
    other.done.unlink()
    assert read_study_results(folder).done == 7, "the other value is waited for"
    diverged.add_event("started", step=0)
    assert read_study_results(folder).done == 7


def test_differences_are_paired_and_judged(folder: Path) -> None:
    found = list(comparisons(StudyAnswers(folder, read_study_results(folder))))
    assert [(one.claim, one.task) for one in found] == [
        ("better", "average"),
        ("better", "rte"),
        ("better", "stsb"),
        ("worse", "rte"),
    ]
    assert [one.verdict for one in found] == ["supported"] * 3 + ["not supported"]
    assert found[1].difference == pytest.approx(100 * 120 / N)
    assert found[1].low < found[1].difference < found[1].high
    assert found[3].difference == pytest.approx(100 * (1 - 41.5 / N) - 50)
    assert all(one.seeds == 2 for one in found)
    figure = forest(found)
    (bad,) = figure.axes[0].collections[1].get_colors()
    says = {
        text.get_text(): line.get_color()
        for text, line in zip(figure.legends[0].texts, figure.legends[0].get_lines(), strict=True)
    }
    assert to_rgba(says["not supported"]) == pytest.approx(tuple(bad))


def test_a_pair_that_is_compared_twice_is_told_apart_by_its_claims(folder: Path) -> None:
    first = next(comparisons(StudyAnswers(folder, read_study_results(folder))))
    figure = forest([first, replace(first, claim="much better", task=TREND)])
    pair = f"{first.first} - {first.second}"
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == [f"{pair}\nbetter (average)", f"{pair}\nmuch better (per doubling)"]


def test_a_difference_says_of_how_many_tasks_it_is(folder: Path) -> None:
    found = list(comparisons(StudyAnswers(folder, read_study_results(folder))))
    labels = [text.get_text() for text in forest(found).axes[0].get_yticklabels()]
    pairs = [f"{one.first} - {one.second}" for one in (found[0], found[3])]
    assert labels == [f"{pairs[0]} (mean of 2)", f"{pairs[1]} (rte)"]
    whole = forest([*found[:3], *found[:3]])
    assert [text.get_text() for text in whole.axes[0].get_yticklabels()] == [labels[0]] * 2, "two, though of one name"
    without_average = forest(found[1:]).axes[0]
    assert [text.get_text() for text in without_average.get_yticklabels()] == [
        *(f"{pairs[0]} ({task})" for task in ("rte", "stsb")),
        f"{pairs[1]} (rte)",
    ]


def test_an_interval_ends_where_its_metric_does(folder: Path) -> None:
    """Two examples tell next to nothing: half of the interval would be 635 points."""
    told = json.loads((folder / "controls.json").read_text())
    told["rte"]["answers"]["half"] = {"ids": ["0", "200"], "gold": [0, 0], "controls": {"majority": [0, 0]}}
    (folder / "controls.json").write_text(json.dumps(told))
    assert intervals(StudyAnswers(folder, read_study_results(folder)))["rte", "bad"] == (0, 100)


def test_rows_have_intervals_and_the_page_shows_all(folder: Path) -> None:
    found = intervals(StudyAnswers(folder, read_study_results(folder)))
    assert found.keys() == {(task, row) for task in GOLD for row in ("good", "bad", "majority")} - {
        ("stsb", "majority")
    }
    low, high = found["rte", "bad"]
    assert low < 100 * (1 - 161.5 / N) < high
    write_study(folder)
    with open(folder / "comparisons.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["verdict"] == "supported"
    assert "| better | good | bad | average |" in (folder / "table.md").read_text()
    page = (folder / "study.html").read_text()
    assert "<td>better</td>" in page
    assert (folder / "figures/compared.png").stat().st_size > 5_000
    assert "a fixed half of dev" in page


def test_of_one_text_the_strongest_rule_is_the_bag_of_words(folder: Path) -> None:
    told = json.loads((folder / "study.json").read_text())
    known = json.loads((folder / "controls.json").read_text())
    for split in known["rte"]["answers"].values():
        split["controls"]["bag of words"] = split["controls"].pop("majority")
    for score in known["rte"]["scores"]:
        score["control"] = "bag of words"
    worse = told["compare"][1]
    told["compare"] = [{**worse, "second": name, "claim": name} for name in ("bag of words", "words and overlap")]
    (folder / "study.json").write_text(json.dumps(told))
    (folder / "controls.json").write_text(json.dumps(known))
    words, strongest = comparisons(StudyAnswers(folder, read_study_results(folder)))
    assert replace(strongest, claim="", second="") == replace(words, claim="", second="")


def test_answers_that_are_not_there_are_left_out(folder: Path) -> None:
    for file in folder.glob("rte/good/lr=1/1/predictions/*"):
        file.unlink()
    tasks = [one.task for one in comparisons(StudyAnswers(folder, read_study_results(folder))) if one.claim == "better"]
    assert tasks == ["stsb"], "no average of some"


def test_a_trend_is_a_slope_over_examples(folder: Path) -> None:
    """rte at 100 examples is a copy of rte at 400 whose good row is worse: the lead grows by 15 points a doubling."""
    told = json.loads((folder / "study.json").read_text())
    known = json.loads((folder / "controls.json").read_text())
    told["tasks"] = [{**told["tasks"][0], "name": name, "examples": n} for name, n in (("rte", 400), ("few", 100))]
    told["cells"] = [cell for cell in told["cells"] if cell["task"] == "rte" and cell["choice"] == "lr=1"]
    for cell in list(told["cells"]):
        place = f"few/{cell['folder']}"
        finish(folder / place, "rte", 160 + cell["seed"])
        told["cells"].append({**cell, "task": "few", "folder": place})
    told["compare"] = [{**told["compare"][0], "trend": True}]
    (folder / "study.json").write_text(json.dumps(told))
    (folder / "controls.json").write_text(json.dumps({"rte": known["rte"], "few": known["rte"]}))
    found = list(comparisons(StudyAnswers(folder, read_study_results(folder))))
    assert [one.task for one in found] == ["per doubling", "rte", "few"]
    assert found[0].difference == pytest.approx(100 * 120 / N / 2)
    assert [one.expect for one in found] == ["above", "", ""]
    assert found[0].verdict == "supported"
    write_study(folder)
    assert (folder / "figures/learning.png").stat().st_size > 5_000
    for cell in told["cells"]:
        if cell["task"] == "few" and cell["variant"] == "bad":
            (folder / cell["folder"] / "DONE").unlink()
    (part,) = comparisons(StudyAnswers(folder, read_study_results(folder)))
    assert (part.task, part.expect, part.verdict) == ("rte", "", "above"), "without the slope nothing is decided"


def test_curves_name_the_controls_of_every_panel() -> None:
    columns = tuple(Column(f"{task}-{n}", task, "accuracy", True, n) for task in ("sst2", "rte") for n in (100, 1000))
    scores = [StudyScore(column.name, "full", 1, "dev", "accuracy", 0.6, 1.0, 1) for column in columns]
    scores += [
        StudyScore(name, "second text alone", None, "dev", "accuracy", 0.5, None, None)
        for name in ("rte-100", "rte-1000")
    ]
    results = Results("study", "", columns, ("full",), (1,), {}, (), tuple(scores), {})
    figure = learning(results, {})
    assert [text.get_text() for text in figure.legends[0].texts] == ["full", "second text alone"]
    colours = {line.get_label(): line.get_color() for line in figure.axes[1].get_lines()}
    assert colours["full"] != colours["second text alone"] == "0.4"


@pytest.mark.parametrize(
    ("expect", "low", "high", "told"),
    [
        ("above", 0.1, 2.0, "supported"),
        ("above", -2.0, -0.1, "not supported"),
        ("above", -0.1, 9.0, "undecided"),
        ("below", -3.0, -1.0, "supported"),
        ("same", -1.9, 1.9, "supported"),
        ("same", 0.1, 1.9, "supported"),
        ("same", 0.1, 3.0, "not supported"),
        ("same", -0.1, 3.0, "undecided"),
        ("not above", -9.0, 1.0, "supported"),
        ("not above", 0.5, 3.0, "not supported"),
        ("not above", -0.5, 3.0, "undecided"),
        ("", 1.0, 2.0, "above"),
        ("", -1.0, 2.0, "undecided"),
    ],
)
def test_verdicts(expect: str, low: float, high: float, told: str) -> None:
    assert verdict(expect, low, high, 2.0) == told


def test_a_packed_study_draws_the_same_page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """tools/pack_study.sh keeps what numbers come from; `report` makes page and tables of it."""
    write_study(folder)
    (folder / "rte/good/lr=1/1/checkpoints").mkdir()
    (folder / "rte/good/lr=1/1/checkpoints/large").write_bytes(bytes(1000))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    words = [str(folder.parent), folder.name, str(elsewhere / "study.tar.xz")]
    subprocess.run(["bash", str(ROOT / "tools/pack_study.sh"), *words], check=True)
    subprocess.run(["tar", "-xf", "study.tar.xz"], cwd=elsewhere, check=True)
    copy = elsewhere / folder.name
    assert not (copy / "rte/good/lr=1/1/checkpoints").exists()
    (copy / "comparisons.csv").unlink()
    assert main(["report", str(copy)]) == 0
    for name in ("comparisons.csv", "results.csv", "table.md"):
        assert (copy / name).read_text() == (folder / name).read_text()
    assert main(["report", str(copy), "--out", "x"]) == 2


@pytest.mark.parametrize("kind", ["span", "tagging"])
def test_answers_in_words_are_compared_as_scores_are(kind: str, tmp_path: Path) -> None:
    """Two rows of two seeds: of 40 examples the first is wrong about 4 and 5, the second about 20 and 21."""
    gold: list[list[str]] = [["the cat", "cat"] if kind == "span" else ["B-x", "I-x", "O"] for _ in range(40)]
    metric = {"span": "exact_match", "tagging": "entity_f1"}[kind]
    cells = []
    for row, wrong in (("good", 4), ("bad", 20)):
        for seed in (1, 2):
            name = f"t/{row}/{seed}"
            cells.append({"task": "t", "variant": row, "seed": seed, "folder": name, "choice": ""})
            bad = wrong + seed - 1
            if kind == "span":
                told = {str(number): "a dog" if number < bad else "A cat." for number in range(40)}
                finish_words(tmp_path / name, "t-dev.json", json.dumps(told), {metric: 1 - bad / 40})
            else:
                lines = ["index\tprediction", *(f"{n}\tB-x {'O' if n < bad else 'I-x'} O" for n in range(40))]
                finish_words(tmp_path / name, "t-dev.tsv", "\n".join(lines) + "\n", {metric: 1 - bad / 40})
    told = {
        **{"name": "s", "checkpoint": "c", "variants": ["good", "bad"], "seeds": [1, 2], "cells": cells},
        "tasks": [{"name": "t", "task": "t", "metric": metric, "table": True}],
        "layer_transfer": [],
        "compare": [
            {"first": "good", "second": second, "expect": "above", "tasks": [], "claim": second, "margin": 2.0}
            | {"trend": False}
            for second in ("bad", "rule")
        ],
    }
    (tmp_path / "study.json").write_text(json.dumps(told))
    rule: list[Any] = ["dog"] * 40 if kind == "span" else [["O", "O", "O"]] * 40
    answers = {"ids": [str(number) for number in range(40)], "gold": gold, "controls": {"rule": rule}}
    score = {"control": "rule", "split": "dev", "metric": metric, "value": 0.0}
    known = {"t": {"examples": "", "labels": ["O", "B-x", "I-x"], "scores": [score], "answers": {"dev": answers}}}
    (tmp_path / "controls.json").write_text(json.dumps(known))
    paired, against_rule = comparisons(StudyAnswers(tmp_path, read_study_results(tmp_path)))
    assert paired.difference == pytest.approx(100 * 16 / 40)
    assert paired.low < 40 < paired.high
    assert against_rule.difference == pytest.approx(100 * (1 - 4.5 / 40))
    assert (paired.verdict, against_rule.verdict) == ("supported", "supported")
    write_study(tmp_path)
    name = {"span": "exact match", "tagging": "F1 of entities"}[kind]
    assert f"| t | good | {name} | 88.8 |" in (tmp_path / "table.md").read_text()


def finish_words(place: Path, name: str, text: str, metrics: dict[str, float]) -> None:
    (place / "predictions").mkdir(parents=True)
    (place / "predictions" / name).write_text(text)
    (place / "eval.json").write_text(json.dumps([{"task": "t", "split": "dev", "step": 1, "metrics": metrics}]))
    (place / "DONE").write_text("{}")
