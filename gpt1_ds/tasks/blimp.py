"""Minimal pairs of BLiMP (Warstadt et al. 2020): which of two sentences is English?

A file of JSON lines holds the pairs of one paradigm (UID), of which there are 67, in 12 phenomena.
"""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.base import Example, Examples
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.formats import Row, open_table
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.rows import FEW

PHENOMENON = {"s-selection": "argument_structure"}  # the paper's tables count its two paradigms there
KEYS = ("UID", "linguistics_term", "sentence_good", "sentence_bad")


def read_pairs(path: Path, limit: int | None = None) -> Examples:
    """`texts` are the good and the bad sentence, `group` is the phenomenon, `source` the paradigm; in the order of the
    files' names.

    `path` is one file or the folder of all. `limit` takes the same number of every paradigm, `limit` together at most.
    Raises DataError for what is not there or no pair, and for a limit that leaves a paradigm out.
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
            paradigms.setdefault(paradigm, []).append(example)
    DataError.raise_all(problems[:FEW])
    if limit is not None and limit < len(paradigms):
        raise DataError(f"probes: limit={limit} of blimp leaves paradigms out; use {len(paradigms)} or more")
    each = None if limit is None else limit // len(paradigms)
    return tuple(example for pairs in paradigms.values() for example in capped(tuple(pairs), each))


def _pair(row: Row) -> tuple[str, Example]:
    """(its paradigm, the pair). Raises ValueError with what is wrong with the row."""
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
