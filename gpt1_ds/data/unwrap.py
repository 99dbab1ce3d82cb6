"""Joins the lines of hard-wrapped text.

A text counts as hard-wrapped when most of its lines end near one column. There a line end was put by the wrapping, and
becomes a space, when the first word of the next line would not have fit, or is in lower case; every other line end was
put by a person (the end of a paragraph, verse, a heading) and stays. Blank and indented lines always begin something
new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SAMPLE_LETTERS = 1 << 18  # the width is measured on the beginning of a text
FEWEST_LINES = 20
NARROWEST, WIDEST = 30, 120  # longer lines are paragraphs
RAGGED = 0.9  # lines were often wrapped a little early, or lost a few letters since


def wrap_width(text: str) -> int | None:
    """Returns the column at which longer lines were wrapped; None when the text is not hard-wrapped."""
    lengths = sorted(len(line.rstrip()) for line in text[:SAMPLE_LETTERS].split("\n") if line.strip())
    if len(lengths) < FEWEST_LINES:
        return None
    median, width = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
    wrapped = NARROWEST <= width <= WIDEST and median >= 0.75 * width
    return int(RAGGED * width) if wrapped else None


def unwrap(blocks: Iterable[str], width: int | None) -> Iterator[str]:
    """Yields the text of `blocks` with its wrapped lines joined; unchanged when `width` is None."""
    if width is None:
        yield from blocks
        return
    last: str | None = None  # the last whole line, whose end is still to be decided
    rest = ""
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        out = []
        for line in lines:
            if last is not None:
                out.append(_ended(last, line, width))
            last = line
        yield "".join(out)
    yield (_ended(last, rest, width) if last is not None else "") + rest


def _ended(line: str, following: str, width: int) -> str:
    """Returns `line` with what stands between it and the line that follows: a line end, a space, or nothing after a
    hyphen.
    """
    text, word = line.rstrip(), following.split(" ", 1)[0]
    if not text or not word or word[0].isspace():
        return line + "\n"
    if len(text) + 1 + len(word) <= width and not word[0].islower():
        return line + "\n"
    broken = len(text) > 1 and text[-1] == "-" and text[-2].isalpha()
    return text if broken else text + " "
