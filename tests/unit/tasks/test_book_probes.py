"""Questions about which sentence of a book comes next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.book_probes import BEFORE, PASSAGE, read_books, read_repeats
from tests.helpers.shared_data import shared_data


def write_book(file: Path, paragraphs: int = 30, ending: str = ".") -> Path:
    """Paragraphs of four sentences, each of which says where it stands."""
    told = [
        " ".join(f"Here begins number {name} {part} of all{ending}" for part in range(4))
        for name in range(100, 100 + paragraphs)
    ]
    file.write_text("\ufeff" + "\n\n".join(told))
    return file


def place(sentence: str) -> int:
    *_, paragraph, part, _, _ = sentence.split()
    return 4 * int(paragraph) + int(part)


def test_the_true_sentence_follows_and_the_other_is_of_elsewhere(tmp_path: Path) -> None:
    found = read_books(write_book(tmp_path / "a.txt"))
    assert len(found) == 90, "the first sentence of a paragraph follows a line end"
    assert len({example.id for example in found}) == 90
    for example in found:
        true, wrong = example.choices
        assert place(example.texts[-1]) + 1 == place(true)
        assert place(true) % 4, "within a paragraph"
        assert place(wrong) % 4
        assert abs(place(wrong) - place(true)) > BEFORE
        assert len(true) == len(wrong)
        assert len(example.texts) <= BEFORE
        assert example.label == "0"
    whole = (tmp_path / "a.txt").read_text(encoding="utf-8-sig")
    assert all(f"{''.join(example.texts)} {example.choices[0]}" in whole for example in found), "blanks stay"


def test_the_same_questions_each_time_in_turn_of_the_books(tmp_path: Path) -> None:
    for name in "abc":
        write_book(tmp_path / f"{name}.txt", ending=f" {3 * name}.")
    write_book(tmp_path / "short.txt", 2)
    all_asked = read_books(tmp_path)
    assert len(all_asked) == 270, "the short book has no sentence that is far enough"
    some = read_books(tmp_path, 100)
    assert some == all_asked[:100] == read_books(tmp_path, 100)
    counts = Counter(example.id.split()[0] for example in some)
    assert sorted(counts.values()) == [33, 33, 34]


def test_passages_of_whole_sentences_that_share_none(tmp_path: Path) -> None:
    book = write_book(tmp_path / "a.txt")
    found = read_repeats(tmp_path)
    assert found == read_repeats(book)
    assert found[:5] == read_repeats(book, 5)
    told = [sentence for example in found for sentence in example.texts[0].split(".")[:-1]]
    assert len(set(told)) == len(told) > 100
    assert all(example.texts[0].startswith("Here") and len(example.texts[0]) >= PASSAGE for example in found)
    (tmp_path / "a.txt").write_text("Short.")
    with pytest.raises(DataError, match=r"nothing can be asked; repeat needs books of more than 400 letters"):
        read_repeats(tmp_path)


def test_wrapped_lines_are_joined(tmp_path: Path) -> None:
    write_book(tmp_path / "a.txt")
    wrapped = (tmp_path / "a.txt").read_text().replace(" all. Here", " all. Here begins\nnumber", 1)
    lines = []
    for paragraph in wrapped.split("\n\n"):
        words = paragraph.split()
        lines.append("\n".join(" ".join(words[n : n + 13]) for n in range(0, len(words), 13)))
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    assert all("\n" not in choice for example in read_books(tmp_path) for choice in example.choices)
    assert len(read_books(tmp_path)) > 60


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no .txt file; name a book"):
        read_books(tmp_path)
    (tmp_path / "a.txt").write_text("One sentence alone.")
    with pytest.raises(DataError, match=r"nothing can be asked; next_sentence needs books with paragraphs"):
        read_books(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe broken")
    with pytest.raises(DataError, match=r"a.txt"):
        read_books(tmp_path)


def test_novels() -> None:
    books = shared_data("books")
    found = read_books(books, 400)
    counts = Counter(example.id.split()[0] for example in found)
    assert len(found) == 400
    assert max(counts.values()) - min(counts.values()) <= 1
    for example in found:
        true, wrong = map(len, example.choices)
        assert abs(true - wrong) <= 0.1 * true
    first = sum(len(example.choices[0]) for example in found) / sum(len(example.choices[1]) for example in found)
    assert first == pytest.approx(1, abs=0.005), "length tells nothing"
