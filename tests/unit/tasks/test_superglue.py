"""MultiRC, ReCoRD and GLUE's diagnostic set, in the formats in which they are published, and their official scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.sweep.finetuning_trials import fitted_controls
from gpt1_ds.tasks.comparison import estimate
from gpt1_ds.tasks.metrics import control_scores, score_examples, write_submission
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.token_metrics import objects


def section(folder: Path, preset: str) -> TaskConfig:
    task = load([f"finetune/{preset}"], [f"task.path={folder}"]).task
    assert task is not None
    return task


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def multirc(number: int, *questions: list[int]) -> dict[str, Any]:
    """A passage with a question for each list, whose options are right (1) or wrong (0)."""
    asked = [
        {
            "question": f"What of {at}?",
            "idx": 10 * number + at,
            "answers": [{"text": f"option {k}", "idx": k, "label": label} for k, label in enumerate(labels)],
        }
        for at, labels in enumerate(questions)
    ]
    return {"idx": number, "version": 1.1, "passage": {"text": f"Passage {number}.", "questions": asked}}


def without_labels(record: dict[str, Any]) -> dict[str, Any]:
    bare: dict[str, Any] = json.loads(json.dumps(record))
    for question in bare["passage"]["questions"]:
        for option in question["answers"]:
            del option["label"]
    return bare


@pytest.fixture
def options(tmp_path: Path) -> Path:
    records = multirc(0, [1, 0, 1], [0, 0]), multirc(1, [0, 1])
    (tmp_path / "train.jsonl").write_text(lines(*records))
    (tmp_path / "val.jsonl").write_text(lines(*records))
    (tmp_path / "test.jsonl").write_text(lines(*map(without_labels, records)))
    return tmp_path


def test_multirc_is_an_example_for_each_option(options: Path) -> None:
    data = read_task(section(options, "multirc"))
    assert [one.id for one in data.splits["dev"]] == ["0-0-0", "0-0-1", "0-0-2", "0-1-0", "0-1-1", "1-10-0", "1-10-1"]
    third = data.splits["dev"][2]
    assert (third.texts, third.label, third.group) == (("Passage 0.", "What of 0? option 2"), "1", "0-0")
    assert [one.label for one in data.splits["test"]] == [None] * 7


def test_multirc_is_scored_over_options_and_by_question(options: Path) -> None:
    """By hand: of the options told right 3, of the right ones 3, both 2: F1a 2/3. Of three questions one is whole."""
    data = read_task(section(options, "multirc"))
    found = np.array([1, 0, 1, 1, 0, 0, 0])
    assert score_examples(data.task, data.splits["dev"], found).values == pytest.approx(
        {"f1": 2 * 2 / (3 + 3), "exact_match": 1 / 3}
    )
    controls = {
        (one.control, one.metric): one.value for one in control_scores(data.task, data.task.controls(data.splits))
    }
    assert controls["majority", "exact_match"] == pytest.approx(1 / 3), "no option of the second question is right"


def test_a_study_compares_whole_questions_of_multirc(options: Path) -> None:
    """By the questions that its file of right answers names; files of older versions name none."""
    told = fitted_controls(read_task(section(options, "multirc")))["answers"]["dev"]
    gold, found = np.array(told["gold"]), [np.array([1, 0, 1, 1, 0, 0, 0])]
    one = estimate("exact_match", gold, found, classes=2, groups=told["groups"])
    assert one is not None
    assert one.by_seed == pytest.approx((1 / 3,))
    assert np.isfinite(one.interval()).all()
    assert estimate("exact_match", gold, found, classes=2) is None


def test_multirc_of_the_hub(tmp_path: Path) -> None:
    row = {"paragraph": "P.", "question": "Q?", "answer": "A", "idx": {"paragraph": 3, "question": 4, "answer": 5}}
    both = {**row, "label": "True"}, {**row, "answer": "B", "idx": {**row["idx"], "answer": 6}, "label": "False"}
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(lines(*both))
    one, other = read_task(section(tmp_path, "multirc")).splits["dev"]
    assert (one.id, one.group, one.texts, one.label) == ("3-4-5", "3-4", ("P.", "Q? A"), "1")
    assert (other.id, other.label) == ("3-4-6", "0")


PASSAGE = "Ada met Bob Lee in Rome.\n@highlight\nBob Lee smiled."
QUERY = "@placeholder was seen in Rome."
PLACES = [{"start": 8, "end": 14, "text": "Bob Lee"}, {"start": 36, "end": 42, "text": "Bob Lee"}]


def record(**asked: Any) -> dict[str, Any]:
    entities = [{"start": 0, "end": 2}, *({"start": one["start"], "end": one["end"]} for one in PLACES)]
    query = {"query": QUERY, "idx": 5, **asked}
    return {"source": "CNN", "passage": {"text": PASSAGE, "entities": entities}, "qas": [query], "idx": 2}


def test_record_is_answered_by_a_piece_of_the_passage(tmp_path: Path) -> None:
    for name, told in (("train", record(answers=PLACES)), ("val", record(answers=PLACES)), ("test", record())):
        (tmp_path / f"{name}.jsonl").write_text(lines(told))
    data = read_task(section(tmp_path, "record"))
    (one,), (test,) = data.splits["dev"], data.splits["test"]
    assert (one.id, one.texts, one.answers) == ("5", (QUERY, PASSAGE), (("Bob Lee", 8), ("Bob Lee", 36)))
    assert test.answers is None
    for answer, f1, exact in (("bob lee.", 1, 1), ("Lee", 2 / 3, 0), ("Ada", 0, 0)):
        found = score_examples(data.task, [one], objects([answer])).values
        assert found == pytest.approx({"f1": f1, "exact_match": exact}), answer
    file = write_submission(data.task, ["5"], objects(["Lee"]), tmp_path, "test")
    assert json.loads(file.read_text()) == {"5": "Lee"}, "as ReCoRD's own script reads it"


def test_record_of_the_hub(tmp_path: Path) -> None:
    spans = {"text": ["Ada", "Bob Lee", "Bob Lee"], "start": [0, 8, 36], "end": [3, 15, 43]}
    row = {"passage": PASSAGE, "query": QUERY, "entities": ["Ada", "Bob Lee"], "entity_spans": spans}
    row |= {"answers": ["Bob Lee"], "idx": {"passage": 2, "query": 5}}
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(lines(row))
    (tmp_path / "test.jsonl").write_text(lines({**row, "answers": []}))
    data = read_task(section(tmp_path, "record"))
    assert data.splits["dev"][0].answers == (("Bob Lee", 8), ("Bob Lee", 36))
    assert data.splits["test"][0].answers is None


def test_a_record_that_lacks_a_part_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(lines({"idx": 0, "passage": {"text": "a"}}))
    (tmp_path / "val.jsonl").write_text(lines(multirc(0, [1, 0])))
    with pytest.raises(DataError, match=r"train.jsonl line 1: damaged \(KeyError: 'questions'\)"):
        read_task(section(tmp_path, "multirc"))


NLI = "index\tsentence1\tsentence2\tgold_label\n0\tA man sleeps.\tA man is awake.\tcontradiction\n1\tx\ty\tneutral\n"


@pytest.mark.parametrize("place", ["mnli/AX.tsv", "mnli/diagnostic.tsv", "diagnostic/diagnostic.tsv", "ax/test.jsonl"])
def test_a_model_of_mnli_answers_the_diagnostic_set(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "mnli"
    for file in (folder / "train.tsv", folder / "dev_matched.tsv", tmp_path / place):
        file.parent.mkdir(exist_ok=True)
        file.write_text(NLI)
    rows = [("0", "The cat sat.", "A cat sat."), ("1", "It rains.", "It is dry.")]
    if place.endswith("tsv"):
        (tmp_path / place).write_text("index\tsentence1\tsentence2\n" + "".join("\t".join(row) + "\n" for row in rows))
    else:
        told = [{"premise": a, "hypothesis": b, "label": -1, "idx": int(number)} for number, a, b in rows]
        (tmp_path / place).write_text(lines(*told))
    data = read_task(section(folder, "mnli"))
    asked = data.splits["test_ax"]
    assert [(one.id, *one.texts) for one in asked] == rows
    file = write_submission(data.task, [one.id for one in asked], np.array([0, 2]), tmp_path, "test_ax")
    assert (file.name, file.read_text()) == ("AX.tsv", "index\tprediction\n0\tentailment\n1\tcontradiction\n")
