"""JSON of strangers, whose bytes can stand for twenty times as much memory (`[[],[],...`)."""

from __future__ import annotations

import json
from typing import Any

MOST = 64 << 20  # bytes of memory
PER_BYTE, PER_VALUE = 6, 100  # bytes of memory, at most about: text is held three times, and wide characters take four


def parse(data: bytes, most: int = MOST) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, or would take more than `most` bytes of memory."""
    values = sum(map(data.count, (b",", b"[", b"{", b":")))
    needed = PER_BYTE * len(data) + PER_VALUE * values
    if needed > most:
        raise ValueError(f"its {len(data)} bytes hold too much")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
