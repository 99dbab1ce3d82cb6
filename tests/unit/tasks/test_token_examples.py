"""Files of spans and tags: SQuAD's JSON, tables, CoNLL's columns; and what is wrong with them, one line each."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gpt1_ds.tasks.hub_tables import with_names
from gpt1_ds.tasks.kinds import Span, Tagging
from gpt1_ds.tasks.lines import LineReader
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.rows import BadRowError
from tests.helpers.shared_data import shared_data
from tests.helpers.tasks import read, refused, section

CONTEXT = "  Anna met Bob.\nBob left. "
SPANS = ["task.name=table", "task.kind=span"]
TAGS = ["task.name=table", "task.kind=tagging"]


def squad(*questions: dict[str, object], context: str = CONTEXT) -> str:
    return json.dumps({"version": "2.0", "data": [{"title": "x", "paragraphs": [{"context": context,
                                                                               "qas": list(questions)}]}]})  # fmt: skip


def asked(identity: str, *answers: tuple[str, int], **more: object) -> dict[str, object]:
    told = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": f" who {identity}? ", "answers": told, **more}


def test_squad_files(tmp_path: Path) -> None:
    train = squad(asked("a", ("Anna", 2)), asked("b", is_impossible=True, plausible_answers=[]))
    data = read(tmp_path, "task.name=squad2", train_json=train, dev_json=squad(asked("c", ("Bob", 11), ("Bob.", 11))))
    assert isinstance(data.task, Span)
    assert data.task.has_unanswerable
    first, second = data.splits["train"]
    assert first.texts == ("who a?", CONTEXT)  # as it is written: places count from its first letter
    assert (first.answers, second.answers) == ((("Anna", 2),), ())
    assert data.splits["dev"][0].answers == (("Bob", 11), ("Bob.", 11))
    assert data.task.gold(data.splits["dev"]).tolist() == [("Bob", "Bob.")]


@pytest.mark.parametrize(
    "row",
    [
        {"answers": ["Bob"], "starts": [11]},
        {"answers": {"text": ["Bob"], "answer_start": [11]}},
        {"answers": ["Bob"]},  # its first place
        {"answers": "Bob", "answer_start": 11},
    ],
)
def test_tables_of_spans(row: dict[str, object], tmp_path: Path) -> None:
    line = json.dumps({"question": "who?", "context": CONTEXT, **row})
    data = read(tmp_path, *SPANS, "task.dev_fraction=0.5", train_jsonl=line + "\n" + line.replace("Anna", "Mary"))
    (one,) = data.splits["train"]
    assert one.answers == (("Bob", 11),)


@pytest.mark.parametrize(
    "row",
    [
        {"answers": []},
        {"answers": {"text": [], "answer_start": []}},
        {"answers": ["Bob"], "is_impossible": True},  # plausible, and wrong
        {"is_impossible": True},
    ],
)
def test_questions_of_tables_without_an_answer(row: dict[str, object], tmp_path: Path) -> None:
    rows = [{"answers": ["Bob"], "is_impossible": False}, row]
    lines = "\n".join(json.dumps({"question": "who?", "context": CONTEXT, **one}) for one in rows)
    data = read(tmp_path, *SPANS, train_jsonl=lines, dev_jsonl=lines)
    assert [one.answers for one in data.splits["train"]] == [(("Bob", 11),), ()]
    assert isinstance(data.task, Span)
    assert data.task.has_unanswerable


def test_a_cell_says_that_there_is_no_answer(tmp_path: Path) -> None:
    cells = "question,context,answers,is_impossible\nwho?,Bob sleeps.,Bob,False\nwhy?,Bob sleeps.,,True\n"
    data = read(tmp_path, *SPANS, train_csv=cells, dev_csv=cells)
    assert [one.answers for one in data.splits["train"]] == [(("Bob", 0),), ()]


def test_examples_of_one_paragraph_are_held_out_together(tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"q{n}", "context": f"Bob {n // 5}", "answers": ["Bob"]}) for n in range(20)]
    data = read(tmp_path, *SPANS, "task.dev_fraction=0.3", train_jsonl="\n".join(lines))
    sides = [{one.texts[1] for one in rows} for rows in data.splits.values()]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answers": ["Carl"]}, "answer Carl is not in the context"),
        ({"answers": ["Bob"], "starts": [3]}, "answer Bob is not at character 3 of the context"),
        ({"answers": ["Bob"], "starts": [-3]}, "answer Bob is not at character -3 of the context"),
        ({"answers": ["Bob"], "starts": ["x"]}, "answer_start=x is no number"),
        ({"answers": ["Bob", "Anna"], "starts": [11]}, "2 answers, but 1 places where they begin"),
        ({"answers": [7], "starts": [11]}, "answer 7 is no text"),
        ({"answers": [" "], "starts": [0]}, "is no text"),
        *(({"answers": nothing}, "answers is missing; [], or is_impossible=true") for nothing in (None, math.nan, " ")),
        ({"answers": ["Bob"], "starts": [math.inf]}, "answer_start=inf is no number"),
        ({"answers": ["Bob"], "context": ""}, "context is missing"),
        ({"answers": ["Bob"], "question": ""}, "question is missing"),
    ],
)
def test_bad_rows_of_spans(row: dict[str, object], problem: str, tmp_path: Path) -> None:
    line = json.dumps({"question": "who?", "context": CONTEXT, **row})
    first, *_ = refused(tmp_path, *SPANS, "task.dev_fraction=0.5", train_jsonl=line)
    assert first.startswith(f"{tmp_path}/train.jsonl line 1: ")
    assert problem in first


def test_damaged_squad_files(tmp_path: Path) -> None:
    first, *_ = refused(tmp_path, "task.name=squad", train_json='{"data": [{"paragraphs": 3}]}')
    assert "article 1: damaged (TypeError" in first
    first, *_ = refused(tmp_path, "task.name=squad", train_json=squad({"question": "who?", "answers": []}))
    assert "a question is damaged (KeyError: 'id')" in first
    assert "not readable as JSON" in refused(tmp_path, "task.name=squad", train_json="{")[0]


CONLL = "-DOCSTART- -X- O O\n\nAnna NNP I-NP B-per\r\nsleeps VBZ I-VP O\r\n\n\nin IN I-PP O\nRome NNP I-NP I-loc\n"


def test_columns_of_words_and_tags(tmp_path: Path) -> None:
    data = read(tmp_path, "task.name=conll2003", train_txt=CONLL, valid_txt=CONLL, test_txt="Anna\nsleeps\n")
    assert isinstance(data.task, Tagging)
    assert [(one.texts, one.tags) for one in data.splits["dev"]] == [
        (("Anna", "sleeps"), ("B-per", "O")),
        (("in", "Rome"), ("O", "I-loc")),
    ]
    assert data.task.labels == ("B-per", "I-loc", "O")
    assert [one.tags for one in data.splits["test"]] == [()]
    assert data.notes == ("conll2003: 2 entities begin with I- and no B-; they count as entities, as in conlleval",)


def test_lists_of_words_and_tags(tmp_path: Path) -> None:
    rows = [{"tokens": ["New York", "is"], "tags": ["B-loc", "O"]}, {"tokens": ["I"], "tags": ["O"]}]
    text = "\n".join(map(json.dumps, rows))
    data = read(tmp_path, *TAGS, train_jsonl=text, dev_jsonl=text)
    assert data.splits["train"][0].texts == ("New York", "is")
    assert data.task.metrics == ("entity_f1", "accuracy")


@pytest.mark.parametrize(
    ("train", "dev", "problem"),
    [
        ("a\tO\nb\n", "a\tO\n", "line 1: its lines have 1 to 2 columns; each is to have as many"),
        ("a\tO\n\nb\tB-x\n", "a\tB-y\n", "dev: tag B-y is none of those of train"),
        ("a\tO\n", "a\tO\n", "every tag is O; tagging needs two tags or more"),
        ("a\tNOUN\nb\tVERB\n", "a\tNOUN\n", "set task.metric=accuracy"),
        ("a\tB-x y\nb\tO\n", "a\tO\n", "the tag B-x y holds a blank, which stands between the tags of a prediction"),
        ("", "a\tO\n", "is empty"),
    ],
)
def test_bad_files_of_tags(train: str, dev: str, problem: str, tmp_path: Path) -> None:
    assert problem in refused(tmp_path, *TAGS, train_tsv=train, dev_tsv=dev)[0]


def test_unequal_numbers_of_words_and_tags(tmp_path: Path) -> None:
    line = json.dumps({"tokens": ["a", "b"], "tags": ["O"]})
    assert "line 1: 2 words, but 1 tags" in refused(tmp_path, *TAGS, "task.dev_fraction=0.5", train_jsonl=line)[0]


def test_real_files() -> None:
    squad_like = read_task(section(shared_data("xquad"), "task.name=squad"))
    assert {split: len(rows) for split, rows in squad_like.splits.items()} == {"train": 786, "dev": 139}
    names = read_task(section(shared_data("wnut17"), *TAGS))
    assert {split: len(rows) for split, rows in names.splits.items()} == {"train": 3394, "dev": 1009}
    speech = read_task(section(shared_data("ewt_pos"), "task.name=pos"))
    assert {split: len(rows) for split, rows in speech.splits.items()} == {"train": 12544, "dev": 2001}
    assert len(speech.task.labels) == 17


def test_unknown_numbers_of_the_hub_are_no_tags() -> None:
    classes = {"tags": ["O", "B-x"], "label": ["no", "yes"]}
    assert with_names({"tags": [1, 0, -1], "label": -1}, classes) == {"tags": ["B-x", "O", -1], "label": -1}


@pytest.mark.parametrize("word", [None, float("nan"), "", " ", ["a"], {"a": 1}, "a\tb"])
@pytest.mark.parametrize("key", ["tokens", "tags"])
def test_what_is_no_word_is_none(key: str, word: object, tmp_path: Path) -> None:
    """Neither `None` nor `nan` becomes a word or a class, in training or where it is to be tagged."""
    row = {"tokens": ["a", "b"], "tags": ["O", "B-x"]}
    good, line = json.dumps(row), json.dumps({**row, key: ["a", word]})
    first, *_ = refused(tmp_path, *TAGS, train_jsonl=f"{good}\n{line}", dev_jsonl=good)
    assert f"train.jsonl line 2: {key} " in first
    data = read(tmp_path, *TAGS, "task.bad_rows=skip", train_jsonl=f"{good}\n{line}", dev_jsonl=good)
    assert data.task.labels == ("B-x", "O")
    assert [one.texts for one in data.splits["train"]] == [("a", "b")]
    if key == "tokens":
        reader = LineReader(data.task, section(tmp_path, *TAGS), "jsonl")
        with pytest.raises(BadRowError, match="tokens "):
            reader.example(line.encode(), 1)
