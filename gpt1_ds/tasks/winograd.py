"""Winograd schemas (WSC273, PDP-60; DPRD, Rahman and Ng 2012): whom does the pronoun mean?

A file holds blocks of four lines between blank lines: the sentence, the mark that stands in the pronoun's place, the
candidates with commas between them, and the right one:

    The trophy does not fit into the suitcase because [MASK] is too large.
    [MASK]
    the trophy,the suitcase
    the trophy

The mark is [MASK], and then nobody knows which pronoun it was; or in DPRD the pronoun itself, where its first place
counts. A possessive pronoun is replaced by the candidate with 's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.rows import FEW
from gpt1_ds.tasks.tables import brief, open_text, unusable

FILES = {"wsc273": ("wsc273.txt",), "pdp": ("PDP.txt", "pdp.txt"), "dprd": ("test.c.txt",)}
LINES = 4  # of a block
_ENDS = tuple('.!?"')  # after one of them a sentence begins
_POSSESSIVE = {"my", "your", "his", "its", "our", "their", "whose"}
_AFTER_OBJECT = {  # after one of them "her" is no possessive
    *("a", "an", "the", "to", "for", "of", "in", "on", "at", "by", "with", "from", "into", "about", "off", "up", "out"),
    *("and", "or", "but", "because", "since", "so", "that", "when", "while", "as", "if", "not", "too", "again"),
}
_BEFORE_INFINITIVE = {"made", "make", "makes", "let", "lets", "saw", "see", "sees", "heard", "watched"}  # her gasp
_DETERMINERS = {"The", "A", "An", "My", "His", "Her", "Their", "Our"}  # what else is capital is a name


def read_schemas(name: str, path: Path) -> Examples:
    """An example's `texts` are what comes before and after the pronoun, and "'s" where it is a possessive one; its
    `label` is the number of the right one of `choices`.

    `path` is the file or the folder that it lies in. Raises DataError for what is not there or no schema.
    """
    candidates = [path, *(path / file for file in FILES[name])]
    file = next((candidate for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise DataError(
            f"{path}: holds no {' or '.join(FILES[name])}; name the folder that holds the file of {name}" + way_to(path)
        )
    examples, problems = [], []
    for number, (line, block) in enumerate(_blocks(file)):
        try:
            examples.append(_schema(str(number), block))
        except ValueError as error:
            problems.append(f"{file} line {line}: {error}; fix this block")
    DataError.raise_all(problems[:FEW])
    if not examples:
        raise DataError(f"{file}: is empty; it needs at least one block of {LINES} lines")
    return tuple(examples)


def substituted(example: Example, candidate: str) -> tuple[str, str]:
    """Returns (the sentence up to and with `candidate` in the pronoun's place, what follows it)."""
    before, after, *ending = example.texts
    if ending:
        candidate += "'" if candidate.endswith("s") else "'s"
    first, blank, others = candidate.partition(" ")
    if not before or before.endswith(_ENDS):
        first = first[:1].upper() + first[1:]
    elif first in _DETERMINERS:
        first = first.lower()
    return f"{before} {first}{blank}{others}".lstrip(), after


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (number of the first line, its lines) of every block."""
    with open_text(path) as stream:
        lines = [line.strip() for line in stream]
    for filled, block in groupby(enumerate(lines, start=1), key=lambda line: bool(line[1])):
        if filled:
            numbers, texts = zip(*block, strict=True)
            yield numbers[0], list(texts)


def _schema(number: str, block: list[str]) -> Example:
    if len(block) != LINES:
        raise ValueError(f"{len(block)} lines where {LINES} are expected: sentence, pronoun, candidates, answer")
    if problem := next(filter(None, map(unusable, block)), ""):
        raise ValueError(f"this block {problem}")
    sentence, mark, listed, answer = (" ".join(line.split()) for line in block)
    place = re.search(rf"(?<!\w){re.escape(mark)}(?!\w)", sentence)
    if place is None:
        raise ValueError(f"{brief(mark)} is not in the sentence")
    candidates = tuple(candidate.strip() for candidate in listed.split(","))
    if len(set(candidates)) < len(candidates) or len(candidates) < 2 or "" in candidates:
        raise ValueError(f"{brief(listed)} does not name two candidates or more")
    if answer not in candidates:
        raise ValueError(f"{brief(answer)} is none of its candidates")
    before, after = sentence[: place.start()].rstrip(), re.sub("^ (?=[.,;:!?])", "", sentence[place.end() :])
    ending = ("'s",) if _is_possessive(mark.lower(), before, after) else ()
    return Example(number, (before, after, *ending), candidates, str(candidates.index(answer)))


def _is_possessive(pronoun: str, before: str, after: str) -> bool:
    """Returns whether the pronoun stands for "somebody's". "her" does before a noun: that is guessed from its
    neighbours.
    """
    if pronoun != "her":
        return pronoun in _POSSESSIVE
    follows = re.match(r" ([a-z]+)", after)
    precedes = before.rpartition(" ")[2].lower()
    return follows is not None and follows[1] not in _AFTER_OBJECT and precedes not in _BEFORE_INFINITIVE
