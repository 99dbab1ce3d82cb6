"""Where the rules see the end of a sentence: a table of hard cases, `|` standing for a border."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_ds.data import splitter
from gpt1_ds.data.reading import Piece
from gpt1_ds.data.splitter import borders, sentences
from tests.unit.data import corpora

CASES = [
    "He came.| She went.| Why?| Nobody knew!| So it was...| Or not.",
    "Mr. Hyde and Mrs. Poole met Dr. Jekyll at St. James.| It rained.",
    "Messrs. Lloyd and Co. wrote to Gen. Grant, vs. Lee, e.g. Longstreet.",
    "J. R. R. Tolkien and G.K. Chesterton wrote.| W. H. Hudson, too.",
    "It was made in the U.S. Army depot.| He lives in the U.S.| The war ended.",
    "It was she and I.| The rest had gone.",
    'He said, "Go."| Then he went.',
    '"Go!" said he.| "Why?" she asked.| "Because."| "I see."',
    "\u201cGo.\u201d| \u201cNo!\u201d| She laughed.",
    "'Stop that!'| 'I will not.'",
    "(He was ill.)| Nobody came. . . .| So he left.",
    "He paused ... and spoke.| He paused... and spoke. \u2026 and so on.",
    "He waited\u2026| Nothing came.",
    "It cost 3.50 pounds in 1.5 hours.| 20 men paid.",
    "See No. 5 and no. 6, Vol. II and p. 10, on Jan. 3.| No.| He did not.",
    "Is that a no?| I say no.| You may go.",
    "1. The first item.\n|2. The second.\n|IV. The fourth.".replace("\n|", "|\n"),
    "CHAPTER I|\n\nThe house stood alone.|\nIt was old.",
    "A line|\nand its rest|\n\n   indented",
    "A tab.\t\nA no-break space. \xa0\nBoth.\t \xa0\n\nA line|\nmore",
    "An end. \t Then a tab.",
    "At 5 p.m. he left.| At 6 p.m. they met.",
    "What! you here?| Ah! there you are.",
    "The end.--Then more.| _Never!_| _Always._",
    "He wrote to Smith, Jones, etc., and left.",
    "na\u00efve caf\u00e9.| \u00c9tienne came. \u00e9cole closed. \u00e9t\u00e9.",
    "\u041e\u043d \u043f\u0440\u0438\u0448\u0451\u043b.| \u041e\u043d\u0430 \u0443\u0448\u043b\u0430.",
    "Trailing blanks end nothing.   \n\n  ",
    "  \n leading ones neither",
    "",
]


@pytest.mark.parametrize("marked", CASES, ids=range(len(CASES)))
def test_hard_cases(marked: str) -> None:
    text = marked.replace("|", "")
    cuts = [0, *borders(text), len(text)]
    assert "|".join(text[begin:end] for begin, end in pairwise(cuts)) == marked


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("aB1 .!?\n\t\xa0\"'()-\u2026Mr"), max_size=60))
def test_a_border_lies_between_text_and_blanks(text: str) -> None:
    for at in borders(text):
        assert text[at] in " \n"
        assert not text[at - 1].isspace()
        assert text[:at].strip()
        assert text[at:].strip()


@pytest.mark.parametrize("unit", ["\n", " ", ".", '."', ". ", "Mr. ", ". -", "a.", ".\n \n", "I. ", "\u2026'"])
def test_the_time_grows_with_the_text_alone(unit: str) -> None:
    """Minutes, if it were squared: the limit of a test's time would end it."""
    for text in (unit * (300_000 // len(unit)), "x" + unit * (300_000 // len(unit)) + " x"):
        found = borders(text)
        assert found == sorted({*found})
        assert all(0 < at < len(text) for at in found)


def cut(text: str, size: int) -> Iterator[Piece]:
    for start in range(0, len(text), size):
        yield Piece(text[start : start + size], text[start - 1 : start], start + size >= len(text))


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_sentences_do_not_depend_on_where_text_is_cut(size: int) -> None:
    text = " ".join(corpora.sentences(40)) + "\n\n" + "\n".join(corpora.sentences(10, seed=1))
    whole = [piece for _ in range(2) for piece in sentences(cut(text, len(text)))]
    found = [piece for _ in range(2) for piece in sentences(cut(text, size))]
    if size == 1:  # the end of a word is not seen before it is there
        assert "".join(piece.text for piece in found) == 2 * text
    else:
        assert found == whole
    assert [piece.ends_document for piece in whole].count(True) == 2


def test_a_text_without_borders_is_held_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitter, "PIECE_LETTERS", 100)
    found = list(sentences(cut("word " * 100, 50)))
    assert "".join(piece.text for piece in found) == "word " * 100
    assert max(len(piece.text) for piece in found) <= 150
