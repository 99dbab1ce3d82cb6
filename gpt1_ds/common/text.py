"""Text and numbers as people write and read them, on a terminal and in files."""

from __future__ import annotations

import math
import re
from decimal import Decimal

# Control characters but line ends and tabs, halves of surrogate pairs, and what turns the direction of writing around
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Returns `text` with what a terminal would obey (escape sequences) written out: `\\x1b[2J`."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def is_utf8(text: str) -> bool:
    """Returns whether `text` can be written as UTF-8. Python has halves of surrogate pairs in the place of other
    bytes.
    """
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def is_missing(value: object) -> bool:
    """Returns whether a cell or the value of a key is missing: null, NaN (which Python writes into JSON), or only
    blanks. A key that is not there has the value null.
    """
    blank = isinstance(value, str) and not value.strip()
    return value is None or blank or (isinstance(value, float) and math.isnan(value))


def decimals(value: float | None, places: int = 4) -> str:
    """Returns a number of a JSON file, in which null stands for what is not finite."""
    return "not finite" if value is None else f"{value:.{places}f}"


_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_COUNT = re.compile(r"^([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KMBGT]?)$", re.IGNORECASE)


def parse_count(text: str) -> int:
    """Returns `10B`, `500M`, `1e9`, `1_000_000` or `42` as an int. Raises ValueError for anything that is not a whole
    number.
    """
    match = _COUNT.match(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a count; write 42, 1_000_000, 1e9, 500M or 10B")
    digits, suffix = match.groups()
    try:
        value = Decimal(digits) * _SUFFIXES[suffix.upper()]  # as floats 4.1 x 10^6 is 4099999.9999999995
    except ArithmeticError:  # an exponent of twenty digits
        value = Decimal("inf")
    if abs(value) >= 2**63 or value != round(value):
        raise ValueError(f"{text!r} is not a whole number")
    return round(value)


def count(value: float) -> str:
    """Returns a count in three significant digits: 116534784 -> '117M'."""
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= 0.9995 * scale:
            scaled = value / scale
            return f"{scaled:.3g}{suffix}" if abs(scaled) < 999.5 else f"{value:.3g}"
    return f"{value:.3g}"


def amount(number: int, noun: str) -> str:
    """Returns a number of things: '1 rank', '2 ranks'."""
    return f"{number} {noun}{'s' * (number != 1)}"


def byte_size(value: float) -> str:
    """Returns a number of bytes in binary units: 1610612736 -> '1.5 GiB'."""
    for suffix, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {suffix}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Returns seconds as people say them: 93784 -> '1 d 2 h', 75 -> '1 min 15 s'."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    for big, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("unreachable: whole >= 60")
