"""Texts to write: files, sequences, scores by the libraries themselves, controls; what is refused, one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import ModelConfig, TaskConfig, load
from gpt1_ds.config.task import DecodingConfig
from gpt1_ds.data.tokenizers.base import most_beams
from gpt1_ds.objectives.source_target import SourceToTarget, Texts
from gpt1_ds.tasks.batches import build_batch
from gpt1_ds.tasks.comparison import estimate
from gpt1_ds.tasks.encoding import fitted
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Generation
from gpt1_ds.tasks.metrics import control_scores, measure, score_examples
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.sequences import encode_examples
from gpt1_ds.tasks.target_rows import TargetRows
from gpt1_ds.tasks.text import text_limits
from gpt1_ds.tasks.token_metrics import objects
from gpt1_ds.tasks.written_text import signature
from tests.helpers.tasks import read, refused
from tests.helpers.words import WordTokenizer

WRITES = ["task.name=table", "task.kind=generation"]
LINES = ['{"source": "a b", "target": "x y"}', '{"source": "c", "targets": 1, "target": ["z", "other"]}']
TABLE = "\n".join(LINES) + "\n"
WORDS = WordTokenizer()
TASK = Generation("w", "single", (), ("bleu",), prefix="say ")
EXAMPLES = (
    Example("0", ("a b c",), targets=("x y",)),
    Example("1", ("d",), targets=("z",)),
    Example("2", ("e f",)),
)


def encoded(limit: int = 16, answer: int = 8, examples: tuple[Example, ...] = EXAMPLES, **keys: Any) -> TargetRows:
    rows = encode_examples(TASK, examples, WORDS, TaskConfig(**keys), limit, answer)
    assert isinstance(rows, TargetRows)
    return rows


def test_rows_of_a_table(tmp_path: Path) -> None:
    data = read(tmp_path, *WRITES, train_jsonl=TABLE, dev_jsonl=TABLE, test_jsonl='{"source": "only this"}\n')
    assert isinstance(data.task, Generation)
    first, second = data.splits["train"]
    assert (first.texts, first.targets, second.targets) == (("a b",), ("x y",), ("z", "other"))
    assert data.splits["test"][0].targets == ()
    assert data.task.metrics == ("bleu", "rouge1", "rouge2", "rougeLsum", "exact_match", "f1")


def test_lines_of_two_files(tmp_path: Path) -> None:
    words = ["task.name=translation", "task.dev=[valid.en]"]
    files = {"train_en": "one\ntwo\n", "train_de": "eins\nzwei\n", "valid_en": "x\n", "valid_de": "y\n"}
    data = read(tmp_path, *words, **files, test_en="alone\n")
    assert [(one.id, *one.texts, *one.targets) for one in data.splits["train"]] == [
        ("0", "one", "eins"), ("1", "two", "zwei"),
    ]  # fmt: skip
    assert data.splits["dev"][0].targets == ("y",)
    assert data.splits["test"][0].targets == ()


def test_squad_in_words(tmp_path: Path) -> None:
    answers = [{"text": text, "answer_start": 0} for text in ("Bob", "Bob .")]
    asked = {"id": "q1", "question": "who ?", "answers": answers}
    squad = json.dumps({"data": [{"paragraphs": [{"context": "Bob left .", "qas": [asked]}]}]})
    data = read(tmp_path, "task.name=squad_text", train_json=squad, dev_json=squad)
    (example,) = data.splits["train"]
    task = fitted(data.task, TaskConfig(form="text", prefix="now "), ModelConfig())
    assert task.source(example) == "now question: who ? context: Bob left ."
    assert example.targets == ("Bob", "Bob .")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("translation", {"en": "a"}),
        ("summarization", {"article": "a"}),
        ("squad_text", {"question": "a", "context": "b"}),
    ],
)
def test_presets_read_what_is_fetched(name: str, source: dict[str, str], tmp_path: Path) -> None:
    target = {
        "translation": {"de": "x"},
        "summarization": {"highlights": "x"},
        "squad_text": {"answers": {"text": ["x"]}},
    }
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({**source, **target[name]}) + "\n")
    task = load([f"finetune/{name}"], [f"task.path={tmp_path}"]).task
    assert task is not None
    assert read_task(task).splits["train"][0].targets == ("x",)


@pytest.mark.parametrize(
    ("words", "files", "line"),
    [
        ([], {"train_jsonl": '{"source": "a", "target": ""}\n'}, "train.jsonl line 1: target is missing"),
        ([], {"train_jsonl": '{"source": " ", "target": "x"}\n'}, "train.jsonl line 1: source is missing"),
        ([], {"train_jsonl": '{"source": "a", "target": ["x", 3, {}]}\n'}, "line 1: target is no text"),
        ([], {"train_jsonl": '{"source": "a", "said": "x"}\n'}, "has no column target; its columns are source, said"),
        (["task.columns={text: en, label: de}"], {"train_en": "a\nb\n", "train_de": "x\n"},
         "train.en has 2 lines, train.de 1; line n of one is to fit line n"),
        (["task.columns={text: en, label: de}"], {"train_en": "a\n"},
         "train.de: no such file; train.en and train.de are to lie side by side"),
        (["task.columns={text: en, label: de}"], {"train_en": "a\n\n", "train_de": "x\ny\n"}, "line 2: en is missing"),
        (["task.metric=accuracy"], {"train_jsonl": TABLE}, "task.metric=accuracy does not fit a task of kind g"),
    ],
)  # fmt: skip
def test_bad_files(words: list[str], files: dict[str, str], line: str, tmp_path: Path) -> None:
    assert line in refused(tmp_path, *WRITES, *words, "task.dev_fraction=0.5", **files)[0]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("task.target_length=0", "task.target_length=0 must be at least 1"),
        ("task.decoding.beams=0", "task.decoding.beams=0 must be at least 1"),
        (
            "task.decoding={beams: 2, length_alpha: 400}",
            "task.decoding.length_alpha=400.0 must be a number from -40 to 40; 0 compares",
        ),
        ("task.decoding.length_alpha=0.6", "task.decoding.beams=1 must be 2 or more for length_penalty"),
        ("task.decoding={min_tokens: 9}", "task.decoding.min_tokens=9 must be 0 or more, and below"),
    ],
)
def test_bad_keys(word: str, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        load([], ["task.name=table", "task.kind=generation", "task.path=x", "task.target_length=8", word])


def test_sequences() -> None:
    rows, eod = encoded(), WORDS.eod_id
    shown = [rows.source_of(number) for number in range(3)]
    assert [len(one) for one in shown] == [5, 3, 4], "say, the words, the end"
    assert {one[-1] for one in shown} == {eod}
    targets_BT, target_B = rows.targets_of(np.array([1, 0, 2, -1]))
    assert target_B.tolist() == [2, 3, 0, 0]
    assert (targets_BT[0, 1], targets_BT[1, 2]) == (eod, eod)
    assert rows.labels.tolist() == [0, 0, -1]
    other = encoded(examples=(replace(EXAMPLES[0], targets=("y x",)), *EXAMPLES[1:]))
    assert other.data_hash != rows.data_hash, "other targets are other data"


def test_what_is_too_long_is_cut_or_refused() -> None:
    rows = encoded(limit=4, answer=2)
    assert (rows.truncated, rows.cut_targets) == (1, 1)
    targets_BT, _ = rows.targets_of(np.array([0]))
    assert rows.source_of(0)[-1] == WORDS.eod_id != targets_BT[0, -1], "a cut target has no end"
    with pytest.raises(DataError, match=r"^task\.too_long=raise: 1 of 3 targets are longer than 2 tokens"):
        encoded(limit=4, answer=2, too_long="raise")
    with pytest.raises(DataError, match=r"^task\.too_long=raise: 1 of 3 examples are longer than 4 tokens"):
        encoded(limit=4, answer=8, too_long="raise")


@pytest.mark.parametrize(("stacks", "limits"), [(2, (16, 6)), (1, (11, 6))])
def test_source_and_target_share_a_row(stacks: int, limits: tuple[int, int]) -> None:
    settings = TaskConfig(target_length=6)
    assert text_limits(TASK, settings, WORDS, 16, stacks) == limits
    assert text_limits(TASK, TaskConfig(), WORDS, 16, stacks) == ((16, 16) if stacks == 2 else (9, 8))
    with pytest.raises(ConfigError, match=r"^task\.target_length=17 leaves too few of the 16 tokens of a row"):
        text_limits(TASK, TaskConfig(target_length=17), WORDS, 16, stacks)
    text_limits(TASK, TaskConfig(decoding=DecodingConfig(beams=most_beams(WORDS))), WORDS, 16, stacks)
    many = TaskConfig(decoding=DecodingConfig(beams=most_beams(WORDS) + 1))
    with pytest.raises(ConfigError, match=r"^task\.decoding\.beams=499999 must be at most 499998, half of the tokens"):
        text_limits(TASK, many, WORDS, 16, stacks)


@pytest.mark.parametrize("stacks", [1, 2])
def test_the_loss_counts_targets_alone_and_each_token_alike(stacks: int) -> None:
    rows = encoded()
    batch = build_batch(rows, np.array([0, 1, 2, -1]))
    assert batch.counted == 5
    assert batch.target_tokens is not None
    assert batch.target_lengths is not None
    objective = SourceToTarget(stacks, pad=0, limit=16, multiple=4)
    texts = Texts(batch.tokens[:, 0].astype(np.int64), batch.lengths[:, 0], batch.target_tokens, batch.target_lengths)
    positions = objective.positions(batch.lengths[:, 0], batch.target_lengths)
    assert positions == ((8, 4) if stacks == 2 else (8,))
    labels_TB, weights_TB = objective.batch(texts, positions, np.full(4, 1 / 5)).labels
    assert weights_TB.sum() == pytest.approx(1)
    counted = {tuple(labels_TB[weights_TB[:, row] > 0, row].tolist()) for row in range(2)}
    assert counted == {tuple(batch.target_tokens[row, : batch.target_lengths[row]].tolist()) for row in range(2)}
    assert not weights_TB[:, 2:].any()


GOLD = [("a cat sat on the mat",), ("the dog runs home", "a dog ran"), ("no",), ("one two three four five",)]
SAID = ["the cat sat on the mat", "a dog runs", "no", "one two three"]


def test_bleu_is_sacrebleus() -> None:
    width = max(map(len, GOLD))
    references = [[one[n] if n < len(one) else None for one in GOLD] for n in range(width)]
    whole = BLEU()
    expected = whole.corpus_score(SAID, references).score / 100
    assert measure("bleu", objects(GOLD), objects(SAID)) == pytest.approx(expected, abs=1e-12)
    assert 0 < expected < 1
    assert signature(map(len, GOLD)) == str(whole.get_signature())
    assert "nrefs:1|" in signature([1, 1])
    assert measure("bleu", objects(GOLD[:1]), objects([""])) == 0.0


@pytest.mark.parametrize("metric", ["rouge1", "rouge2", "rougeLsum"])
def test_rouge_is_the_librarys(metric: str) -> None:
    library = RougeScorer([metric], use_stemmer=True)
    best = [
        max(library.score(one, said)[metric].fmeasure for one in right) for right, said in zip(GOLD, SAID, strict=True)
    ]
    assert measure(metric, objects(GOLD), objects(SAID)) == pytest.approx(np.mean(best))


@pytest.mark.parametrize("metric", ["bleu", "rouge1", "exact_match", "f1"])
def test_an_interval_leaves_examples_out(metric: str) -> None:
    gold, found = objects(GOLD), objects(SAID)
    one = estimate(metric, gold, [found])
    assert one is not None
    assert one.mean == pytest.approx(measure(metric, gold, found))
    (left,) = one.without_block.values()
    for number, value in enumerate(left):
        assert value == pytest.approx(measure(metric, np.delete(gold, number), np.delete(found, number)))


def test_controls_and_scores() -> None:
    text = "One. Two! Three? Four."
    rows = (Example("0", (text,), targets=("One. Two! Three?",)),)
    task = Generation("w", "single", (), ("exact_match", "rouge1"))
    found = {
        (one.control, one.metric): one.value for one in control_scores(task, task.controls({"train": (), "dev": rows}))
    }
    assert found["lead of the source", "exact_match"] == 1.0
    assert found["source copied", "exact_match"] == 0.0
    assert 0.8 < (found["source copied", "rouge1"] or 0) < 1
    said: Callable[[str], Any] = lambda text: score_examples(task, rows, objects([text])).values  # noqa: E731
    assert said("one two three") == {"exact_match": 1.0, "rouge1": 1.0}
