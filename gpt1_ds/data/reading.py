"""Documents of a unit as pieces of text of bounded size: decoded, BOM dropped, CRLF turned into LF, lines of hard-
wrapped text joined.

A text counts as hard-wrapped when most of its lines end near one column. There a line end was put by the wrapping, and
becomes a space, when the first word of the next line would not have fit, or is in lower case; otherwise a person put it
(the end of a paragraph, verse, a heading) and it stays. Blank and indented lines always begin something new.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.log import say
from gpt1_ds.common.text import amount, is_missing
from gpt1_ds.config.sections import EMBEDDED
from gpt1_ds.data import corpus, hub_datasets, tables
from gpt1_ds.data.remote import opened
from gpt1_ds.data.segments import HubShard, Segment, SourceFile, Unit

SAMPLE_LETTERS = 1 << 18  # the width is measured on the beginning of a text
FEWEST_LINES = 20
NARROWEST, WIDEST = 30, 120  # longer lines are paragraphs
RAGGED = 0.9  # lines were often wrapped a little early, or lost a few letters since


def wrap_width(text: str) -> int | None:
    """The column that whatever runs past it was wrapped at; None when the text is not hard-wrapped."""
    lengths = sorted(len(line.rstrip()) for line in text[:SAMPLE_LETTERS].split("\n") if line.strip())
    if len(lengths) < FEWEST_LINES:
        return None
    median, width = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
    wrapped = NARROWEST <= width <= WIDEST and median >= 0.75 * width
    return int(RAGGED * width) if wrapped else None


def unwrap(blocks: Iterable[str], width: int | None) -> Iterator[str]:
    """The text of `blocks` with its wrapped lines joined; unchanged when `width` is None."""
    if width is None:
        yield from blocks
        return
    last: str | None = None  # the last whole line, whose end is still to be decided
    rest = ""
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        out = []
        for line in lines:
            if last is not None:
                out.append(_ended(last, line, width))
            last = line
        yield "".join(out)
    yield (_ended(last, rest, width) if last is not None else "") + rest


def _ended(line: str, following: str, width: int) -> str:
    """`line` with what stands between it and the line that follows: a line end, a space, or nothing after a hyphen."""
    text, word = line.rstrip(), following.split(" ", 1)[0]
    if not text or not word or word[0].isspace():
        return line + "\n"
    if len(text) + 1 + len(word) <= width and not word[0].islower():
        return line + "\n"
    broken = len(text) > 1 and text[-1] == "-" and text[-2].isalpha()
    return text if broken else text + " "


CHUNK_BYTES = 1 << 20  # of a file, read at once
PIECE_LETTERS = 1 << 20
MAX_LINE_BYTES = 32 << 20  # a .jsonl line is parsed whole
ZSTD_SLICE_BYTES = 1 << 10  # of compressed bytes at once: 1 KiB can hold 32 MiB of text
BOM = "\ufeff"
_AGAIN = "make the file again"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one document, cut where every tokenizer can (`Tokenizer.encode_part`) if there is such a place.

    `previous` is the character before it (empty at the beginning of the document).
    """

    text: str
    previous: str
    ends_document: bool


def read_unit(unit: Unit, unwrapped: bool = False, left_out: Callable[[], None] = lambda: None) -> Iterator[Piece]:
    """The pieces of a unit in order. Lines and rows without text are skipped; `left_out` is called for each.

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
    """Says how many rows `what` has no text of, where there are any."""
    if rows:
        say(f"{what}: leaves out {amount(rows, 'row')} without text (no `{text_key}`, null, NaN or empty)")


def _documents(segment: Segment) -> Iterator[str | None]:
    """The whole documents of a segment of any other kind than .txt; None for a row whose value is missing."""
    if segment.file.format == EMBEDDED:
        return corpus.documents()
    if isinstance(segment.file, HubShard):
        return hub_datasets.read(segment.file)
    return (_read_jsonl if segment.file.format == ".jsonl" else tables.read_table)(segment)


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
    """The same text in pieces of at most PIECE_LETTERS, none empty."""
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
    """The last good place to cut `text` in (start, limit]: after a line end that stands before other text, or before a
    space that follows other text; else after any line end, before any space, or at the limit.
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
    """A segment as text with LF line ends. Raises DataError naming the first byte that is not UTF-8 text."""
    path = segment.file
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, held, at_beginning = segment.start, "", segment.start == 0
    for chunk, final in chain(((chunk, False) for chunk in _chunks(segment)), [(b"", True)]):
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


def _read_jsonl(segment: Segment) -> Iterator[str | None]:
    """The text of each line; None where it is missing. Raises DataError naming file and line."""
    for number, line in enumerate(_lines(segment), start=1):
        if line.strip():
            try:
                first = number == 1 and segment.start == 0
                yield _text_of(line.removeprefix(codecs.BOM_UTF8) if first else line, segment.file.text_key)
            except (ValueError, TypeError, RecursionError) as error:
                raise DataError(_explain(error, segment, number)) from None


def _text_of(line: bytes, key: str) -> str | None:
    """Raises ValueError, TypeError, or RecursionError for absurdly nested values."""
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
    """One line for a line of a .jsonl file that cannot be read; `number` counts from the segment's first line."""
    reason = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        reason = f"byte {error.start} of the line is not UTF-8 ({error.reason})"
    elif isinstance(error, UnicodeEncodeError):
        reason = f"`{segment.file.text_key}` holds half of a surrogate pair"
    return f'{_place_of(segment, number)}: {reason}; each line must be like {{"{segment.file.text_key}": "..."}}'


def _place_of(segment: Segment, number: int) -> str:
    """File and line of the segment's n-th line."""
    before = Segment(segment.file, 0, segment.start)
    line = number + (sum(chunk.count(b"\n") for chunk in _chunks(before)) if segment.start else 0)
    return f"{segment.file}: line {line}"


def _lines(segment: Segment) -> Iterator[bytes]:
    parts: list[bytes] = []  # of a line that continues in the next chunk
    size, number = 0, 1
    for chunk in _chunks(segment):
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


def _chunks(segment: Segment) -> Iterator[bytes]:
    """The bytes of a segment, decompressed. Raises DataError when the file changed or its compression is damaged."""
    file = segment.file
    with opened(file) as stream:
        if file.compression == ".gz":
            yield from _gzip_chunks(stream, file)
        elif file.compression == ".zst":
            yield from _zstd_chunks(stream, file)
        else:
            stream.seek(segment.start)
            left = segment.stop - segment.start
            while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk


def _gzip_chunks(stream: BinaryIO, file: SourceFile) -> Iterator[bytes]:
    with gzip.open(stream) as unpacked:
        while True:
            try:
                chunk = unpacked.read(CHUNK_BYTES)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{file}: damaged gzip file ({error}); {_AGAIN}") from None
            if not chunk:
                return
            yield chunk


def _zstd_chunks(stream: BinaryIO, file: SourceFile) -> Iterator[bytes]:
    """zstandard's own stream reader does not notice a file that was cut off, so frames are followed one by one."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # what `zstd --long=31` writes
    frame = None
    while data := stream.read(ZSTD_SLICE_BYTES):
        while data:
            frame = frame or decompressor.decompressobj()
            try:
                chunk = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DataError(f"{file}: damaged zstd file ({error}); {_AGAIN}") from None
            if chunk:
                yield chunk
            data = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        raise DataError(f"{file}: damaged zstd file (it ends in the middle); {_AGAIN}")
