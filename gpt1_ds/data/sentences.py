"""The sentences of one split, by number: where each begins and ends, and which are a document's.

Shapes: D documents that hold text, N sentences that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.dataset import COUNTED, SENTENCE_COUNTS, TokenStream
from gpt1_ds.data.windows import Int64s

BLOCK_SENTENCES = 1 << 20


@dataclass(frozen=True)
class Block:
    """Consecutive sentences with text: `inside` sentences of this block, then some that later blocks begin with."""

    number_N: Int64s
    start_N: Int64s  # the first token
    end_N: Int64s  # the token after the last, <eod> not counted
    left_N: Int64s  # sentences of the document from this one on
    inside: int


def follow(next_N: Int64s, begin: int, inside: int) -> tuple[Int64s, int]:
    """Goes from place `begin` to next_N[begin] and so on, as long as the place is below `inside`. Returns the places
    and the first one that is not below: with next_N = [2, 5, 3, 4, 6], 0 and 5 these are [0, 2, 3, 4] and 6.
    """
    following, visited, place = next_N[:inside].tolist(), [], begin
    while place < inside:
        visited.append(place)
        place = following[place]
    return np.array(visited, dtype=np.int64), place


class Sentences:
    """Only what each document needs is in memory (24 bytes); sentences are looked up in the index on the disk.

    Raises DataError for an index that cannot be right.
    """

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        bases, tokens = [0], [0]
        for number, entry in enumerate(stream.shards):
            shard, documents = stream.shard(number), entry["documents"]
            shard.check_documents()
            if documents not in (len(shard.documents) - 1, len(shard.documents) - 2):
                raise DataError(f"{shard.idx_path}: {len(shard.documents) - 1} documents, but {documents} were written")
            bases.append(bases[-1] + shard.sequences)
            tokens.append(tokens[-1] + entry["tokens"])
        self.count = bases[-1]
        self._bases, self._tokens = np.array(bases), np.array(tokens)  # first sentence and token of each shard
        self.first_D, self.stop_D, self.eod_D = self._read_documents()
        """int64 [D] each: the first sentence of a document, the one after its last, and its `<eod>`'s token."""
        self.documents = len(self.first_D)

    def _read_documents(self) -> Int64s:
        """Returns int64 [3, D]: first_D, stop_D and eod_D. It is filled block by block: there may be many documents."""
        count = sum(entry["documents"] for entry in self.stream.shards)
        documents_3D, filled, first = np.empty((3, count), dtype=np.int64), 0, 0
        for next_D in self._document_blocks():
            first_D, first = np.concatenate([[first], next_D[:-1]]), int(next_D[-1])
            last_start_D, last_end_D = self._look_up(next_D - 1)
            is_eod_D = last_start_D == last_end_D - 1  # the last sequence may be <eod> alone: no sentence
            stop_D = next_D - is_eod_D
            block_3D = np.stack([first_D, stop_D, last_end_D - 1])[:, stop_D > first_D]
            stop = filled + block_3D.shape[1]
            documents_3D[:, filled:stop] = block_3D
            filled = stop
        return documents_3D[:, :filled]

    def _document_blocks(self) -> Iterator[Int64s]:
        """Yields the sequence at which the next document begins, of some documents at a time."""
        for number, entry in enumerate(self.stream.shards):
            for first in range(0, entry["documents"], BLOCK_SENTENCES):
                last = min(first + BLOCK_SENTENCES, entry["documents"])
                yield self.stream.shard(number).documents[first + 1 : last + 1] + self._bases[number]

    def document(self, sentence_N: Int64s) -> Int64s:
        """Returns int64 [N]: the document that holds each sentence, counted among those with text."""
        return np.searchsorted(self.first_D, sentence_N, side="right") - 1

    def spans(self, sentence_N: Int64s) -> tuple[Int64s, Int64s]:
        """Returns int64 [N] each: the first token of each sentence, the token after its last one, without `<eod>`."""
        start_N, end_N = self._look_up(sentence_N)
        eod_N = self.eod_D[self.document(sentence_N)]
        return start_N, np.where(start_N <= eod_N, np.minimum(end_N, eod_N), end_N)

    def blocks(self, ahead: int) -> Iterator[Block]:
        """Yields all sentences with text, in order. Those of a block are followed by at least `ahead` tokens of the
        next.
        """
        for first in range(0, self.count, BLOCK_SENTENCES):
            stop = first + BLOCK_SENTENCES
            number_N = np.arange(first, min(stop + ahead + 1, self.count))
            start_N, end_N = self._look_up(number_N)
            if (start_N[1:] != end_N[:-1]).any():
                where = f"{self.stream.folder}: sentences of {self.stream.name}"
                raise DataError(f"{where} do not follow one another; build the dataset again")
            document_N = self.document(number_N)
            has_text_N = (document_N >= 0) & (number_N < self.stop_D[document_N])
            number_N, document_N = number_N[has_text_N], document_N[has_text_N]
            end_N = np.minimum(end_N[has_text_N], self.eod_D[document_N])
            inside = int(np.searchsorted(number_N, stop))
            yield Block(number_N, start_N[has_text_N], end_N, self.stop_D[document_N] - number_N, inside)

    def end_at(self, token: int) -> int:
        """Returns the token after the sentence that holds `token`, `<eod>` counted."""
        number = int(np.searchsorted(self._tokens, token, side="right")) - 1
        shard, base = self.stream.shard(number), int(self._tokens[number])
        sequence = shard.sequence_at(token - base)
        return base + int(shard.at(slice(sequence, sequence + 1))[1][0])

    def _look_up(self, sentence_N: Int64s) -> tuple[Int64s, Int64s]:
        """Returns int64 [N] each: the first token of each sequence and the token after its last one, checked."""
        start_N, end_N = np.empty_like(sentence_N), np.empty_like(sentence_N)
        shard_N = np.searchsorted(self._bases, sentence_N, side="right") - 1
        for number in np.unique(shard_N):
            in_shard_N, shard = shard_N == number, self.stream.shard(int(number))
            start, end = shard.at(sentence_N[in_shard_N] - self._bases[number])
            if (
                (start < 0).any()
                or (end < start).any()
                or (end > self._tokens[number + 1] - self._tokens[number]).any()
            ):
                raise DataError(f"{shard.idx_path}: a sentence lies outside the shard; build the dataset again")
            start_N[in_shard_N], end_N[in_shard_N] = start + self._tokens[number], end + self._tokens[number]
        return start_N, end_N


def count_sentences(stream: TokenStream) -> dict[str, int]:
    """Returns the number of sentences, the documents of one sentence (a pair of texts takes two), and those without
    text.
    """
    sentences = Sentences(stream)
    sentences_D = sentences.stop_D - sentences.first_D
    counts = (int(sentences_D.sum()), int((sentences_D == 1).sum()), stream.documents - sentences.documents)
    return dict(zip(COUNTED, counts, strict=True))


def add_counts(folder: Path, splits: dict[str, Any], dtype: str, vocab_size: int) -> None:
    """Notes what `count_sentences` says of each split in its entry for dataset.json, whose shards are in `folder`."""
    for name, entry in splits.items():
        entry[SENTENCE_COUNTS] = count_sentences(TokenStream(folder, name, entry, dtype, vocab_size))
