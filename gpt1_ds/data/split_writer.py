"""From the parts of a corpus to the shards of its two splits: train and validation.

`PartJoiner` reads the parts (parts.py) in order and gives each document to the `SplitWriter` that the rule
(split_rule.py) names. A document may lie in several parts, and in several shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.parts import PartReader, PartSummary, document_blocks, part_folder
from gpt1_ds.data.shards import ShardWriter, Tokens
from gpt1_ds.data.split_rule import SplitRule
from gpt1_ds.data.windows import Int64s

COPY_TOKENS = 1 << 22


@dataclass
class PartJoiner:
    """Copies parts into the splits. `bytes_per_token` is int32 [vocabulary]: the UTF-8 bytes of each id."""

    parts: Path
    summaries: Sequence[PartSummary]
    train: SplitWriter
    validation: SplitWriter
    rule: SplitRule
    eod_id: int
    bytes_per_token: NDArray[np.int32]

    def join(self) -> int:
        """Copies all parts, and returns the number of tokens that were added: an `<eod>` where a document is cut."""
        if self.rule.is_less_than_one_document:
            ends = self._document_ends()
            last_begin = int(ends[-2]) if len(ends) > 1 else 0
            tail = self.rule.tail(int(ends[-1]), int(ends[-1]) - last_begin)
            if tail:
                self._hold_out_tail(ends, tail)
                return 1
        self._copy_documents()
        return 0

    def _copy_documents(self) -> None:
        """Copies every document as a whole into its split."""
        document = 0
        for number, summary in enumerate(self.summaries):
            with self._reader(number) as part:
                for block in document_blocks(part_folder(self.parts, number), summary):
                    self._copy_block(part, document, block)
                    document += len(block)
                if summary.open_tokens:  # the document continues in the next part
                    writer = self._writer(bool(self.rule.held_out(document, 1)[0]))
                    self._copy_tokens(part, writer, np.empty(0, dtype=np.int64), summary.open_tokens)
                    writer.bytes += summary.open_bytes

    def _copy_block(self, part: PartReader, first: int, block: Int64s) -> None:
        """Copies documents first, first + 1, ... whose tokens and bytes are `block` [documents, 2], in runs of
        documents of the same split.
        """
        held_out = self.rule.held_out(first, len(block))
        changes = (np.flatnonzero(np.diff(held_out)) + 1).tolist()
        for begin, end in zip([0, *changes], [*changes, len(block)], strict=True):
            document_ends = np.cumsum(block[begin:end, 0])
            writer = self._writer(bool(held_out[begin]))
            self._copy_tokens(part, writer, document_ends, int(document_ends[-1]))
            writer.bytes += int(block[begin:end, 1].sum())

    def _copy_tokens(self, part: PartReader, writer: SplitWriter, document_ends: Int64s, tokens: int) -> None:
        """Copies the next `tokens` tokens of a part, in which documents end after `document_ends`."""
        for start in range(0, tokens, COPY_TOKENS):
            block, sentence_ends = part.read(min(COPY_TOKENS, tokens - start))
            low, high = np.searchsorted(document_ends, [start, start + len(block)], side="right")
            writer.write(block, document_ends[low:high] - start, sentence_ends)

    def _hold_out_tail(self, document_ends: Int64s, tail: int) -> None:
        """Holds out the last `tail` tokens and the `<eod>` after them; another `<eod>` ends the cut document in train.

        tokens of the parts  a a a 1 b b b b b 1     tail 2
        train                a a a 1 b b b 1
        validation                         b b 1
        """
        cut, start = int(document_ends[-1]) - 1 - tail, 0
        for number in range(len(self.summaries)):
            with self._reader(number) as part:
                while len((read := part.read(COPY_TOKENS))[0]):
                    block, sentence_ends = read
                    left = min(max(0, cut - start), len(block))  # tokens of the block before the cut
                    low, high = np.searchsorted(document_ends, [start, start + left], side="right")
                    ends_before = sentence_ends[(sentence_ends <= left) & (sentence_ends < cut - start)]
                    self.train.write(block[:left], document_ends[low:high] - start, ends_before)
                    held_out, ends_after = block[left:], sentence_ends[sentence_ends > left] - left
                    self.validation.write(held_out, np.flatnonzero(held_out == self.eod_id) + 1, ends_after)
                    self.validation.bytes += int(self.bytes_per_token[held_out].sum())
                    start += len(block)
        last_end = np.ones(1, dtype=np.int64)
        self.train.write(np.array([self.eod_id]), last_end, last_end)
        text_bytes = sum(summary.bytes + summary.open_bytes for summary in self.summaries)
        self.validation.bytes = min(self.validation.bytes, text_bytes)
        self.train.bytes = text_bytes - self.validation.bytes

    def _document_ends(self) -> Int64s:
        """Returns int64 [documents]: the places after which documents end, in the tokens of all parts together."""
        ends, position = [], 0
        for number, summary in enumerate(self.summaries):
            for block in document_blocks(part_folder(self.parts, number), summary):
                ends.append(position + np.cumsum(block[:, 0]))
                position = int(ends[-1][-1])
            position += summary.open_tokens
        return np.concatenate(ends)

    def _reader(self, number: int) -> PartReader:
        return PartReader(part_folder(self.parts, number), self.train.dtype, self.summaries[number])

    def _writer(self, held_out: bool) -> SplitWriter:
        return self.validation if held_out else self.train


class SplitWriter:
    """Writes one split as shards of at most `shard_tokens` tokens, cut at any token."""

    def __init__(self, out: Path, name: str, dtype: np.dtype[np.integer], shard_tokens: int) -> None:
        self.out, self.name, self.dtype, self.shard_tokens = out, name, dtype, shard_tokens
        self.tokens = self.documents = self.bytes = 0
        self.shards: list[dict[str, Any]] = []
        self._shard: ShardWriter | None = None
        self._shard_documents = 0  # documents that end in the open shard

    def write(self, tokens: Tokens, document_ends: Int64s, sentence_ends: Int64s) -> None:
        """Appends tokens. `document_ends` are the places in them, ascending, after which a document ends;
        `sentence_ends` are those after which a sentence does (none: a document is one sequence).
        """
        sequence_ends = np.union1d(document_ends, sentence_ends)
        self.tokens += len(tokens)
        self.documents += len(document_ends)
        while len(tokens):
            if self._shard is None:
                self._shard = ShardWriter(self.out / f"{self.name}-{len(self.shards):05d}", self.dtype)
            size = min(self.shard_tokens - self._shard.tokens, len(tokens))
            documents = int(np.searchsorted(document_ends, size, side="right"))
            sequences = int(np.searchsorted(sequence_ends, size, side="right"))
            self._shard.write(tokens[:size], sequence_ends[:sequences], document_ends[:documents])
            self._shard_documents += documents
            tokens = tokens[size:]
            document_ends, sequence_ends = document_ends[documents:] - size, sequence_ends[sequences:] - size
            if self._shard.tokens == self.shard_tokens:
                self._close_shard()

    def finish(self) -> dict[str, Any]:
        """Returns this split's entry in dataset.json."""
        if self._shard is not None:
            self._close_shard()
        return {"tokens": self.tokens, "documents": self.documents, "bytes": self.bytes, "shards": self.shards}

    def _close_shard(self) -> None:
        assert self._shard is not None, "there is no open shard"
        summary = asdict(self._shard.close())
        self.shards.append({"name": self._shard.prefix.name, "documents": self._shard_documents, **summary})
        self._shard, self._shard_documents = None, 0
