"""Documents of a .jsonl file, one a line: each line is an object, with the text under one key."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.text import is_missing
from gpt1_ds.data.chunks import chunks
from gpt1_ds.data.segments import Segment

MAX_LINE_BYTES = 32 << 20  # a line is parsed whole


def read(segment: Segment) -> Iterator[str | None]:
    """Yields the text of each line; None where it is missing. Raises DataError naming file and line."""
    for number, line in enumerate(_lines(segment), start=1):
        if line.strip():
            try:
                first = number == 1 and segment.start == 0
                yield _text_of(line.removeprefix(codecs.BOM_UTF8) if first else line, segment.file.text_key)
            except (ValueError, TypeError, RecursionError) as error:
                raise DataError(_explain(error, segment, number)) from None


def _text_of(line: bytes, key: str) -> str | None:
    """Returns the text of a line, None where it is missing. Raises ValueError, TypeError, or RecursionError for
    absurdly nested values.
    """
    value = json.loads(line.decode())
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__}, not an object")
    text = value.get(key)
    if not isinstance(text, str) and is_missing(text):
        return None
    if not isinstance(text, str):
        raise TypeError(f"`{key}` is {type(text).__name__}, not a string")
    if b"\\u" in line:
        text.encode()  # escapes can spell half of a surrogate pair, which is no character
    return text


def _explain(error: Exception, segment: Segment, number: int) -> str:
    """Returns the message about a line that cannot be read; `number` counts from the segment's first line."""
    reason = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        reason = f"byte {error.start} of the line is not UTF-8 ({error.reason})"
    elif isinstance(error, UnicodeEncodeError):
        reason = f"`{segment.file.text_key}` holds half of a surrogate pair"
    return f'{_place_of(segment, number)}: {reason}; each line must be like {{"{segment.file.text_key}": "..."}}'


def _place_of(segment: Segment, number: int) -> str:
    """Returns file and line of the segment's n-th line."""
    before = Segment(segment.file, 0, segment.start)
    line = number + (sum(chunk.count(b"\n") for chunk in chunks(before)) if segment.start else 0)
    return f"{segment.file}: line {line}"


def _lines(segment: Segment) -> Iterator[bytes]:
    parts: list[bytes] = []  # of a line that continues in the next chunk
    size, number = 0, 1
    for chunk in chunks(segment):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield b"".join([*parts, line])
            parts, size, number = [], 0, number + 1
        parts.append(rest)
        size += len(rest)
        if size > MAX_LINE_BYTES:
            raise DataError(
                f"{_place_of(segment, number)}: a line is longer than {MAX_LINE_BYTES >> 20} MiB; cut the document, "
                "or write it as a .txt file"
            )
    yield b"".join(parts)
