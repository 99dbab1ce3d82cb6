"""The parts of a corpus: each is a folder with the tokens of one unit of input, which a worker process writes.

A unit may begin and end within a document: the parts of a corpus, one after the other, are its stream of tokens. Two
parts of documents A (3 tokens, 7 bytes) and B (5 tokens, 20 bytes), of which unit 0 holds 2 tokens; 1 is `<eod>`:

    00000000/  tokens.bin  a a a 1 b b   documents.bin  [[4, 7]]    part.json  tokens 4, open_tokens 2, open_bytes 9
    00000001/  tokens.bin  b b b 1       documents.bin  [[4, 11]]   part.json  tokens 4, open_tokens 0, open_bytes 0

`documents.bin` is int64 [documents, 2]: tokens (`<eod>` counted) and UTF-8 bytes of each document that ends in the
part, as far as it lies in the part. `sentences.bin` is int64 [sentences], the token of the part at which each sentence
begins; it is empty where sentences are not split. A part is published with all its files or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, published_folder, write_json
from gpt1_ds.data.pool import parent_is_alive
from gpt1_ds.data.reading import Piece, read_unit
from gpt1_ds.data.segments import Unit
from gpt1_ds.data.shards import Tokens, token_dtype
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.tokenizers.base import MOST_LETTERS, Tokenizer, WholeDocumentTokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.windows import Int64s

TOKENS, DOCUMENTS, SENTENCES, SUMMARY = "tokens.bin", "documents.bin", "sentences.bin", "part.json"
FLUSH_TOKENS = 1 << 20
READ_DOCUMENTS = 1 << 20


@dataclass
class PartSummary:
    """The contents of part.json. `tokens` and `bytes` are those up to the last `<eod>`, the `open_` ones those after
    it, of the document that continues in the next part.
    """

    documents: int
    tokens: int
    bytes: int
    open_tokens: int
    open_bytes: int
    sentences: int = 0
    left_out: int = 0  # rows without text


class PartTask:
    """Tokenizes units into part folders; made in one process and called in others."""

    def __init__(self, tokenizer_folder: Path, parts: Path, unwrapped: bool, split_sentences: bool = False) -> None:
        self.tokenizer_folder, self.parts, self.unwrapped = tokenizer_folder, parts, unwrapped
        self.split_sentences = split_sentences
        self._tokenizer: Tokenizer | None = None

    def __call__(self, unit: Unit) -> PartSummary:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.tokenizer_folder)
        try:
            with published_folder(part_folder(self.parts, unit.number)) as folder:
                summary = write_part(folder, unit, self._tokenizer, self.unwrapped, self.split_sentences)
                write_json(folder / SUMMARY, asdict(summary))
        except OSError:  # a worker of a killed build may have published the same part a moment ago
            finished = finished_part(self.parts, unit.number, token_dtype(self._tokenizer.vocab_size))
            if finished is None:
                raise
            return finished
        return summary


def part_folder(parts: Path, number: int) -> Path:
    return parts / f"{number:08d}"


def finished_part(parts: Path, number: int, dtype: np.dtype[np.integer]) -> PartSummary | None:
    """Returns the summary of a part whose files are all there with their full sizes, else None."""
    folder = part_folder(parts, number)
    try:
        summary = PartSummary(**json.loads((folder / SUMMARY).read_bytes()))
        sizes = {
            TOKENS: (summary.tokens + summary.open_tokens) * dtype.itemsize,
            DOCUMENTS: 16 * summary.documents,
        }
        if summary.sentences:
            sizes[SENTENCES] = 8 * summary.sentences
        is_whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, TypeError):
        return None
    return summary if is_whole else None


def document_blocks(folder: Path, summary: PartSummary) -> Iterator[Int64s]:
    """Yields int64 [documents, 2]: the tokens and bytes of a part's documents, at most READ_DOCUMENTS in a block."""
    with open(folder / DOCUMENTS, "rb") as file:
        for start in range(0, summary.documents, READ_DOCUMENTS):
            count = min(READ_DOCUMENTS, summary.documents - start)
            yield np.fromfile(file, np.int64, 2 * count).reshape(count, 2)


class PartReader:
    """Reads the tokens of a part once, from its beginning to its end, and where sentences end in them."""

    def __init__(self, folder: Path, dtype: np.dtype[np.integer], summary: PartSummary) -> None:
        self.dtype, self._position = dtype, 0
        self._file = open(folder / TOKENS, "rb")  # noqa: SIM115 - closed by `with`
        self._sentence_borders = np.empty(0, dtype=np.int64)
        if summary.sentences:  # an empty file cannot be mapped
            starts = np.memmap(folder / SENTENCES, "<i8", "r", shape=(summary.sentences,))
            self._sentence_borders = np.append(starts, summary.tokens + summary.open_tokens)

    def read(self, tokens: int) -> tuple[Tokens, Int64s]:
        """Returns (the next tokens, the places in them after which a sentence ends; none where sentences are not
        split).
        """
        block = np.fromfile(self._file, self.dtype, tokens)
        begin, self._position = self._position, self._position + len(block)
        low, high = np.searchsorted(self._sentence_borders, [begin, self._position], side="right")
        return block, self._sentence_borders[low:high] - begin

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_part(folder: Path, unit: Unit, tokenizer: Tokenizer, unwrapped: bool, split_sentences: bool) -> PartSummary:
    """Tokenizes `unit` into the binary files of `folder`."""
    with (
        open(folder / TOKENS, "wb") as tokens,
        open(folder / DOCUMENTS, "wb") as documents,
        open(folder / SENTENCES, "wb") as sentence_starts,
    ):
        files = (tokens, documents, sentence_starts)
        writer = _PartWriter(folder, files, token_dtype(tokenizer.vocab_size), tokenizer.eod_id)
        pieces = read_unit(unit, unwrapped, writer.count_left_out)
        for text in encoded(pieces, unit, tokenizer, split_sentences):
            writer.add(text)
            if writer.buffered_tokens >= FLUSH_TOKENS:
                writer.flush()
                if not parent_is_alive():
                    raise SystemExit("the build that this worker belonged to is gone")
        writer.flush()
        for file in files:
            os.fsync(file.fileno())
    return writer.summary


