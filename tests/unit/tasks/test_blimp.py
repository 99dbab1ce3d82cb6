"""Files of BLiMP: JSON lines with a good and a bad sentence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.blimp import known_words, read_pairs
from tests.helpers.shared_data import shared_data


def line(number: int, paradigm: str = "p", phenomenon: str = "binding") -> str:
    pair = {"sentence_good": f" {paradigm} {number} is so. ", "sentence_bad": f"{paradigm} {number} are so."}
    return json.dumps({**pair, "linguistics_term": phenomenon, "UID": paradigm, "pairID": str(number)}) + "\n"


def test_pairs_and_their_phenomena(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(line(0, "q", "s-selection"))
    (tmp_path / "a.jsonl").write_text(line(0) + line(1))
    first, second, third = read_pairs(tmp_path)
    assert (first.id, first.texts, first.label) == ("p 0", ("p 0 is so.", "p 0 are so."), "0")
    assert [one.group for one in (first, second, third)] == ["binding", "binding", "argument_structure"]
    assert read_pairs(tmp_path / "a.jsonl") == (first, second)


def test_a_limit_takes_alike_of_every_paradigm(tmp_path: Path) -> None:
    for paradigm in "pqr":
        (tmp_path / f"{paradigm}.jsonl").write_text("".join(line(number, paradigm) for number in range(9)))
    found = read_pairs(tmp_path, 14)
    assert Counter(one.id[0] for one in found) == dict.fromkeys("pqr", 4)
    assert found == read_pairs(tmp_path, 12), "the same ones each time"
    with pytest.raises(DataError, match="limit=2 of blimp leaves paradigms out; use 3 or more"):
        read_pairs(tmp_path, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (line(0) + "{", "a.jsonl line 2: not JSON"),
        (line(0) + line(1).replace("sentence_bad", "bad"), "a.jsonl line 2: sentence_bad is no text; fix this line"),
        (line(0).replace('"binding"', "3"), "line 1: linguistics_term is no text"),
        ("\n", "a.jsonl: is empty"),
    ],
)
def test_what_is_no_pair(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        read_pairs(tmp_path)


def test_a_folder_without_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no .jsonl file; name the folder that holds those of BLiMP"):
        read_pairs(tmp_path)


def test_the_published_files() -> None:
    found = read_pairs(shared_data("blimp"), 6700)
    assert set(Counter(one.id.split()[0] for one in found).values()) == {100}
    paradigms = Counter(one.group for one in found[::100])
    assert paradigms == {
        **{"anaphor_agreement": 2, "argument_structure": 9, "binding": 7, "control_raising": 5, "ellipsis": 2},
        **{"determiner_noun_agreement": 8, "filler_gap_dependency": 7, "irregular_forms": 2, "island_effects": 8},
        **{"npi_licensing": 7, "quantifiers": 4, "subject_verb_agreement": 6},
    }


def test_pairs_of_known_words(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It's IS so.\nit\u2019s it's is are so it it once\n")
    assert known_words(text) == known_words(tmp_path) == {"it's", "is", "so", "it"}
    (tmp_path / "a.jsonl").write_text(line(0) + line(1, "it"))
    (one,) = read_pairs(tmp_path / "a.jsonl", words=known_words(text) | {"are"})
    assert one.texts == ("it 1 is so.", "it 1 are so."), "p is not known, numbers are no words"
    with pytest.raises(DataError, match="known_words knows the words of no pair"):
        read_pairs(tmp_path / "a.jsonl", words=frozenset({"is"}))
    with pytest.raises(DataError, match=r"holds no \.txt file"):
        known_words(tmp_path / "nowhere")
