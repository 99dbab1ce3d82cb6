"""Early mistakes in a task's section or files: one clear line each, by file and line where a row is wrong."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.tasks.reading import read_task
from tests.helpers.tasks import DEV, ROWS, TABLE, read, refused, section


@pytest.mark.parametrize(
    ("words", "files", "line"),
    [
        ([], {"dev_csv": DEV}, "holds none of train.csv; or train.tsv; or train.jsonl; or train.json"),
        ([], {"train_csv": ROWS}, "has no dev file; name one with task.dev, or hold out task.dev_fraction=0.1"),
        ([], {"train_csv": ROWS, "dev_csv": ""}, "dev.csv: is empty"),
        (
            [],
            {"train_csv": ROWS, "dev_csv": "txt,label\nx,yes\n"},
            "dev.csv: has no column text; its columns are txt, label",
        ),
        ([], {"train_csv": ROWS, "dev_csv": "text\nx\n"}, "dev.csv: has no column label"),
        ([], {"train_csv": ROWS, "dev_csv": "text,label\nx,maybe\n"}, "dev: label maybe never occurs in train"),
        ([], {"train_csv": "text,label\nx,yes\nz,yes\n", "dev_csv": DEV}, "dev: label no never occurs in train"),
        ([], {"train_csv": "text,label\nx,1\nz,1\n", "dev_csv": "text,label\nx,1\n"}, "every label is 1;"),
        (
            [],
            {"train_csv": "text,label\nx,1\nz,2.5\n", "dev_csv": "text,label\nx,3.8\n"},
            "dev: label 3.8 never occurs in train; task.kind=regression learns scores",
        ),
        (["task.train=[a.csv]"], {"dev_csv": DEV}, "a.csv: no such file"),
        (["task.train=[dev.csv]", "task.dev=[dev.csv]"], {"dev_csv": DEV}, "is named for two splits"),
        (["task.dev_fraction=0.5"], {"train_csv": "text,label\nx,yes\n"}, "1 examples are too few"),
    ],
)
def test_early_mistakes(words: list[str], files: dict[str, str], line: str, tmp_path: Path) -> None:
    (found,) = refused(tmp_path, *TABLE, *words, **files)
    assert line in found


SIMILARITY = ["task.kind=similarity", "task.columns.text2=text2"]


@pytest.mark.parametrize(
    ("labels", "words", "note"),
    [
        (
            "0 .5 1 1.5 2 3",
            [],
            "each of the numbers .5, 0, 1, 1.5, 2, ... is a class of its own; task.kind=regression ",
        ),
        ("0 1 2", SIMILARITY, "each of the numbers 0, 1, 2 is a class of its own; task.kind=regression learns scores"),
        ("0 1", ["task.kind=regression"], "every score is 0 or 1; task.kind=classification learns classes"),
        ("0 1 2", [], ""),
        ("0.0 1.0", [], ""),
        ("1.5 none", [], ""),
        ("0 1", SIMILARITY, ""),
        ("0 1 2", ["task.kind=regression"], ""),
    ],
)
def test_scores_in_the_place_of_classes(labels: str, words: list[str], note: str, tmp_path: Path) -> None:
    rows = "text,text2,label\n" + "".join(f"text {n},other,{label}\n" for n, label in enumerate(labels.split() * 2))
    notes = read(tmp_path, *TABLE, *words, train_csv=rows, dev_csv=rows).notes
    assert len(notes) == bool(note), notes
    assert all(one.startswith(f"table: {note}") for one in notes)


def test_ids_that_are_not_unique_are_refused_before_training(tmp_path: Path) -> None:
    files = {"train_csv": ROWS, "dev_csv": "text,label,name\nx,yes,a\ny,no,a\nz,no,b\n"}
    (line,) = refused(tmp_path, *TABLE, "task.columns.id=name", **files)
    assert "dev: 2 rows have the id a; set task.columns.id to a column of unique ones" in line
    named = read(tmp_path, *TABLE, "task.columns.id=none", **files)
    assert [one.id for one in named.splits["dev"]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("label", "name", "line"),
    [
        ("yes", "a\\tb", r"dev: the id a\tb holds a tab or a line end; set task.columns.id to a column of unique ones"),
        ("yes", "a\\nb", r"dev: the id a\nb holds a tab or a line end"),
        ("y\\tes", "a", r"the label y\tes holds a letter that cannot be printed; rename it"),
        (
            "y\\u00a0es",
            "a",
            r"the label y\xa0es holds a letter that cannot be printed",
        ),  # no checkpoint is read with it
    ],
)
def test_names_that_no_table_holds_are_refused_before_training(
    label: str, name: str, line: str, tmp_path: Path
) -> None:
    row = '{{"text": "x", "label": "{}", "name": "{}"}}\n'.format
    rows = row(label, name) + row("no", "b")
    (found,) = refused(tmp_path, *TABLE, "task.columns.id=name", train_jsonl=rows, dev_jsonl=rows)
    assert line in found
    if label == "yes":
        named = read(tmp_path, *TABLE, "task.columns.id=none", train_jsonl=rows, dev_jsonl=rows)
        assert [one.id for one in named.splits["dev"]] == ["0", "1"]


def test_labels_that_only_look_like_numbers_are_words(tmp_path: Path) -> None:
    rows = "text,label\nx,1\nz,--1\n"
    assert read(tmp_path, *TABLE, train_csv=rows, dev_csv=rows).task.labels == ("--1", "1")


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    """Also the rows that are left out, so that no two have one number."""
    rows = "sentence1\tsentence2\tgold_label\n{}\ta\tneutral\n{}\tb\t-\n"
    for name in ("one", "two"):
        (tmp_path / f"{name}.tsv").write_text(rows.format(name, name))
    (tmp_path / "train.tsv").write_text(rows.format("train", "train").replace("-", "entailment"))
    words = ["task.name=snli", "task.train=[train.tsv]", "task.dev=[one.tsv,two.tsv]"]
    assert [one.id for one in read(tmp_path, *words).splits["dev"]] == ["0", "2"]


def test_a_file_of_train_is_never_dev_as_well(tmp_path: Path) -> None:
    rows = "id,context,question,answer0,answer1,answer2,answer3,label\n"
    rows += "".join(f"{n},c{n},q,a,b,c,d,{n % 4}\n" for n in range(20))
    words = ["task.name=cosmosqa", "task.train=[valid.csv]"]
    (line,) = refused(tmp_path, *words, valid_csv=rows)
    assert "has no dev file" in line
    assert len(read(tmp_path, *words, "task.dev_fraction=0.2").splits["dev"]) == 4


def test_bad_rows_are_named_by_file_and_line(tmp_path: Path) -> None:
    rows = "id,context,question,answer0,answer1,answer2,answer3,label\n"
    rows += "0,c,q,a,b,c,d,1\n1,c,q,a,b,c,d,4\n2,c,q,a,,c,d,1\n3,c\n"
    found = refused(tmp_path, "task.name=cosmosqa", train_csv=rows, valid_csv=rows)
    assert [line.replace(str(tmp_path), "") for line in found] == [
        "/train.csv line 3: label=4 is none of 0, 1, 2, 3",
        "/train.csv line 4: answer1 is missing",
        "/train.csv line 5: 2 columns where 8 are expected",
        "/valid.csv line 3: label=4 is none of 0, 1, 2, 3",
        "/valid.csv line 4: answer1 is missing",
        "and 1 more",
        "6 rows cannot be read; fix them, or leave them out with task.bad_rows=skip",
    ]
    data = read(tmp_path, "task.name=cosmosqa", "task.bad_rows=skip")
    assert len(data.splits["train"]) == len(data.splits["dev"]) == 1
    assert "6 bad rows are left out; the first is " in data.notes[0]


def test_the_number_of_choices_is_that_of_the_first_row(tmp_path: Path) -> None:
    words = ["task.name=table", "task.kind=choice", "task.columns={text: q, label: x, choices: [o]}"]
    lines = (
        '{"q": "a", "o": ["1", "2"], "x": 0}\n{"q": "a", "o": ["1", "2", "3"], "x": 0}\n{"q": "a", "o": "12", "x": 0}\n'
    )
    found = refused(tmp_path, *words, train_jsonl=lines, dev_jsonl=lines[:36])
    assert found[0].endswith("line 2: 3 choices where 2 are expected")
    assert found[1].endswith("line 3: o is no list of choices")


@pytest.mark.parametrize("label", [["joy"], ["joy", "anger"], [], {"0": "joy"}])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_list_of_labels_is_no_class(kind: str, label: object, tmp_path: Path) -> None:
    """Texts with several labels each: their lists would be classes with names like `['joy', 'anger']`."""
    rows = [{"text": f"text {n}", "label": n} for n in range(2)]
    good, line = "".join(json.dumps(row) + "\n" for row in rows), json.dumps({"text": "both", "label": label})
    words = [*TABLE, f"task.kind={kind}"]
    first, *_ = refused(tmp_path, *words, train_jsonl=good + line, dev_jsonl=good)
    assert first == f"{tmp_path}/train.jsonl line 3: label is a list or an object; a text has one label here"
    data = read(tmp_path, *words, "task.bad_rows=skip", train_jsonl=good + line, dev_jsonl=good)
    assert data.task.labels == (("0", "1") if kind == "classification" else ())


def test_scores_and_texts_that_are_none(tmp_path: Path) -> None:
    rows = "sentence1\tsentence2\tscore\na\tb\t5.1\na\tb\tnan\n \t \t1\na\tb\tx\na\tb\t\na\tb\t5\n"
    found = refused(tmp_path, "task.name=stsb", train_tsv=rows, dev_tsv="sentence1\tsentence2\tscore\na\tb\t1\n")
    assert [line.partition(": ")[2] for line in found[:-1]] == [
        "score=5.1 is no number from 0 to 5 (task.score_range)",
        "score=nan is no number from 0 to 5 (task.score_range)",
        "sentence1 is missing",
        "score=x is no number from 0 to 5 (task.score_range)",
        "score is missing",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["task.name=colla"], "task.name=colla is not known; choose cola, sst2,"),
        (["task.name=cola", "task.metric=pearson"], "task.metric=pearson does not fit a task of kind classification"),
        (["task.name=cola"], "no such folder; set task.path"),
    ],
)
def test_sections_that_do_not_fit(words: list[str], line: str, tmp_path: Path) -> None:
    assert line in refused(tmp_path / "nowhere", *words)[0]


MUTANTS = {
    "train.tsv": "sentence1\tsentence2\tlabel\n" + 'a "b\tc\tentailment\nd\te f\tnot_entailment\n' * 3,
    "train.csv": "sentence1,sentence2,label\n" + '"a ""b""",c,entailment\nd,"e, f",not_entailment\n' * 3,
    "train.jsonl": '{"sentence1": "a", "sentence2": "b", "label": "entailment"}\n' * 4,
    "train.json": '[{"sentence1": "a", "sentence2": "b", "label": "entailment"}, {"sentence1": "a", "label": null}]',
}


