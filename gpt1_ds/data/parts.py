"""One unit of a corpus, tokenized: a part folder that appears whole or not at all.

`tokens.bin` holds ids, `<eod>` after each document; `documents.bin` int64 [documents, 2] of tokens (with `<eod>`) and
UTF-8 bytes of each document that ends in this part; `part.json` the totals. What follows the last `<eod>` continues
in the next part. Where sentences are split, `sentences.bin` holds int64 [sentences], the token that each begins at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, published_folder, write_json
from gpt1_ds.data.pool import parent_is_alive
from gpt1_ds.data.reading import Piece, read_unit
from gpt1_ds.data.segments import Unit
from gpt1_ds.data.shards import Int64s, token_dtype
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.tokenizers.base import MOST_LETTERS, Tokenizer, WholeDocumentTokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer

TOKENS, DOCUMENTS, SENTENCES, SUMMARY = "tokens.bin", "documents.bin", "sentences.bin", "part.json"
FLUSH_TOKENS = 1 << 20


@dataclass(frozen=True)
class PartSummary:
    """Counts of a part. The `open_` ones are what follows its last `<eod>`, and are not in the others."""

    documents: int
    tokens: int
    bytes: int
    open_tokens: int
    open_bytes: int
    sentences: int = 0
    left_out: int = 0  # rows without text


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Ids of a piece of text, the tokens of it that sentences begin at, and its UTF-8 bytes."""

    ids: NDArray[np.int32]
    sentences: list[int]
    bytes: int
    ends_document: bool


class PartTask:
    """Tokenizes units into part folders; made in one process and called in others."""

    def __init__(self, tokenizer_folder: Path, parts: Path, unwrapped: bool, split_sentences: bool = False) -> None:
        self.tokenizer_folder, self.parts, self.unwrapped = tokenizer_folder, parts, unwrapped
        self.split_sentences = split_sentences
        self._tokenizer: Tokenizer | None = None

    def __call__(self, unit: Unit) -> PartSummary:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.tokenizer_folder)
        place = part_folder(self.parts, unit.number)
        try:
            with published_folder(place) as folder:
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
    """The summary of a part that is there and whole, else None."""
    folder = part_folder(parts, number)
    try:
        summary = PartSummary(**json.loads((folder / SUMMARY).read_bytes()))
        tokens, documents = (folder / TOKENS).stat().st_size, (folder / DOCUMENTS).stat().st_size
        sentences_size = (folder / SENTENCES).stat().st_size if summary.sentences else 0
    except (OSError, ValueError, TypeError):
        return None
    whole = tokens == (summary.tokens + summary.open_tokens) * dtype.itemsize and documents == 16 * summary.documents
    return summary if whole and sentences_size == 8 * summary.sentences else None


def sentence_starts(folder: Path, summary: PartSummary) -> Int64s:
    """int64 [sentences]: the token of a part that each begins at."""
    if not summary.sentences:  # an empty file cannot be mapped
        return np.empty(0, dtype=np.int64)
    return np.memmap(folder / SENTENCES, "<i8", "r", shape=(summary.sentences,)).view(np.ndarray)


def write_part(
    folder: Path, unit: Unit, tokenizer: Tokenizer, unwrapped: bool, split_sentences: bool = False
) -> PartSummary:
    """Tokenize `unit` into the files of `folder`, in large blocks, so that many short documents cost few writes."""
    dtype, eod = token_dtype(tokenizer.vocab_size), np.array([tokenizer.eod_id], dtype=np.int32)
    ids: list[NDArray[np.int32]] = []
    rows: list[tuple[int, int]] = []
    starts: list[int] = []
    gathered = open_tokens = open_bytes = count = left_out = 0
    total = np.zeros(3, dtype=np.int64)  # documents, tokens, bytes
    with (
        open(folder / TOKENS, "wb") as tokens,
        open(folder / DOCUMENTS, "wb") as documents,
        open(folder / SENTENCES, "wb") as sentence_file,
    ):

        def note() -> None:
            nonlocal left_out
            left_out += 1

        def flush() -> None:
            with naming(folder):
                if ids:
                    tokens.write(np.concatenate(ids).astype(dtype).data)
                documents.write(np.array(rows, dtype="<i8").tobytes())
                sentence_file.write(np.array(starts, dtype="<i8").tobytes())
                for file in (tokens, documents, sentence_file):
                    file.flush()
            ids.clear()
            rows.clear()
            starts.clear()

        for text in encoded(read_unit(unit, unwrapped, note), unit, tokenizer, split_sentences):
            ids.append(text.ids)
            starts += (int(total[1]) + open_tokens + start for start in text.sentences)
            count += len(text.sentences)
            open_tokens += len(text.ids)
            open_bytes += text.bytes
            gathered += len(text.ids) + 1
            if text.ends_document:
                ids.append(eod)
                rows.append((open_tokens + 1, open_bytes))
                total += (1, *rows[-1])
                open_tokens = open_bytes = 0
            if gathered >= FLUSH_TOKENS:
                flush()
                gathered = 0
                if not parent_is_alive():
                    raise SystemExit("the build that this worker belonged to is gone")
        flush()
        for file in (tokens, documents, sentence_file):
            file.flush()
            os.fsync(file.fileno())
    ended, size, text_bytes = (int(number) for number in total)
    return PartSummary(ended, size, text_bytes, open_tokens, open_bytes, count, left_out)


def encoded(pieces: Iterable[Piece], unit: Unit, tokenizer: Tokenizer, split_sentences: bool) -> Iterator[EncodedText]:
    """The text of a unit as ids, in pieces; whole documents where the tokenizer needs them."""
    if tokenizer.whole_documents:
        assert isinstance(tokenizer, WholeDocumentTokenizer), tokenizer.kind
        yield from _encoded_whole(unit, pieces, tokenizer, split_sentences)
        return
    for piece in sentences(pieces) if split_sentences else pieces:
        ids = tokenizer.encode_part(piece.text, piece.previous, not piece.ends_document)
        yield EncodedText(ids, [0] if split_sentences and len(ids) else [], utf8_bytes(piece.text), piece.ends_document)


def _encoded_whole(
    unit: Unit, pieces: Iterable[Piece], tokenizer: WholeDocumentTokenizer, split_sentences: bool
) -> Iterator[EncodedText]:
    texts: list[str] = []
    letters, number = 0, 1
    for piece in sentences(pieces) if split_sentences else pieces:
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
