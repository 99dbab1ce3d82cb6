"""Minimal pairs of BLiMP (Warstadt et al. 2020): which of two sentences is English?

A file of JSON lines holds the pairs of one paradigm (UID), of which there are 67, in 12 phenomena:

    {"sentence_good": "Many girls insulted themselves.", "sentence_bad": "Many girls insulted herself.",
     "UID": "anaphor_number_agreement", "linguistics_term": "anaphor_agreement", "pairID": "0"}

The words were chosen for adults' models. BabyLM (Warstadt et al. 2023) asks only pairs whose words all occur at least
twice in the text that models may read; so does `known_words`, which counts words in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.rows import FEW
from gpt1_ds.tasks.tables import TableRow, open_table, open_text

BLIMP = "blimp"
PHENOMENON = {"s-selection": "argument_structure"}  # the paper's tables count its two paradigms there
KEYS = ("UID", "linguistics_term", "sentence_good", "sentence_bad")
FEWEST = 2  # times that a known word occurs
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


def read_pairs(path: Path, limit: int | None = None, words: frozenset[str] | None = None) -> Examples:
    """An example's `texts` are the good and the bad sentence, its `group` is the phenomenon, its `source` the paradigm.
    They are in the order of the files' names.

    `path` is one file or the folder of all. With `words` pairs that have other words are left out. `limit` takes the
    same number of every paradigm, together `limit` at most. Raises DataError for what is not there or no pair, and for
    a limit that leaves a paradigm out.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))
    if not files:
        raise DataError(f"{path}: holds no .jsonl file; name the folder that holds those of BLiMP" + way_to(path))
    paradigms: dict[str, list[Example]] = {}
    problems = []
    for file in files:
        for row in open_table(file, "jsonl").rows:
            try:
                paradigm, example = _pair(row)
            except ValueError as error:
                problems.append(f"{file} {row.place}: {error}; fix this line")
                continue
            if words is None or words.issuperset(_WORD.findall(" ".join(example.texts).lower())):
                paradigms.setdefault(paradigm, []).append(example)
    DataError.raise_all(problems[:FEW])
    if not paradigms:
        raise DataError(f"{path}: known_words knows the words of no pair; name the text that the model has read")
    if limit is not None and limit < len(paradigms):
        raise DataError(f"probes: limit={limit} of blimp leaves paradigms out; use {len(paradigms)} or more")
    each = None if limit is None else limit // len(paradigms)
    return tuple(example for pairs in paradigms.values() for example in capped(tuple(pairs), each))


def known_words(path: Path) -> frozenset[str]:
    """Returns the words, in lower case, that are at least twice in a text or the .txt files of a folder. Raises
    DataError.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.txt"))
    if not files:
        raise DataError(f"{path}: holds no .txt file; name the text that the model has read as known_words of blimp")
    counts: Counter[str] = Counter()
    for file in files:
        with open_text(file) as lines:
            for line in lines:
                counts.update(_WORD.findall(line.lower()))
    return frozenset(word for word, count in counts.items() if count >= FEWEST)


def _pair(row: TableRow) -> tuple[str, Example]:
    """Returns (its paradigm, the pair). Raises ValueError with what is wrong with the row."""
    if row.problem:
        raise ValueError(row.problem)
    values = [row.values.get(key) for key in KEYS]
    for key, value in zip(KEYS, values, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{key} is no text")
    paradigm, phenomenon, good, bad = (str(value).strip() for value in values)
    number = f"{paradigm} {row.values.get('pairID', row.place)}"
    group = PHENOMENON.get(phenomenon, phenomenon)
    return paradigm, Example(number, (good, bad), label="0", group=group, source=paradigm)
