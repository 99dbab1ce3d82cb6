"""Two probes made of books: which sentence comes next, and what a model makes of a passage that it has just read.

Next sentence: sentences are those of `data build --sentences` (data/splitter.py), hard-wrapped lines joined. Both
candidates follow another sentence within a paragraph, so that line ends do not distinguish them. The wrong one is from
the same book, so that names and style do not either, has nearly the same length in letters, and does not come from the
neighbourhood of the question. Which sentences are asked for is a hash of the book.

Repeat: passages of whole sentences, which are asked for in the order of a hash of the book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.segments import Segment, SourceFile, Unit
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.windows import key_of, permute
from gpt1_ds.tasks.example import Example, Examples

NEXT_SENTENCE = "next_sentence"
BEFORE = 10  # sentences before a question, at most; a wrong candidate is farther from it than that
LETTERS = range(20, 301)  # of a candidate
NEAR = 10  # the wrong candidate is one of so many next shorter and next longer ones,
UNLIKE = 0.1  # whose lengths differ by this fraction at most
REPEAT = "repeat"
PASSAGE = 400  # letters at least, which are about 80 words


def read_books(path: Path, limit: int | None = None) -> Examples:
    """An example's `texts` are the sentences before the question, each with the blanks before it; its `choices` are the
    true next sentence and another one.

    `path` is one book or a folder of .txt files. The questions of all books come in turn; `limit` takes the first ones.
    Raises DataError for what is not there or no text, and where nothing can be asked.
    """
    return _read(path, NEXT_SENTENCE, _next_sentences, limit, "with paragraphs of several sentences")


def read_repeats(path: Path, limit: int | None = None) -> Examples:
    """An example's `texts` is one passage. `path` and `limit` are as in `read_books`, and so are the errors."""
    return _read(path, REPEAT, _passages, limit, f"of more than {PASSAGE} letters")


def _read(
    path: Path, name: str, ask: Callable[[str, list[str]], Iterator[Example]], limit: int | None, needed: str
) -> Examples:
    """Returns the first `limit` examples that `ask` makes of the name and the sentences of a book: one of each book in
    turn, books in the order of a hash of their names. The DataError where nothing can be asked says what is `needed`.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.txt"), key=lambda file: key_of(name, file.name))
    if not files:
        raise DataError(f"{path}: holds no .txt file; name a book, or the folder that holds books")
    turns = zip_longest(*(ask(file.name, _sentences(file)) for file in files))
    in_turn = (example for example in chain.from_iterable(turns) if example is not None)
    examples = tuple(islice(in_turn, limit))
    if not examples:
        raise DataError(f"{path}: nothing can be asked; {name} needs books {needed}")
    return examples


def _sentences(file: Path) -> list[str]:
    """Returns the sentences of a book, each with the blanks before it."""
    status = file.stat()
    source = SourceFile(str(file), file.name, ".txt", "", status.st_size, status.st_mtime_ns)
    book = Unit(0, 0, (Segment(source, 0, status.st_size),))
    return [piece.text for piece in sentences(read_unit(book, unwrapped=True))]


def _next_sentences(book: str, texts: list[str]) -> Iterator[Example]:
    candidates = [n for n in range(1, len(texts)) if texts[n].startswith(" ") and len(texts[n].strip()) in LETTERS]
    candidates.sort(key=lambda number: (len(texts[number]), number))  # so neighbours have nearly the same length
    key = key_of(NEXT_SENTENCE, *texts)
    for rank in permute(np.arange(len(candidates)), len(candidates), key).tolist():
        number, neighbours = candidates[rank], candidates[max(0, rank - NEAR) : rank + NEAR + 1]
        distractors = [other for other in neighbours if _is_distractor(texts, number, other)]
        if distractors:
            wrong = distractors[key_of(key, number) % len(distractors)]
            before = tuple(texts[max(0, number - BEFORE) : number])
            yield Example(f"{book} {number}", before, (texts[number].strip(), texts[wrong].strip()), "0")


def _is_distractor(texts: Sequence[str], number: int, other: int) -> bool:
    """Returns whether sentence `other` may be the wrong candidate where sentence `number` is the right one."""
    right, wrong = texts[number].strip(), texts[other].strip()
    is_similar = abs(len(wrong) - len(right)) <= UNLIKE * len(right)
    return is_similar and wrong != right and abs(other - number) > BEFORE


def _passages(book: str, texts: list[str]) -> Iterator[Example]:
    """Each sentence is in one passage at most."""
    passages, passage = [], ""
    for text in texts:
        passage += text
        if len(passage.strip()) >= PASSAGE:
            passages.append(passage.strip())
            passage = ""
    key = key_of(REPEAT, *texts)
    for number in permute(np.arange(len(passages)), len(passages), key).tolist():
        yield Example(f"{book} {number}", (passages[number],), label="0")
