"""What says nothing is missing, in every format alike; and classes are called by their names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import load
from gpt1_ds.tasks.kinds import Classification
from gpt1_ds.tasks.reading import read_task
from gpt1_ds.tasks.registry import class_names

CELLS = {"null": None, "NaN": float("nan"), "empty": "", "blank": " \t", "no key": ...}  # what says nothing


@pytest.mark.parametrize("key", ["a", "b", "x"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "datasets"])
def test_a_missing_value_is_one_in_every_reader(kind: str, cell: str, key: str, tmp_path: Path) -> None:
    """The row is refused with the same words, or left out and counted; no text `nan`, no class `nan`."""
    whole = [{"a": f"text {n}", "b": "other", "x": n % 2} for n in range(4)]
    rows = [dict(row) for row in whole]
    rows[2][key] = CELLS[cell]
    rows = [{name: value for name, value in row.items() if value is not ...} for row in rows]
    words = ["task.name=table", "task.kind=classification", "task.columns={text: a, text2: b, label: x}"]
    path = str(tmp_path)
    if kind == "datasets":
        datasets = pytest.importorskip("datasets")
        values = [{**dict.fromkeys(row), **row, "x": str(row["x"])} for row in whole]
        values[2][key] = None if rows[2].get(key) != rows[2].get(key) or rows[2].get(key) is None else rows[2][key]
        both = {name: datasets.Dataset.from_list(one) for name, one in (("train", values), ("validation", values[:2]))}
        datasets.DatasetDict(both).save_to_disk(tmp_path / "saved")
        path = f"datasets:{tmp_path / 'saved'}"
    else:
        for name, some in (("train", rows), ("dev", rows[:2])):
            (tmp_path / f"{name}.{kind}").write_text(_table_text(kind, some))
        words += [f"task.train=[train.{kind}]", f"task.dev=[dev.{kind}]"]
    config = load([], [*words, f"task.path={path}"]).task
    assert config is not None
    with pytest.raises(DataError) as refused:
        read_task(config)
    assert refused.value.problems[0].endswith(f": {key} is missing"), refused.value
    skipped = read_task(replace(config, bad_rows="skip"))
    assert [one.texts[0] for one in skipped.splits["train"]] == ["text 0", "text 1", "text 3"]
    assert skipped.task.labels == ("0", "1")
    assert "1 bad rows are left out" in skipped.notes[0]


def _table_text(kind: str, rows: list[dict[str, Any]]) -> str:
    if kind == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "json":
        return json.dumps(rows)
    cells = [[row.get(name, "") for name in ("a", "b", "x")] for row in rows]
    says = lambda value: "" if value is None or value != value else str(value)  # noqa: E731 - as pandas writes it
    return "a,b,x\n" + "".join(",".join(map(says, row)) + "\n" for row in cells)


def test_a_key_that_the_first_record_lacks_is_a_column(tmp_path: Path) -> None:
    rows = '{"t": "a"}\n{"t": "b", "x": 1}\n{"t": "c", "x": 0}\n'
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text(rows)
    words = ["task.name=table", "task.kind=classification", "task.columns={text: t, label: x}", "task.bad_rows=skip"]
    config = load([], [*words, f"task.path={tmp_path}", "task.train=[train.jsonl]", "task.dev=[dev.jsonl]"]).task
    assert config is not None
    assert [one.texts[0] for one in read_task(config).splits["train"]] == ["b", "c"]


def test_quoras_holes_stay(tmp_path: Path) -> None:
    """The official files have three questions without a text."""
    rows = "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\n1\ta\t\t0\n"
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(rows)
    config = load([], ["task.name=qqp", f"task.path={tmp_path}"]).task
    assert config is not None
    assert [one.texts for one in read_task(config).splits["train"]] == [("a", "b"), ("a", "")]


def test_classes_have_names_where_files_number_them() -> None:
    def names(name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        return class_names(Classification(name, "single", labels, ("accuracy",)))

    assert names("sst2", ("0", "1")) == ("negative", "positive")
    assert names("cola", ("0", "1")) == ("unacceptable", "acceptable")
    assert names("wnli", ("0", "1")) == ("not_entailment", "entailment")
    assert names("nli", ("entailment", "neutral", "contradiction")) == ("entailment", "neutral", "contradiction")
    assert names("table", ("0", "1")) == ("0", "1"), "its file says no more"