DEBRIS = [
    b"\0",
    b"\xff",
    b'"',
    b"\t",
    b"\n",
    b"\r",
    b",",
    b"{",
    b"]",
    b"\\",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"9" * 5000,
    b"[" * 2000,
]


@pytest.mark.parametrize("name", MUTANTS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    config = section(tmp_path, "task.name=rte", f"task.train=[{name}]", "task.dev_fraction=0.3")
    for _ in range(150):
        content = bytearray(MUTANTS[name].encode())
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(content))
            content[at : at + draw.randrange(3)] = draw.choice(DEBRIS)
        (tmp_path / name).write_bytes(content)
        for line in answer(config):
            assert "\n" not in line, line
            assert len(line) < 600 + 2 * len(str(tmp_path)), line


def answer(config: TaskConfig) -> tuple[str, ...]:
    try:
        return read_task(config).notes
    except UserError as error:
        return error.problems


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["task.path=x"], "task.name is empty"),
        (["task.name=cola"], "task.path is empty"),
        (["task.name=cola", "task.path=x", "task.kind=choice"], "task.kind and task.labels describe task.name=table"),
        (["task.name=table", "task.path=x"], "task.kind is needed"),
        (["task.name=cola", "task.path=x", "task.dev_fraction=1"], "task.dev_fraction=1.0 must be in [0, 1)"),
        (["task.name=cola", "task.path=x", "task.transfer_layers=-2"], "task.transfer_layers=-2"),
        (["task.name=cola", "task.path=x", "task.max_length=7"], "use at least 8"),
        (["task.name=cola", "task.path=x", "task.score_range=[5,0]"], "the lower one first"),
        (["task.name=cola", "task.path=x", "task.train=[a,a]"], "names something twice"),
        ([*TABLE, "task.path=x", "task.columns.choices=[a,b]"], "choice needs it, no other has it"),
        ([*TABLE, "task.path=x", "task.columns.text2=text"], "names one column twice"),
        ([*TABLE, "task.path=x", "task.kind=similarity"], "task.columns.text2 is empty"),
        ([*TABLE, "task.path=x", "task.labels=[a]"], "is one class only"),
    ],
)
def test_sections_with_problems(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        load([], words)
