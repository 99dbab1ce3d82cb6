"""Which sentence of a book comes next: the true one, or another one of the same book, so that names and style tell
nothing?

Sentences are those of `data build --sentences` (data/splitter.py), hard-wrapped lines joined. Both candidates follow
another sentence within a paragraph, so that no line end tells them apart. The wrong one is of nearly the same length in
letters, and not from the neighbourhood of the question. Which sentences are asked for is a hash of the book.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.segments import Segment, SourceFile, Unit
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.windows import key_of, permute
from gpt1_ds.tasks.base import Example, Examples

NEXT_SENTENCE = "next_sentence"
BEFORE = 10  # sentences before a question, at most; as far from it comes no wrong candidate
LETTERS = range(20, 301)  # of a candidate
NEAR = 10  # the wrong candidate is one of so many next shorter and next longer ones,
UNLIKE = 0.1  # whose lengths differ by this share at most


def read_books(path: Path, limit: int | None = None) -> Examples:
    """`texts` are the sentences before, each with the blanks before it; `choices` the true next sentence and another.

    `path` is one book or a folder of .txt files. The questions of all books come in turn; `limit` takes the first ones.
    Raises DataError for what is not there or no text, and where nothing can be asked.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.txt"), key=lambda file: key_of(NEXT_SENTENCE, file.name))
    if not files:
        raise DataError(f"{path}: holds no .txt file; name a book, or the folder that holds books")
    rounds = zip_longest(*map(_questions, files))
    found = tuple(islice((one for one in chain.from_iterable(rounds) if one is not None), limit))
    if not found:
        raise DataError(
            f"{path}: nothing can be asked; {NEXT_SENTENCE} needs books with paragraphs of several sentences"
        )
    return found


def _questions(file: Path) -> Iterator[Example]:
    texts = [piece.text for piece in sentences(read_unit(_whole(file), unwrapped=True))]
    inside = [n for n in range(1, len(texts)) if texts[n].startswith(" ") and len(texts[n].strip()) in LETTERS]
    inside.sort(key=lambda number: (len(texts[number]), number))
    key = key_of(NEXT_SENTENCE, *texts)
    for rank in permute(np.arange(len(inside)), len(inside), key).tolist():
        number = inside[rank]
        others = _others(texts, number, inside[max(0, rank - NEAR) : rank + NEAR + 1])
        if others:
            wrong = others[key_of(key, number) % len(others)]
            before = tuple(texts[max(0, number - BEFORE) : number])
            yield Example(f"{file.name} {number}", before, (texts[number].strip(), texts[wrong].strip()), "0")


def _others(texts: Sequence[str], number: int, near: Sequence[int]) -> list[int]:
    """What of `near` may be the wrong candidate for sentence `number`."""
    true = texts[number].strip()
    return [
        other
        for other in near
        if abs(other - number) > BEFORE
        and texts[other].strip() != true
        and abs(len(texts[other].strip()) - len(true)) <= UNLIKE * len(true)
    ]


def _whole(file: Path) -> Unit:
    status = file.stat()
    source = SourceFile(str(file), file.name, ".txt", "", status.st_size, status.st_mtime_ns)
    return Unit(0, 0, (Segment(source, 0, status.st_size),))
