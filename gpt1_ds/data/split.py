"""A corpus becomes the shards of its splits: units are tokenized into parts, which are joined by documents.

A part is a folder that appears whole or not at all. `tokens.bin` holds ids, `<eod>` after each document;
`documents.bin` int64 [documents, 2] of tokens (with `<eod>`) and UTF-8 bytes of each document that ends in this part;
`part.json` the totals. What follows the last `<eod>` continues in the next part. Where sentences are split,
`sentences.bin` holds int64 [sentences], the token that each begins at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, published_folder, write_json
from gpt1_ds.data.pool import parent_is_alive
from gpt1_ds.data.reading import Piece, read_unit
from gpt1_ds.data.segments import Unit
from gpt1_ds.data.shards import ShardWriter, Tokens, token_dtype
from gpt1_ds.data.splitter import sentences
from gpt1_ds.data.tokenizers.base import MOST_LETTERS, Tokenizer, WholeDocumentTokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.windows import Int64s

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


def write_part(folder: Path, unit: Unit, tokenizer: Tokenizer, unwrapped: bool, split_sentences: bool) -> PartSummary:
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


TRAIN, VALIDATION = "train", "validation"
COPY_TOKENS = 1 << 22
COPY_DOCUMENTS = 1 << 20


class SplitWriter:
    """Writes one split as shards of at most `shard_tokens` tokens, cut at any token."""

    def __init__(self, out: Path, name: str, dtype: np.dtype[np.integer], shard_tokens: int) -> None:
        self.out, self.name, self.dtype, self.shard_tokens = out, name, dtype, shard_tokens
        self.tokens = self.documents = self.bytes = 0
        self.shards: list[dict[str, Any]] = []
        self._writer: ShardWriter | None = None
        self._ended = 0  # documents that end in the open shard

    def write(self, tokens: Tokens, ends: Int64s, sentence_ends: Int64s) -> None:
        """Append tokens; `ends` are the places after which a document ends, ascending, `sentence_ends` those after
        which a sentence does (none: a document is one sequence).
        """
        all_ends = np.union1d(ends, sentence_ends)
        self.tokens += len(tokens)
        self.documents += len(ends)
        while len(tokens):
            if self._writer is None:
                self._writer = ShardWriter(self.out / f"{self.name}-{len(self.shards):05d}", self.dtype)
            take = min(self.shard_tokens - self._writer.tokens, len(tokens))
            here = ends[: np.searchsorted(ends, take, side="right")]
            all_here = all_ends[: np.searchsorted(all_ends, take, side="right")]
            self._writer.write(tokens[:take], all_here, here)
            self._ended += len(here)
            tokens, ends, all_ends = tokens[take:], ends[len(here) :] - take, all_ends[len(all_here) :] - take
            if self._writer.tokens == self.shard_tokens:
                self._close_shard()

    def finish(self) -> dict[str, Any]:
        """This split's entry in dataset.json."""
        if self._writer is not None:
            self._close_shard()
        return {"tokens": self.tokens, "documents": self.documents, "bytes": self.bytes, "shards": self.shards}

    def _close_shard(self) -> None:
        assert self._writer is not None, "there is no open shard"
        summary = asdict(self._writer.close())
        self.shards.append({"name": self._writer.prefix.name, "documents": self._ended, **summary})
        self._writer, self._ended = None, 0


