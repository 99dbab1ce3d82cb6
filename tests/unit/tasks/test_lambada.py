"""Passages whose last word is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.lambada import FILE, read_passages
from tests.helpers.shared_data import shared_data


def write(folder: Path, *rows: object) -> Path:
    (folder / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_last_blank_cuts(tmp_path: Path) -> None:
    folder = write(tmp_path, {"text": "The end of\n\nPower went out "}, {"text": "one “two"})
    found = read_passages(folder)
    assert [example.texts for example in found] == [("The end of\n\nPower went", "out"), ("one", "“two")]
    assert len(read_passages(folder / FILE, 1)) == 1


@pytest.mark.parametrize("row", [{"text": "word"}, {"text": 3}, {"words": "a b"}, ["a b"], {"text": " "}])
def test_what_is_no_passage_names_its_line(row: object, tmp_path: Path) -> None:
    with pytest.raises(DataError) as told:
        read_passages(write(tmp_path, {"text": "a b"}, row))
    assert FILE in str(told.value)
    assert "2" in str(told.value)
    with pytest.raises(DataError, match=f"holds no {FILE}"):
        read_passages(tmp_path / "away")


def test_openais_file() -> None:
    found = read_passages(shared_data("lambada"))
    assert len(found) == 5153
    assert found[0].texts[1] == "signs"
