"""Pairs of texts, the second following the first or not (Devlin et al. 2019; their create_pretraining_data.py).

A chunk is consecutive sentences of one document, up to a target length: what a row holds, or with probability 0.1 a
uniform shorter one. A is the first few of its sentences. B is the others, or, with probability 0.5 and where there are
none, sentences from a random place of another document; then the next chunk begins with those that were not used. Of a
pair that is too long, tokens of the longer text are left out, front or back by a coin for each.

As in Megatron-LM and unlike in the original, each chunk draws a target of its own (a document may be a whole book), and
a chunk has two sentences where the document has: else more than half of the pairs would be random.

Of single sentences A and B are one sentence each (Liu et al. 2019, section 4.2: SENTENCE-PAIR).

All draws are hashes of (seed, data hash, version, first sentence), so a chunk is a pure function of where it begins. A
pass has its own order; the chunks of pass p are those of version p mod 10, or mod `objective.copies` (BERT's
`dupe_factor`), so finding a sequence of a long run takes few tables.

Shapes: R rows that are asked for, N sentences of a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.sentences import Sentences, follow
from gpt1_ds.data.spans import Spans
from gpt1_ds.data.windows import Int64s, key_of, mix, permute

VERSIONS = 10
SHORT = 0.1  # of the chunks have a shorter target
UInt64s = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TABLES = 2  # in memory: a batch may lie on the border of two passes
# numbers of the draws
_IS_SHORT, _TARGET, _IS_RANDOM, _FIRST_TEXT, _DOCUMENT, _PLACE, _CUT_A, _CUT_B = range(1, 9)


@dataclass(frozen=True)
class _Draws:
    """Random numbers of the chunks that begin at some sentences."""

    base_R: UInt64s

    @classmethod
    def of(cls, sentence_R: Int64s, key: int) -> _Draws:
        with np.errstate(over="ignore"):
            return cls(mix(sentence_R.astype(np.uint64) * _GOLDEN + np.uint64(key)))

    def bits(self, number: int) -> UInt64s:
        with np.errstate(over="ignore"):
            return mix(self.base_R + np.uint64(number) * _GOLDEN)

    def below(self, number: int, limit_R: Int64s) -> Int64s:
        """Uniform in [0, limit)."""
        return (self.bits(number) % limit_R.astype(np.uint64)).astype(np.int64)

    def chance(self, number: int, probability: float) -> NDArray[np.bool_]:
        return (self.bits(number) >> np.uint64(11)) * 2.0**-53 < probability

    def heads(self, number: int, coins_R: Int64s) -> Int64s:
        """How many of so many coins show heads."""
        found_R, key_R = np.zeros_like(coins_R), self.bits(number)
        for row in np.flatnonzero(coins_R):
            words = np.arange(-(-coins_R[row] // 64), dtype=np.uint64)
            with np.errstate(over="ignore"):
                bits = int.from_bytes(mix(key_R[row] + words * _GOLDEN).astype("<u8").tobytes(), "little")
            found_R[row] = (bits & ((1 << int(coins_R[row])) - 1)).bit_count()
        return found_R


@dataclass(frozen=True)
class _Table:
    """The chunks of one version, in the order of the text."""

    sentence_R: Int64s  # the first of each
    first_R: NDArray[np.int32]  # sentences of A
    second_R: NDArray[np.int32]  # sentences of B; 0: B is random


def too_few_documents(stream: TokenStream) -> str:
    """What to say of a split that has less than two documents with text."""
    return (
        f"{stream.folder}: its {stream.name} split has fewer than two documents with text, and the second text of a "
        "pair comes from another; build it again of more documents, or with a larger --validation"
    )


class Pairs:
    """Every pair of one split. A version's table takes a pass over the index: 1 s for a million sentences. Raises
    DataError for a split with less than two documents.
    """

    def __init__(
        self,
        sentences: Sentences,
        context: int,
        data_hash: str,
        seed: int,
        versions: int = VERSIONS,
        single: bool = False,
    ) -> None:
        self.versions, self._single = versions, single
        self.stream, self._sentences = sentences.stream, sentences
        self._most, self._data_hash, self._seed = context - 3, data_hash, seed
        self._tables: OrderedDict[int, _Table] = OrderedDict()
        self._ends = [0]  # of each version's pass, in sequences
        if sentences.documents < 2:
            raise DataError(f"data.text={'sentence_pairs' if single else 'pairs'}: {too_few_documents(self.stream)}")
        self._locate(np.zeros(1, dtype=np.int64))

    @property
    def rows_per_pass(self) -> int:
        """Returns the rows of the first pass; others differ a little."""
        return self._ends[1]

    def copies(self, number_R: Int64s, copies: int) -> Int64s:
        """Which pair of all versions each of these sequences of the source is: versions are copies."""
        assert copies == self.versions, "whoever makes pairs makes as many versions as there are copies"
        found_R = np.empty_like(number_R)
        for here, version, chunk_R in self._by_pass(number_R):
            found_R[here] = self._ends[version] + chunk_R
        return found_R

    def spans(self, number_R: Int64s) -> Spans:
        """The rows of these sequences of the source, counted through all passes."""
        found = Spans.empty(len(number_R))
        for here, version, chunk_R in self._by_pass(number_R):
            found.put(here, self._pairs(self._table(version), chunk_R, version))
        return found

    def _by_pass(self, number_R: Int64s) -> Iterator[tuple[NDArray[np.bool_], int, Int64s]]:
        """(which of the sequences one pass has, its version, their chunks) of each pass."""
        pass_R, place_R = self._locate(number_R)
        for one in np.unique(pass_R).tolist():
            here, version = pass_R == one, one % self.versions
            size = self._ends[version + 1] - self._ends[version]
            yield here, version, permute(place_R[here], size, key_of("order", self._seed, self._data_hash, one))

    def _locate(self, number_R: Int64s) -> tuple[Int64s, Int64s]:
        """(pass, place in it) of sequences; tables are made as far as this needs."""
        while len(self._ends) <= self.versions and number_R.max(initial=0) >= self._ends[-1]:
            self._ends.append(self._ends[-1] + len(self._table(len(self._ends) - 1).sentence_R))
        ends, round_R = np.array(self._ends), np.zeros_like(number_R)
        if len(ends) > self.versions:
            round_R, number_R = np.divmod(number_R, ends[-1])
        version_R = np.searchsorted(ends, number_R, side="right") - 1
        return round_R * self.versions + version_R, number_R - ends[version_R]

    def _key(self, version: int) -> int:
        return key_of("pairs", self._seed, self._data_hash, version)

    def _table(self, version: int) -> _Table:
        if version not in self._tables:
            self._tables[version] = self._made(version)
            if len(self._tables) > _TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(version)
        return self._tables[version]

    def _made(self, version: int) -> _Table:
        parts, begin = [], 0
        for block in self._sentences.blocks(ahead=self._most):
            draws = _Draws.of(block.number_N, self._key(version))
            reached_N = np.searchsorted(block.end_N, block.start_N + self._targets(draws)) + 1
            size_N = np.minimum(np.maximum(reached_N - np.arange(len(reached_N)), 2), block.left_N)
            first_N = 1 + draws.below(_FIRST_TEXT, np.maximum(size_N - 1, 1))
            is_random_N = draws.chance(_IS_RANDOM, 0.5) | (size_N == 1)
            second_N = np.where(is_random_N, 0, size_N - first_N)
            next_N = np.arange(len(size_N)) + first_N + second_N
            chosen_R, begin = follow(next_N, begin, block.inside)
            begin -= block.inside
            first_R, second_R = first_N[chosen_R].astype(np.int32), second_N[chosen_R].astype(np.int32)
            parts.append((block.number_N[chosen_R], first_R, second_R))
        return _Table(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _targets(self, draws: _Draws) -> Int64s:
        """Tokens that chunks should have; of single sentences none, so that each text has the one it always has."""
        if self._single:
            return np.zeros(len(draws.base_R), dtype=np.int64)
        shorter_R = 2 + draws.below(_TARGET, np.full(len(draws.base_R), self._most - 1))
        return np.where(draws.chance(_IS_SHORT, SHORT), shorter_R, self._most)

    def _pairs(self, table: _Table, chunk_R: Int64s, version: int) -> Spans:
        """A and B of these chunks."""
        sentence_R, first_R = table.sentence_R[chunk_R], table.first_R[chunk_R].astype(np.int64)
        second_R = table.second_R[chunk_R].astype(np.int64)
        draws, spans = _Draws.of(sentence_R, self._key(version)), self._sentences.spans
        start_RT, stop_RT = np.empty((2, len(chunk_R), 2), dtype=np.int64)
        start_RT[:, 0], stop_RT[:, 0] = spans(sentence_R)[0], spans(sentence_R + first_R - 1)[1]
        is_random_R = second_R == 0
        wanted_R = self._targets(draws) - (stop_RT[:, 0] - start_RT[:, 0])
        other_start_R, other_stop_R = self._others(sentence_R, draws, wanted_R, is_random_R)
        start_RT[:, 1] = np.where(is_random_R, other_start_R, stop_RT[:, 0])
        stop_RT[:, 1] = np.where(is_random_R, other_stop_R, spans(sentence_R + first_R + second_R - 1)[1])
        self._cut(start_RT, stop_RT, draws)
        return Spans(start_RT, stop_RT, is_random_R.astype(np.int64))

    def _others(
        self, sentence_R: Int64s, draws: _Draws, wanted_R: Int64s, is_random_R: NDArray[np.bool_]
    ) -> tuple[Int64s, Int64s]:
        """Sentences from a random place of another document, until there are as many tokens as are wanted, or it ends;
        (first token, token after the last), 0 where no random text is asked for.
        """
        found = self._sentences
        own_R = found.document(sentence_R)
        other_R = draws.below(_DOCUMENT, np.full(len(own_R), found.documents - 1))
        other_R += other_R >= own_R
        first_R, eod_R = found.first_D[other_R], found.eod_D[other_R]
        start_R, stop_R = found.spans(first_R + draws.below(_PLACE, found.stop_D[other_R] - first_R))
        for row in np.flatnonzero(is_random_R & (stop_R - start_R < wanted_R)):
            last = min(start_R[row] + wanted_R[row], eod_R[row]) - 1
            stop_R[row] = min(found.end_at(int(last)), eod_R[row])
        return np.where(is_random_R, start_R, 0), np.where(is_random_R, stop_R, 0)

    def _cut(self, start_RT: Int64s, stop_RT: Int64s, draws: _Draws) -> None:
        """Leave tokens out, one by one from the longer text (of two equal ones from B), until each pair fits."""
        length_RT = stop_RT - start_RT
        left_R = np.maximum(length_RT.sum(1) - self._most, 0)
        longer_R = np.minimum(left_R, np.abs(length_RT[:, 0] - length_RT[:, 1]))  # until both are equal
        is_first_longer_R, each_R = length_RT[:, 0] > length_RT[:, 1], left_R - longer_R
        for text, number in ((0, _CUT_A), (1, _CUT_B)):
            cut_R = np.where(is_first_longer_R == (text == 0), longer_R, 0) + (each_R + text) // 2
            front_R = draws.heads(number, cut_R)
            start_RT[:, text] += front_R
            stop_RT[:, text] -= cut_R - front_R
