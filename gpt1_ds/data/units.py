"""How inputs are cut into units of work, which do not depend on the number of workers: plain files are cut into ranges
of about UNIT_BYTES at line ends, tables where row groups begin. Small neighbours share a unit; compressed files are
read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from gpt1_ds.data import hub_datasets, remote, tables
from gpt1_ds.data.segments import Input, Segment, SourceFile, Unit

UNIT_BYTES = 16 << 20
WINDOW_BYTES = 1 << 20  # how far a cut looks for a line end before it settles for a space
_BLANK_LINE = re.compile(rb"\n[ \t]*\r?\n")


def plan_units(
    inputs: Sequence[Input], unit_bytes: int = UNIT_BYTES, unwrap: bool = False, whole_documents: bool = False
) -> list[Unit]:
    """Returns the units of `inputs` in the order of their text. They may cut documents, or hold `whole_documents`. Only
    files that are larger than one unit are opened.
    """
    units: list[Unit] = []
    for number, source in enumerate(inputs):
        segments: list[Segment] = []
        size = 0
        for file in source.files:
            parts = [Segment(file, 0, file.size)] if whole_documents and file.format == ".txt" else None
            for segment in parts or _segments(file, unit_bytes, unwrap):
                alone = _is_whole(file) or (segments and _is_whole(segments[-1].file))
                if segments and (size >= unit_bytes or alone):
                    units.append(Unit(len(units), number, tuple(segments)))
                    segments, size = [], 0
                segments.append(segment)
                size += segment.stop - segment.start
        units.append(Unit(len(units), number, tuple(segments)))
    return units


def _is_whole(file: SourceFile) -> bool:
    """Returns whether one worker reads the file from its beginning to its end, and nothing else."""
    return bool(file.compression) or file.format == hub_datasets.FORMAT


def _segments(file: SourceFile, unit_bytes: int, unwrap: bool) -> Iterator[Segment]:
    start, previous = 0, ""
    if file.size > unit_bytes and file.format in (tables.PARQUET, tables.ARROW):
        for at in tables.starts(file):
            if at - start >= unit_bytes:
                yield Segment(file, start, at)
                start = at
    elif file.size > unit_bytes and not _is_whole(file):
        with remote.opened(file) as stream:
            while start + unit_bytes < file.size:
                stop, last = _cut(stream, start + unit_bytes, file, unwrap)
                if stop >= file.size:
                    break
                yield Segment(file, start, stop, previous)
                start, previous = stop, last
    yield Segment(file, start, file.size, previous)


def _cut(stream: BinaryIO, target: int, file: SourceFile, unwrap: bool) -> tuple[int, str]:
    """Returns (offset, character before it) of the first good place to cut at or after byte `target`.

    After a blank line when lines are to be joined, else after a line end; never inside a document of a .jsonl file. In
    a .txt white space must not follow it, if there is such a place. A .txt without line ends is cut before a space, or
    at least between characters and not between CR and LF.
    """
    stream.seek(target)
    window = stream.read(WINDOW_BYTES)
    if file.format == ".txt":
        return _cut_text(window, target, file, unwrap)
    offset = target
    while window:
        if (at := window.find(b"\n")) >= 0:
            return offset + at + 1, "\n"
        offset += len(window)
        window = stream.read(WINDOW_BYTES)
    return file.size, ""


def _cut_text(window: bytes, target: int, file: SourceFile, unwrap: bool) -> tuple[int, str]:
    """Returns the same for a .txt, of which `window` holds the bytes from `target` on."""
    last = len(window) < WINDOW_BYTES  # of the file
    if unwrap:
        ends = [blank.end() for blank in _BLANK_LINE.finditer(window)]
        if good := next((at for at in ends if not _is_white(window[at : at + 4], 0)), ends[0] if ends else 0):
            return target + good, "\n"
        if last:  # the last paragraph
            return file.size, ""
    ends = [line_end.end() for line_end in re.finditer(b"\n", window)]
    if good := next((at for at in ends if not _is_white(window[at : at + 4], 0)), 0):
        return target + good, "\n"
    spaces = [space.start() for space in re.finditer(b" ", window) if space.start()]
    if good := next((at for at in spaces if not _is_white(window[max(0, at - 4) : at], -1)), 0):
        return target + good, "x"
    if last and (ends or spaces):  # what is left ends in white space
        return file.size, ""
    if ends:
        return target + ends[0], "\n"
    inside = (at for at in range(1, len(window)) if window[at] & 0xC0 != 0x80 and window[at - 1] != 13)
    return target + (spaces[0] if spaces else next(inside, len(window))), "x"


def _is_white(data: bytes, number: int) -> bool:
    """Returns whether the first (0) or last (-1) character of `data` is white space, or there is none. `data` may begin
    and end inside of characters.
    """
    letter = data.decode(errors="ignore")[number:][:1]
    return not letter or letter.isspace()
