"""Which documents are held out, and the joining of parts into the shards of each split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.parts import DOCUMENTS, TOKENS, PartSummary, part_folder, sentence_starts
from gpt1_ds.data.shards import Int64s, ShardWriter, Tokens

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

    def write(self, tokens: Tokens, ends: Int64s, sentence_ends: Int64s | None = None) -> None:
        """Append tokens; `ends` are the places after which a document ends, ascending, `sentence_ends` more of them
        after which a sentence does (None: a document is one sequence).
        """
        all_ends = ends if sentence_ends is None else np.union1d(ends, sentence_ends)
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
    split_sentences: bool = False

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
        return _PartTokens(part_folder(parts, number), self.train.dtype, summary, self.split_sentences)

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
                    before = after = None
                    if sentence_ends is not None:
                        before = sentence_ends[(sentence_ends <= left) & (sentence_ends < cut - start)]
                        after = sentence_ends[sentence_ends > left] - left
                    self.train.write(block[:left], ends[low:high] - start, before)
                    held_out = block[left:]
                    self.validation.write(held_out, np.flatnonzero(held_out == self.eod_id) + 1, after)
                    self.validation.bytes += int(self.bytes_per_token[held_out].sum())
                    start += len(block)
        last = np.ones(1, dtype=np.int64)
        self.train.write(np.array([self.eod_id]), last, last if self.split_sentences else None)
        self.validation.bytes = min(self.validation.bytes, text_bytes)
        self.train.bytes = text_bytes - self.validation.bytes


class _PartTokens:
    """The tokens of a part, read once from its beginning, with the places after which sentences end."""

    def __init__(self, folder: Path, dtype: np.dtype[np.integer], summary: PartSummary, split_sentences: bool) -> None:
        self.dtype, self.total = dtype, summary.tokens + summary.open_tokens
        self._file = open(folder / TOKENS, "rb")  # noqa: SIM115 - closed by `with`
        self._starts = sentence_starts(folder, summary) if split_sentences else None
        self._at = 0

    def read(self, tokens: int) -> tuple[Tokens, Int64s | None]:
        """(the next tokens, the places in them after which a sentence ends; None where sentences are not split). A part
        ends with the end of one.
        """
        block = np.fromfile(self._file, self.dtype, tokens)
        begin, self._at = self._at, self._at + len(block)
        if self._starts is None:
            return block, None
        low, high = np.searchsorted(self._starts, [begin, self._at], side="right")
        at_end = [self._at] if self._at == self.total else []
        return block, np.concatenate([self._starts[low:high], np.array(at_end, dtype=np.int64)]) - begin

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
