"""Metrics against numbers worked out by hand, and submissions in the server's format."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import Encoded, encode
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import KINDS, Classification
from gpt1_ds.tasks.metrics import check_libraries, measure, read_submission, score, submission_name, write_submission
from gpt1_ds.tasks.registry import SPECS
from tests.helpers.words import WordTokenizer

GOLD, PREDICTED = np.array([1, 1, 1, 0, 0, 0, 0, 1]), np.array([1, 1, 0, 0, 0, 1, 0, 0])  # 2 TP, 3 TN, 1 FP, 2 FN


def made(labels: list[str | None], groups: list[str] | None = None, ids: list[str] | None = None) -> Encoded:
    names = ids or [str(number) for number in range(len(labels))]
    rows = zip(names, labels, groups or [""] * len(labels), strict=True)
    examples = [Example(name, ("x",), label=label, group=group) for name, label, group in rows]
    return encode(task(), examples, WordTokenizer(), 16)


def scored(scores: list[float | None]) -> Encoded:
    examples = [Example(str(n), ("x", "y"), score=value) for n, value in enumerate(scores)]
    return encode(task("regression", metrics=("pearson", "spearman")), examples, WordTokenizer(), 16)


def task(
    kind: Kind = "classification", name: str = "cola", metrics: tuple[str, ...] = ("matthews", "accuracy")
) -> Task:
    if kind == "regression":
        return KINDS[kind]("stsb", "both", (), metrics)
    return KINDS[kind](name, "single", ("0", "1"), metrics)


def test_by_hand() -> None:
    assert measure("accuracy", GOLD, PREDICTED) == 5 / 8
    assert measure("f1", GOLD, PREDICTED, 2) == pytest.approx(4 / 7)
    assert measure("matthews", GOLD, PREDICTED) == pytest.approx((2 * 3 - 1 * 2) / np.sqrt(3 * 4 * 4 * 5))
    three = measure("f1", np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2]), 3)
    assert three == pytest.approx((1 + 2 / 3 + 2 / 3) / 3), "more than two classes: the mean over them"
    x, y = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 10])
    assert measure("pearson", x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert measure("spearman", x, y) == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_the_tasks_classes_decide_what_f1_is() -> None:
    """Not those that happen to be in a split, or in its predictions."""
    gold, found = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert measure("f1", gold, found, 2) == pytest.approx(4 / 5), "of class 1"
    assert measure("f1", gold, found, 3) == pytest.approx((2 / 3 + 4 / 5) / 2), "the mean, where class 2 is not there"
    three = Classification("x", "single", ("0", "1", "2"), ("f1",))
    assert score(three, made(["0", "0", "1", "1"]), found).values["f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)


def test_f1_without_class_1_is_not_defined() -> None:
    nothing = np.zeros(4, dtype=np.int64)
    found = score(task(metrics=("f1",)), made(["0"] * 4), nothing)
    assert found.values == {"f1": None}
    assert found.warnings == ("cola: f1 is null: every label is the same",)
    assert measure("f1", nothing, np.array([0, 0, 0, 1]), 2) == 0.0, "a wrong prediction of it defines it"
    assert measure("f1", nothing, nothing, 3) == 1.0, "of three classes, the mean over those that occur"


def test_the_papers_choice() -> None:
    first = {name: spec.metrics[0] for name, spec in SPECS.items()}
    assert {name: metric for name, metric in first.items() if metric != "accuracy"} == {
        "cola": "matthews",
        "mrpc": "f1",
        "qqp": "f1",
        "stsb": "pearson",
        "multirc": "f1",
        "record": "f1",
        "squad": "f1",
        "squad2": "f1",
        "conll2003": "entity_f1",
        "squad_text": "f1",
        "translation": "bleu",
        "summarization": "rouge1",
        "mixture": "exact_match",
    }


def test_scores_of_a_split() -> None:
    labels: list[str | None] = [str(label) for label in GOLD]
    found = score(task(), made([*labels, None]), np.array([*PREDICTED, 1]))
    assert list(found.values) == ["matthews", "accuracy"]
    assert found.values["accuracy"] == 5 / 8, "what has no label does not count"
    assert found.warnings == ()


def test_scores_of_groups() -> None:
    encoded = made(["0", "1", "1", "0"], ["middle", "high", "high", "high"])
    values = score(task(metrics=("accuracy",)), encoded, np.array([0, 1, 0, 0])).values
    assert values == {"accuracy": 0.75, "accuracy_high": pytest.approx(2 / 3), "accuracy_middle": 1.0}


def test_a_split_of_one_class() -> None:
    found = score(task(), made(["1", "1", "1"]), np.array([1, 0, 1]))
    assert found.values == {"matthews": 0.0, "accuracy": pytest.approx(2 / 3)}
    assert found.warnings == ("cola: matthews is 0.0: every label is the same",)
    assert score(task(), made(["1", "0"]), np.array([1, 1])).values["matthews"] == 0.0


def test_correlations_that_are_not_defined() -> None:
    kind = task("regression", metrics=("pearson", "spearman"))
    found = score(kind, scored([2.0, 2.0, None]), np.array([1.0, 2.0, 3.0]))
    assert found.values == {"pearson": None, "spearman": None}
    assert found.warnings[0] == "stsb: pearson is null: every label is the same"
    assert len(found.warnings) == 2
    assert "every prediction is the same" in score(kind, scored([1.0, 2.0]), np.array([3.0, 3.0])).warnings[0]
    assert score(kind, scored([1.0, 2.0, 3.0]), np.array([0.1, 0.2, 0.3])).values["pearson"] == pytest.approx(1)


def test_a_split_without_labels() -> None:
    with pytest.raises(DataError, match="no example has a label"):
        score(task(), made([None, None]), np.array([0, 1]))


def test_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"pip install 'gpt1-ds\[finetune\]'"):
        measure("accuracy", GOLD, PREDICTED)


@pytest.mark.parametrize(
    ("kind", "metrics", "missing", "named"),
    [
        ("classification", ("accuracy",), ["sklearn", "scipy"], "scipy and scikit-learn"),
        ("regression", ("pearson",), ["scipy"], "scipy"),
        (
            "generation",
            ("exact_match", "bleu", "rouge1", "rouge2"),
            ["sacrebleu", "rouge_score"],
            "rouge_score and sacrebleu",
        ),
        ("generation", ("exact_match", "f1"), ["sklearn", "scipy", "sacrebleu", "rouge_score"], ""),
    ],
)
def test_each_metric_names_its_library(
    kind: Kind, metrics: tuple[str, ...], missing: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_libraries(task(kind, metrics=metrics))
    for library in missing:
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=f"its scores need ({named}); pip install") if named else nullcontext():
        check_libraries(task(kind, metrics=metrics))


def test_glues_file_names() -> None:
    names = {name for spec in SPECS.values() for name in spec.submission.values()}
    assert names == {
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv"),
        *("RTE.tsv", "WNLI.tsv", "AX.tsv"),
    }
    assert submission_name("mnli", "test_mm") == "MNLI-mm.tsv"
    assert submission_name("race", "test") == "race-test.tsv"
    assert submission_name("cola", "dev") == "cola-dev.tsv"


def test_a_submission(tmp_path: Path) -> None:
    rte = Classification("rte", "pair", ("entailment", "not_entailment"), ("accuracy",))
    examples = [Example(str(number), ("a", "b")) for number in range(3)]
    path = write_submission(rte, encode(rte, examples, WordTokenizer(), 16).ids, np.array([1, 0, 1]), tmp_path)
    assert path == tmp_path / "RTE.tsv"
    assert path.read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n2\tnot_entailment\n"


def test_a_submission_of_scores(tmp_path: Path) -> None:
    path = write_submission(task("regression"), scored([None] * 3).ids, np.array([-0.2, 2.34567, 5.1]), tmp_path)
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Also ids with what str.splitlines takes for the end of a line."""
    ids = ["a\u2028b", "a\x85b", "a\x0bb", "a\x0cb", "a\x1cb", "plain"]
    numbers = np.array([0, 1, 0, 1, 0, 1])
    path = write_submission(task(), made([None] * 6, ids=ids).ids, numbers, tmp_path)
    assert read_submission(path) == dict(zip(ids, map(task().format_prediction, numbers.tolist()), strict=True))


def test_a_submission_holds_an_id_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the same id"):
        write_submission(task(), ["a", "a"], np.array([0, 1]), tmp_path)


@pytest.mark.parametrize(("name", "content"), [("x-dev.tsv", "index\tprediction\n0\t1\n2"), ("x-dev.json", '{"a": ')])
def test_a_torn_file_of_predictions_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}: damaged; remove the run's folder"):
        read_submission(tmp_path / name)