class _PartWriter:
    """Writes the texts of a part in large blocks, so that many short documents cost few writes."""

    def __init__(
        self, folder: Path, files: tuple[BinaryIO, BinaryIO, BinaryIO], dtype: np.dtype[np.integer], eod_id: int
    ) -> None:
        self.folder, self.files, self.dtype = folder, files, dtype
        self._eod = np.array([eod_id], dtype=np.int32)
        self.summary = PartSummary(0, 0, 0, 0, 0)
        self._ids: list[NDArray[np.int32]] = []  # not written yet, as the following lists
        self._document_rows: list[tuple[int, int]] = []
        self._sentence_starts: list[int] = []
        self.buffered_tokens = 0

    def add(self, text: EncodedText) -> None:
        """Appends a text to the open document."""
        summary = self.summary
        first_token = summary.tokens + summary.open_tokens
        self._sentence_starts += (first_token + start for start in text.sentences)
        summary.sentences += len(text.sentences)
        self._ids.append(text.ids)
        summary.open_tokens += len(text.ids)
        summary.open_bytes += text.bytes
        self.buffered_tokens += len(text.ids) + 1
        if text.ends_document:
            self._ids.append(self._eod)
            self._document_rows.append((summary.open_tokens + 1, summary.open_bytes))
            summary.documents += 1
            summary.tokens += summary.open_tokens + 1
            summary.bytes += summary.open_bytes
            summary.open_tokens = summary.open_bytes = 0

    def count_left_out(self) -> None:
        """Counts a row without text."""
        self.summary.left_out += 1

    def flush(self) -> None:
        tokens, documents, sentence_starts = self.files
        with naming(self.folder):
            if self._ids:
                tokens.write(np.concatenate(self._ids).astype(self.dtype).data)
            documents.write(np.array(self._document_rows, dtype="<i8").tobytes())
            sentence_starts.write(np.array(self._sentence_starts, dtype="<i8").tobytes())
            for file in self.files:
                file.flush()
        for gathered in (self._ids, self._document_rows, self._sentence_starts):
            gathered.clear()
        self.buffered_tokens = 0


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A piece of a document: its ids, at which of them sentences begin, and its UTF-8 bytes."""

    ids: NDArray[np.int32]
    sentences: list[int]
    bytes: int
    ends_document: bool


def encoded(pieces: Iterable[Piece], unit: Unit, tokenizer: Tokenizer, split_sentences: bool) -> Iterator[EncodedText]:
    """Encodes the pieces of a unit one by one, or whole documents where the tokenizer needs them."""
    if split_sentences:
        pieces = sentences(pieces)
    if tokenizer.whole_documents:
        assert isinstance(tokenizer, WholeDocumentTokenizer), tokenizer.kind
        yield from _encoded_whole(pieces, unit, tokenizer, split_sentences)
        return
    for piece in pieces:
        ids = tokenizer.encode_part(piece.text, piece.previous, not piece.ends_document)
        starts = [0] if split_sentences and len(ids) else []
        yield EncodedText(ids, starts, utf8_bytes(piece.text), piece.ends_document)


def _encoded_whole(
    pieces: Iterable[Piece], unit: Unit, tokenizer: WholeDocumentTokenizer, split_sentences: bool
) -> Iterator[EncodedText]:
    texts: list[str] = []  # of the document that `number` counts, in the unit
    letters, number = 0, 1
    for piece in pieces:
        texts.append(piece.text)
        letters += len(piece.text)
        if letters > MOST_LETTERS:
            raise DataError(
                f"{unit}: a document is longer than {MOST_LETTERS >> 20} Mi letters, and a tokenizer of the kind "
                f"{tokenizer.kind} reads documents whole; cut it into several"
            )
        if piece.ends_document:
            text = "".join(texts)
            try:
                ids, starts = tokenizer.encode_sentences(texts) if split_sentences else (tokenizer.encode(text), [])
            except DataError as error:
                raise DataError(f"{unit}: document {number}, which begins with {text[:40]!r}: {error}") from None
            yield EncodedText(ids, starts, utf8_bytes(text), True)
            texts, letters, number = [], 0, number + 1


def utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
