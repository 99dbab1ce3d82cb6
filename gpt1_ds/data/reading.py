"""Documents of a unit as pieces of text of bounded size: decoded, BOM dropped, CRLF turned into LF, lines of hard-
wrapped text joined (unwrap.py).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.log import say
from gpt1_ds.common.text import amount
from gpt1_ds.config.sections import EMBEDDED
from gpt1_ds.data import hub_datasets, json_lines, python_docs, tables
from gpt1_ds.data.chunks import chunks
from gpt1_ds.data.segments import HubShard, Segment, Unit
from gpt1_ds.data.unwrap import unwrap, wrap_width

PIECE_LETTERS = 1 << 20
BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one document, cut where every tokenizer can (`Tokenizer.encode_part`) if there is such a place.

    `previous` is the character before it (empty at the beginning of the document).
    """

    text: str
    previous: str
    ends_document: bool


def read_unit(unit: Unit, unwrapped: bool = False, left_out: Callable[[], None] = lambda: None) -> Iterator[Piece]:
    """Yields the pieces of a unit in order. Lines and rows without text are skipped; `left_out` is called for each.

    Raises DataError naming file and place for bytes that are not UTF-8 text, broken JSON and damaged compression.
    """
    for segment in unit.segments:
        if segment.file.format == ".txt":
            yield from _read_txt(segment, unwrapped)
        else:
            for value in _documents(segment):
                if not value:
                    left_out()
                    continue
                text = value.removeprefix(BOM).replace("\r\n", "\n")
                width = wrap_width(text) if unwrapped else None
                yield from _pieces(unwrap([text], width), "", ends_document=True)


def say_left_out(what: str, rows: int, text_key: str) -> None:
    """Says how many rows of `what` have no text, where there are any."""
    if rows:
        say(f"{what}: leaves out {amount(rows, 'row')} without text (no `{text_key}`, null, NaN or empty)")


def _documents(segment: Segment) -> Iterator[str | None]:
    """Returns the whole documents of a segment of any other kind than .txt; None for a row whose value is missing."""
    if segment.file.format == EMBEDDED:
        return python_docs.documents()
    if isinstance(segment.file, HubShard):
        return hub_datasets.read(segment.file)
    if segment.file.format == ".jsonl":
        return json_lines.read(segment)
    return tables.read_table(segment)


def _read_txt(segment: Segment, unwrapped: bool) -> Iterator[Piece]:
    texts = _decode(segment)
    if unwrapped:
        whole = Segment(segment.file, 0, segment.file.size)
        texts = unwrap(texts, wrap_width(next(_decode(whole))))  # measured on the beginning of the file
    yield from _pieces(texts, segment.previous, ends_document=segment.stop == segment.file.size)


def _pieces(texts: Iterable[str], previous: str, ends_document: bool) -> Iterator[Piece]:
    held: str | None = None  # one piece is held back, because the last one ends the document
    for text in _cut(texts):
        if held is not None:
            yield Piece(held, previous, False)
            previous = held[-1]
        held = text
    if held is not None or (previous and ends_document):
        yield Piece(held or "", previous, ends_document)


def _cut(texts: Iterable[str]) -> Iterator[str]:
    """Yields the same text in pieces of at most PIECE_LETTERS, none empty."""
    rest = ""
    for text in texts:
        rest += text
        start = 0
        while len(rest) - start > PIECE_LETTERS:
            limit = start + PIECE_LETTERS
            at = _place(rest, start, limit)
            yield rest[start:at]
            start = at
        rest = rest[start:]
    if rest:
        yield rest


def _place(text: str, start: int, limit: int) -> int:
    """Returns the last good place to cut `text` in (start, limit]: after a line end that stands before other text, or
    before a space that follows other text; else after any line end, before any space, or at the limit.
    """
    at = limit
    while (at := text.rfind("\n", start, at)) >= 0:
        if not text[at + 1].isspace():
            return at + 1
    at = limit
    while (at := text.rfind(" ", start + 1, at)) > 0:
        if not text[at - 1].isspace():
            return at
    return text.rfind("\n", start, limit) + 1 or max(text.rfind(" ", start + 1, limit), 0) or limit


def _decode(segment: Segment) -> Iterator[str]:
    """Yields a segment as text with LF line ends. Raises DataError naming the first byte that is not UTF-8 text."""
    path = segment.file
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, held, at_beginning = segment.start, "", segment.start == 0
    for chunk, final in chain(((chunk, False) for chunk in chunks(segment)), [(b"", True)]):
        if (null := chunk.find(b"\0")) >= 0:
            raise DataError(f"{path}: byte {offset + null} is NUL: a binary or UTF-16 file; convert it to UTF-8 text")
        try:
            text = held + decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            at = offset + len(chunk) - len(error.object) + error.start
            raise DataError(f"{path}: byte {at} is not UTF-8 ({error.reason}); convert it to UTF-8 text") from None
        offset += len(chunk)
        if at_beginning and text:
            text, at_beginning = text.removeprefix(BOM), False
        held = "\r" if text.endswith("\r") and not final else ""
        yield text.removesuffix(held).replace("\r\n", "\n")