@dataclass(frozen=True)
class SplitRule:
    """Which of `documents` documents are held out: a systematic sample of share `fraction`, at least one of several.

    Document i is held out when floor((i+1) * fraction) > floor(i * fraction): every prefix holds its exact share. Where
    that picks none, the last document is held out, or as much of its tail as is the share of all tokens.
    """

    fraction: float
    documents: int

    @cached_property
    def _ratio(self) -> Fraction:
        return Fraction(str(self.fraction)).limit_denominator(1_000_000)

    @property
    def picks_none(self) -> bool:
        """Whether no whole document is held out, although some text is to be."""
        return self.fraction > 0 and self.documents * self._ratio.numerator < self._ratio.denominator

    def tail(self, tokens: int, last: int) -> int:
        """How many tokens of the last document, which has `last` of all `tokens`, are held out apart from its `<eod>`;
        0 where documents are held out as a whole. `<eod>` tokens count in both numbers.
        """
        if not self.picks_none:
            return 0
        wanted = max(1, round((tokens - self.documents) * self.fraction))
        if self.documents == 1:
            return min(wanted, last - 1)
        return wanted if wanted < last - 1 else 0

    def held_out(self, first: int, count: int) -> NDArray[np.bool_]:
        """bool [count]: for documents first, first + 1, ..."""
        numbers = np.arange(first, first + count, dtype=np.int64)
        above, below = self._ratio.numerator, self._ratio.denominator
        if self.picks_none:
            return np.equal(numbers, self.documents - 1)
        return np.greater((numbers + 1) * above // below, numbers * above // below)


@dataclass
class Splits:
    """The writers of both splits; `rule` says which document goes where."""

    train: SplitWriter
    validation: SplitWriter
    rule: SplitRule
    eod_id: int
    bytes_per_token: NDArray[np.int32]

    def join(self, parts: Path, summaries: Sequence[PartSummary]) -> int:
        """Copy the parts in order; the number of tokens that were added: an `<eod>` where a document is cut."""
        if self.rule.picks_none:
            ends = _ends(parts, summaries)
            tail = self.rule.tail(int(ends[-1]), int(ends[-1] - (ends[-2] if len(ends) > 1 else 0)))
            if tail:
                self._cut_last(parts, summaries, ends, tail)
                return 1
        document = 0
        for number, summary in enumerate(summaries):
            with self._part(parts, number, summary) as tokens:
                for block in _document_blocks(part_folder(parts, number), summary):
                    self._copy(tokens, document, block)
                    document += len(block)
                if summary.open_tokens:  # the document continues in the next part
                    writer = self._writer(bool(self.rule.held_out(document, 1)[0]))
                    self._copy_run(tokens, writer, np.empty(0, dtype=np.int64), summary.open_tokens)
                    writer.bytes += summary.open_bytes
        return 0

    def _writer(self, held_out: bool) -> SplitWriter:
        return self.validation if held_out else self.train

    def _part(self, parts: Path, number: int, summary: PartSummary) -> _PartTokens:
        return _PartTokens(part_folder(parts, number), self.train.dtype, summary)

    def _copy(self, part: _PartTokens, first: int, block: Int64s) -> None:
        """Copy the documents `block` [documents, 2] (tokens, bytes), in runs of documents of the same split."""
        held_out = self.rule.held_out(first, len(block))
        borders = np.flatnonzero(np.diff(held_out)) + 1
        for begin, end in zip([0, *borders.tolist()], [*borders.tolist(), len(block)], strict=True):
            ends = np.cumsum(block[begin:end, 0])
            writer = self._writer(bool(held_out[begin]))
            self._copy_run(part, writer, ends, int(ends[-1]))
            writer.bytes += int(block[begin:end, 1].sum())

    def _copy_run(self, part: _PartTokens, writer: SplitWriter, ends: Int64s, tokens: int) -> None:
        """Copy the next `tokens` tokens of a part, in which documents end after `ends`."""
        for start in range(0, tokens, COPY_TOKENS):
            block, sentence_ends = part.read(min(COPY_TOKENS, tokens - start))
            low, high = np.searchsorted(ends, [start, start + len(block)], side="right")
            writer.write(block, ends[low:high] - start, sentence_ends)

    def _cut_last(self, parts: Path, summaries: Sequence[PartSummary], ends: Int64s, tail: int) -> None:
        """The last `tail` tokens and the last `<eod>` are held out; what is cut off is closed by an `<eod>`, too."""
        cut, start = int(ends[-1]) - 1 - tail, 0
        text_bytes = sum(one.bytes + one.open_bytes for one in summaries)
        for number, summary in enumerate(summaries):
            with self._part(parts, number, summary) as part:
                while len((read := part.read(COPY_TOKENS))[0]):
                    block, sentence_ends = read
                    left = min(max(0, cut - start), len(block))
                    low, high = np.searchsorted(ends, [start, start + left], side="right")
                    before = sentence_ends[(sentence_ends <= left) & (sentence_ends < cut - start)]
                    self.train.write(block[:left], ends[low:high] - start, before)
                    held_out, after = block[left:], sentence_ends[sentence_ends > left] - left
                    self.validation.write(held_out, np.flatnonzero(held_out == self.eod_id) + 1, after)
                    self.validation.bytes += int(self.bytes_per_token[held_out].sum())
                    start += len(block)
        last = np.ones(1, dtype=np.int64)
        self.train.write(np.array([self.eod_id]), last, last)
        self.validation.bytes = min(self.validation.bytes, text_bytes)
        self.train.bytes = text_bytes - self.validation.bytes


class _PartTokens:
    """The tokens of a part, read once from its beginning, with the places after which sentences end."""

    def __init__(self, folder: Path, dtype: np.dtype[np.integer], summary: PartSummary) -> None:
        self.dtype, self._at = dtype, 0
        self._file = open(folder / TOKENS, "rb")  # noqa: SIM115 - closed by `with`
        total = summary.tokens + summary.open_tokens  # where the last sentence of the part ends
        starts = sentence_starts(folder, summary)
        self._borders = np.append(starts, total) if len(starts) else starts

    def read(self, tokens: int) -> tuple[Tokens, Int64s]:
        """(the next tokens, the places in them after which a sentence ends; none where sentences are not split)."""
        block = np.fromfile(self._file, self.dtype, tokens)
        begin, self._at = self._at, self._at + len(block)
        low, high = np.searchsorted(self._borders, [begin, self._at], side="right")
        return block, self._borders[low:high] - begin

    def __enter__(self) -> _PartTokens:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _ends(parts: Path, summaries: Sequence[PartSummary]) -> Int64s:
    """int64 [documents]: the places after which they end, in all parts together."""
    found, place = [], 0
    for number, summary in enumerate(summaries):
        for block in _document_blocks(part_folder(parts, number), summary):
            found.append(place + np.cumsum(block[:, 0]))
            place = int(found[-1][-1])
        place += summary.open_tokens
    return np.concatenate(found)


def _document_blocks(folder: Path, summary: PartSummary) -> Iterator[Int64s]:
    """int64 [documents, 2]: tokens and bytes of a part's documents, some at a time."""
    with open(folder / DOCUMENTS, "rb") as file:
        for start in range(0, summary.documents, COPY_DOCUMENTS):
            count = min(COPY_DOCUMENTS, summary.documents - start)
            yield np.fromfile(file, np.int64, 2 * count).reshape(count, 2)
