"""Tasks in text: sources and answers as T5's preprocessors write them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.tasks import text
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import fitted
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Regression, from_values
from gpt1_ds.tasks.lines import LineReader
from gpt1_ds.tasks.reading import read_task, task_of_spec
from gpt1_ds.tasks.registry import SPECS
from gpt1_ds.tasks.text import encode_answers
from tests.helpers.tasks import read, section

T5 = ModelConfig(kind="encoder_decoder", norm="pre")


def in_text(name: str, labels: tuple[str, ...] | None = None) -> Task:
    settings = TaskConfig(name=name, path="x", form="text")
    spec = SPECS[name]
    return fitted(task_of_spec(spec, settings, spec.labels if labels is None else labels), settings, T5)


def test_copa_is_asked_as_t5_asks_it(tmp_path: Path) -> None:
    """With the word of its file; a head reads a question."""
    row = {"premise": "It rained.", "question": "effect", "choice1": "We ate.", "choice2": "We got wet.", "label": 1}
    line = json.dumps(row) + "\n"
    words = ["task.name=copa", "task.form=text"]
    data = read(tmp_path, *words, train_jsonl=line, val_jsonl=line)
    task, (example,) = fitted(data.task, section(tmp_path, *words), T5), data.splits["dev"]
    source = "copa choice1: We ate. choice2: We got wet. premise: It rained. question: effect"
    assert task.source(example) == source
    assert task.answers[task.answer_number(example)] == "choice2"
    lines = LineReader(task, section(tmp_path, *words), "tsv")
    assert task.source(lines.of_fields(["It rained.", "effect", "We ate.", "We got wet."])) == source
    (asked,) = read_task(section(tmp_path, "task.name=copa")).splits["dev"]
    assert asked.texts[1] == "What happened as a result?"


@pytest.mark.parametrize(
    ("name", "texts", "choices", "wanted", "answers"),
    [
        ("cola", ["He run."], [], "cola sentence: He run.", "unacceptable acceptable"),
        ("sst2", ["so good"], [], "sst2 sentence: so good", "negative positive"),
        ("rte", ["A.", "B."], [], "rte sentence1: A. sentence2: B.", "entailment not_entailment"),
        ("wnli", ["A.", "B."], [], "wnli sentence1: A. sentence2: B.", "not_entailment entailment"),
        ("mrpc", ["A.", "B."], [], "mrpc sentence1: A. sentence2: B.", "not_equivalent equivalent"),
        ("qqp", ["A?", "B?"], [], "qqp question1: A? question2: B?", "not_duplicate duplicate"),
        ("qnli", ["A?", "B."], [], "qnli question: A? sentence: B.", "entailment not_entailment"),
        ("mnli", ["A.", "B."], [], "mnli hypothesis: B. premise: A.", "entailment neutral contradiction"),
        ("cb", ["A.", "B."], [], "cb hypothesis: B. premise: A.", "entailment contradiction neutral"),
        ("boolq", ["A.", "B?"], [], "boolq passage: A. question: B?", "False True"),
        ("scitail", ["A.", "B."], [], "scitail hypothesis: B. premise: A.", "neutral entails"),
        (
            *("copa", ["A.", "Why?"], ["B.", "C."]),
            *("copa choice1: B. choice2: C. premise: A. question: Why?", "choice1 choice2"),
        ),
    ],
)
def test_sources_and_answers_are_theirs(
    name: str, texts: list[str], choices: list[str], wanted: str, answers: str
) -> None:
    task = in_text(name)
    assert task.source(Example("0", tuple(texts), tuple(choices))) == wanted
    assert task.answers == tuple(answers.split())
    assert (task.outputs, task.sequences) == (len(task.answers), 1)


def test_a_score_is_rounded_to_a_fifth() -> None:
    """`tf.as_string(tf.round(label * 5) / 5, precision=1)`: ties go to the even fifth."""
    task = in_text("stsb")
    assert isinstance(task, Regression)
    assert task.source(Example("0", ("A.", "B."))) == "stsb sentence1: A. sentence2: B."
    assert (task.layout, len(task.answers), task.answers[0], task.answers[-1]) == ("pair", 26, "0.0", "5.0")
    for score, answer in ((3.8, "3.8"), (3.75, "3.8"), (2.5, "2.4"), (2.7, "2.8"), (0.09, "0.0"), (5.0, "5.0")):
        assert task.answers[task.answer_number(Example("0", (), score=score))] == answer
    np.testing.assert_allclose(task.score_of(np.array([0, 19, 25])), [0, 3.8, 5])


def test_a_range_is_laid_over_zero_to_five() -> None:
    settings = TaskConfig(name="stsb", path="x", form="text", score_range=[1, 3])
    task = fitted(task_of_spec(SPECS["stsb"], settings, ()), settings, T5)
    assert isinstance(task, Regression)
    assert task.answers[task.answer_number(Example("0", (), score=2.0))] == "2.4"  # 2.5
    np.testing.assert_allclose(task.score_of(np.array([0, 25])), [1, 3])


def test_names_of_a_table_are_the_answers_and_survive_the_manifest() -> None:
    task = in_text("table", ("no", "perhaps not"))
    assert task.answers == ("no", "perhaps not")
    assert from_values(task.values()) == task


class Same(Tokenizer):
    """Knows no words."""

    def __init__(self) -> None:
        self.eod_id = 1

    def encode_part(self, text: str, previous: str, continues: bool = False) -> np.ndarray:
        return np.array([7], dtype=np.int32)

    def encode_with_places(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def decode(self, ids: object) -> str:
        raise NotImplementedError

    def token_bytes(self) -> np.ndarray:
        raise NotImplementedError


def test_answers_that_a_tokenizer_cannot_tell_apart() -> None:
    with pytest.raises(ConfigError, match=r"the same tokens for positive and negative; use task\.form=head$"):
        encode_answers(in_text("sst2"), Same())


def test_answers_leave_place_for_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "encode_answers", lambda *_: (np.zeros(4), np.zeros(9)))
    told = in_text("sst2"), TaskConfig(), Same()
    assert text.text_limits(*told, 16, stacks=2) == (16, 9)
    assert text.text_limits(*told, 16, stacks=1) == (8, 9)
    for limit, stacks in ((15, 1), (8, 2)):
        with pytest.raises(ConfigError, match=f"an answer has 9 tokens, .* of the {limit} tokens of a row"):
            text.text_limits(*told, limit, stacks)
