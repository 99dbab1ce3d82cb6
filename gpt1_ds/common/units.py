"""Numbers as people write and read them."""

from __future__ import annotations

import re

_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_COUNT = re.compile(r"^([+-]?\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([KMBGT]?)$", re.IGNORECASE)


def parse_count(text: str) -> int:
    """`10B`, `500M`, `1e9`, `1_000_000` or `42` as an int. Raises ValueError for anything that is not a whole
    number.
    """
    match = _COUNT.match(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a count; write 42, 1_000_000, 1e9, 500M or 10B")
    digits, suffix = match.groups()
    digits = digits.replace("_", "")
    scale = _SUFFIXES[suffix.upper()]
    value = int(digits) * scale if digits.lstrip("+-").isdigit() else float(digits) * scale
    if abs(value) >= 2**63 or value != round(value):
        raise ValueError(f"{text!r} is not a whole number")
    return round(value)


def count(value: float) -> str:
    """A count in three significant digits: 116534784 -> '117M'."""
    for suffix, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if abs(value) >= 0.9995 * scale:
            scaled = value / scale
            return f"{scaled:.3g}{suffix}" if scaled < 999.5 else f"{scaled:.0f}{suffix}"
    return f"{value:.3g}"


def amount(number: int, noun: str) -> str:
    """A number of things: '1 rank', '2 ranks'."""
    return f"{number} {noun}{'s' * (number != 1)}"


def byte_size(value: float) -> str:
    """Bytes in binary units: 1610612736 -> '1.5 GiB'."""
    for suffix, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {suffix}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Seconds as people say them: 93784 -> '1 d 2 h', 75 -> '1 min 15 s'."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    for big, small, size, part in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("unreachable: whole >= 60")
