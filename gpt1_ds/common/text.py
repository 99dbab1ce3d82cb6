"""Text and numbers from files and models, on a terminal."""

from __future__ import annotations

import math
import re

# Control characters but line ends and tabs, halves of surrogate pairs, and what turns the direction of writing around
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """`text` with what a terminal would obey (escape sequences) written out: `\\x1b[2J`."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def is_missing(value: object) -> bool:
    """Whether a cell or the value of a key is missing: null, NaN (which Python writes into JSON), or only blanks. A key
    that is not there has the value null.
    """
    blank = isinstance(value, str) and not value.strip()
    return value is None or blank or (isinstance(value, float) and math.isnan(value))


def decimals(value: float | None, places: int = 4) -> str:
    """A number of a JSON file, in which null stands for what is not finite."""
    return "not finite" if value is None else f"{value:.{places}f}"
