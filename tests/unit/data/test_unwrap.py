from __future__ import annotations

import itertools
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt1_ds.data.unwrap import unwrap, wrap_width
from tests.unit.data.corpora import sentences


def joined(text: str, width: int | None) -> str:
    return "".join(unwrap([text], width))


def test_wrapped_paragraphs_come_back() -> None:
    paragraphs = [" ".join(sentences(8, seed=number)) for number in range(30)]
    wrapped = "\n\n".join(textwrap.fill(paragraph, 70, break_on_hyphens=False) for paragraph in paragraphs)
    assert joined(wrapped, wrap_width(wrapped)) == "\n\n".join(paragraphs)


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("one full line of text here\nNext", "one full line of text here Next"),  # "Next" would not have fit
        ("a short line\nNext", "a short line\nNext"),
        ("a short line\nnext", "a short line next"),  # a person would have begun with a capital
        ("one full line of text here\n\nNext", "one full line of text here\n\nNext"),
        ("one full line of text here\n  Indented", "one full line of text here\n  Indented"),
        ("one full line of text well-\nKnown", "one full line of text well-Known"),
        ("one full line of text here -\nNext", "one full line of text here - Next"),
        ("trailing blanks are not kept   \nNext", "trailing blanks are not kept Next"),
        ("ends with a line end\n", "ends with a line end\n"),
        ("", ""),
    ],
)
def test_each_rule(wrapped: str, expected: str) -> None:
    assert joined(wrapped, 28) == expected


def test_text_that_is_not_wrapped_is_left_alone() -> None:
    paragraphs = "\n".join(" ".join(sentences(number % 9 + 1, seed=number)) for number in range(60))
    assert wrap_width(paragraphs) is None
    assert joined(paragraphs, None) == paragraphs
    assert wrap_width("too\nfew\nlines") is None
    assert wrap_width("") is None


@given(text=st.text(alphabet="aB -\n", max_size=200), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_blocks_make_no_difference(text: str, cuts: list[int]) -> None:
    borders = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    blocks = [text[start:stop] for start, stop in itertools.pairwise(borders)]
    assert "".join(unwrap(blocks, 10)) == joined(text, 10)


@given(text=st.text(alphabet="aB -\n\t", max_size=200))
def test_only_blanks_change(text: str) -> None:
    assert "".join(joined(text, 10).split()) == "".join(text.split())
