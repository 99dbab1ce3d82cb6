"""Next-sentence pairs: text B follows text A in its document, or comes from another one (Devlin et al. 2019; their
create_pretraining_data.py).

The sentences of a document are cut into chunks. A chunk has a target length: what a row holds, or with probability 0.1
a uniform shorter one. Its first sentences are A, the others B. With probability 0.5, and where A is the whole chunk, B
is text from a random place of another document; then the next chunk begins right after A:

    document    0  0  0  0  0  0  0  1  1  1  1
    sentence    0  1  2  3  4  5  6  7  8  9 10
    chunk 0     A  A  B                            sentences 0 to 2: B follows A
    chunk 1              A  .  .                   sentences 3 to 5; B is random, say 8 and 9: 4 and 5 are not used
    chunk 2                 A  B  B                sentences 4 to 6: B follows A
    chunk 3                          A  A  A  B    the next document

Of a pair that is too long, tokens of the longer text are left out, front or back by a coin for each token. With
`single` A and B are one sentence each (Liu et al. 2019, section 4.2: SENTENCE-PAIR).

As in Megatron-LM and unlike in the original, each chunk draws a target of its own (a document may be a whole book), and
a chunk has two sentences where the document has: else more than half of the pairs would be random.

All draws are hashes of (seed, data hash, version, first sentence), so a chunk is a pure function of where it begins.
Pass p over the data reads the chunks of version p mod 10, or mod `objective.copies` (BERT's `dupe_factor`), in an order
of its own: so finding a sequence of a long run takes few tables of chunks.

Shapes: R rows that are asked for, T = 2 texts of a row (A and B), N sentences of a block, C chunks of a version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.dataset import TokenStream
from gpt1_ds.data.draws import Draws
from gpt1_ds.data.sentences import Block, Sentences, follow
from gpt1_ds.data.spans import Spans
from gpt1_ds.data.windows import Int64s, key_of, permute

VERSIONS = 10
_SHORT = 0.1  # the probability of a shorter target
_CACHED_TABLES = 2  # a batch may lie on the border of two passes
# the questions that Draws answers about a chunk
_IS_SHORT, _TARGET, _IS_RANDOM, _A_SENTENCES, _DOCUMENT, _SENTENCE, _A_FRONT, _B_FRONT = range(1, 9)


@dataclass(frozen=True)
class _ChunkTable:
    """The chunks of one version, in the order of the text."""

    begin_C: Int64s  # the first sentence
    a_sentences_C: NDArray[np.int32]
    b_sentences_C: NDArray[np.int32]  # 0: B is random

    @property
    def chunks(self) -> int:
        return len(self.begin_C)


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
        self._max_tokens = context - 3  # of A and B together
        self._data_hash, self._seed = data_hash, seed
        self._tables: OrderedDict[int, _ChunkTable] = OrderedDict()
        self._starts = [0]  # _starts[p] is the first sequence of pass p, for p <= versions, as far as it is known
        if sentences.documents < 2:
            raise DataError(f"data.text={'sentence_pairs' if single else 'pairs'}: {too_few_documents(self.stream)}")
        self._locate(np.zeros(1, dtype=np.int64))

    @property
    def rows_per_pass(self) -> int:
        """Returns the number of rows of the first pass; others differ a little."""
        return self._starts[1]

    def copy_numbers(self, number_R: Int64s, copies: int) -> Int64s:
        """Returns which pair of all versions each of these sequences of the source is: versions are copies."""
        assert copies == self.versions, "whoever makes pairs makes as many versions as there are copies"
        pair_R = np.empty_like(number_R)
        for in_pass_R, version, chunk_R in self._by_pass(number_R):
            pair_R[in_pass_R] = self._starts[version] + chunk_R
        return pair_R

    def spans(self, number_R: Int64s) -> Spans:
        """Returns the rows of these sequences of the source, counted through all passes."""
        spans = Spans.empty(len(number_R))
        for in_pass_R, version, chunk_R in self._by_pass(number_R):
            spans.put(in_pass_R, self._chunk_spans(version, chunk_R))
        return spans

    def _by_pass(self, number_R: Int64s) -> Iterator[tuple[NDArray[np.bool_], int, Int64s]]:
        """Yields for each pass (which of the sequences lie in it, its version, the chunks that these are)."""
        pass_R, place_R = self._locate(number_R)
        for number in np.unique(pass_R).tolist():
            in_pass_R, version = pass_R == number, number % self.versions
            chunks = self._starts[version + 1] - self._starts[version]
            order = key_of("order", self._seed, self._data_hash, number)
            yield in_pass_R, version, permute(place_R[in_pass_R], chunks, order)

    def _locate(self, number_R: Int64s) -> tuple[Int64s, Int64s]:
        """Returns (pass, place in it) of sequences. Tables are made as far as this needs: with 2 versions, of 5 and 4
        chunks, sequences 0 to 4 are pass 0, 5 to 8 pass 1, and 9 to 13 pass 2, of version 0 again.
        """
        while len(self._starts) <= self.versions and number_R.max(initial=0) >= self._starts[-1]:
            self._starts.append(self._starts[-1] + self._table(len(self._starts) - 1).chunks)
        starts, round_R, in_round_R = np.array(self._starts), np.zeros_like(number_R), number_R
        if len(starts) > self.versions:  # then the last entry is the length of a round of all versions
            round_R, in_round_R = np.divmod(number_R, starts[-1])
        version_R = np.searchsorted(starts, in_round_R, side="right") - 1
        return round_R * self.versions + version_R, in_round_R - starts[version_R]

    def _table(self, version: int) -> _ChunkTable:
        if version not in self._tables:
            self._tables[version] = self._make_table(version)
            if len(self._tables) > _CACHED_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(version)
        return self._tables[version]

    def _make_table(self, version: int) -> _ChunkTable:
        """Finds for every sentence the chunk that would begin there, and keeps those that follow one another."""
        columns, begin = [], 0
        for block in self._sentences.blocks(ahead=self._max_tokens):
            draws = self._draws(version, block.number_N)
            size_N = self._chunk_sizes(block, draws)
            a_sentences_N = 1 + draws.below(_A_SENTENCES, np.maximum(size_N - 1, 1))
            is_random_N = draws.chance(_IS_RANDOM, 0.5) | (size_N == 1)
            b_sentences_N = np.where(is_random_N, 0, size_N - a_sentences_N)
            next_N = np.arange(len(size_N)) + a_sentences_N + b_sentences_N
            chunk_C, begin = follow(next_N, begin, block.inside)
            begin -= block.inside
            counts = (a_sentences_N[chunk_C].astype(np.int32), b_sentences_N[chunk_C].astype(np.int32))
            columns.append((block.number_N[chunk_C], *counts))
        return _ChunkTable(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def _chunk_sizes(self, block: Block, draws: Draws) -> Int64s:
        """Returns int64 [N], sentences of the chunk that begins at each sentence: as many as reach its target, at least
        two, but not more than its document has.
        """
        stop_N = np.searchsorted(block.end_N, block.start_N + self._targets(draws)) + 1
        size_N: Int64s = np.minimum(np.maximum(stop_N - np.arange(len(stop_N)), 2), block.left_N)
        return size_N

    def _draws(self, version: int, sentence_R: Int64s) -> Draws:
        """Returns all that is random about the chunks of a version that begin at these sentences."""
        return Draws.of(sentence_R, key_of("pairs", self._seed, self._data_hash, version))

    def _targets(self, draws: Draws) -> Int64s:
        """Returns the number of tokens that chunks should have; of single sentences none, so that each text has the one
        it always has.
        """
        if self._single:
            return np.zeros(len(draws.hash_R), dtype=np.int64)
        shorter_R = 2 + draws.below(_TARGET, np.full(len(draws.hash_R), self._max_tokens - 1))
        return np.where(draws.chance(_IS_SHORT, _SHORT), shorter_R, self._max_tokens)

    def _chunk_spans(self, version: int, chunk_R: Int64s) -> Spans:
        """Returns the texts A and B of these chunks."""
        table, spans = self._table(version), self._sentences.spans
        begin_R = table.begin_C[chunk_R]
        b_begin_R = begin_R + table.a_sentences_C[chunk_R]
        b_sentences_R = table.b_sentences_C[chunk_R]
        is_random_R, draws = b_sentences_R == 0, self._draws(version, begin_R)
        a_start_R, a_stop_R = spans(begin_R)[0], spans(b_begin_R - 1)[1]
        missing_R = self._targets(draws) - (a_stop_R - a_start_R)
        random_start_R, random_stop_R = self._random_texts(begin_R, draws, missing_R, is_random_R)
        next_start_R, next_stop_R = a_stop_R, spans(b_begin_R + b_sentences_R - 1)[1]
        b_start_R = np.where(is_random_R, random_start_R, next_start_R)
        b_stop_R = np.where(is_random_R, random_stop_R, next_stop_R)
        start_RT, stop_RT = np.stack([a_start_R, b_start_R], axis=1), np.stack([a_stop_R, b_stop_R], axis=1)
        self._truncate(start_RT, stop_RT, draws)
        return Spans(start_RT, stop_RT, is_random_R.astype(np.int64))

    def _random_texts(
        self, sentence_R: Int64s, draws: Draws, wanted_R: Int64s, is_random_R: NDArray[np.bool_]
    ) -> tuple[Int64s, Int64s]:
        """Returns (first token, token after the last) of text from a random place of another document than that of a
        sentence. It has whole sentences, as many as give the tokens that are wanted, or until its document ends. Both
        are 0 where no random text is asked for.
        """
        sentences = self._sentences
        own_R = sentences.document(sentence_R)
        document_R = draws.below(_DOCUMENT, np.full(len(own_R), sentences.documents - 1))
        document_R += document_R >= own_R  # any but its own
        first_R, eod_R = sentences.first_D[document_R], sentences.eod_D[document_R]
        random_R = first_R + draws.below(_SENTENCE, sentences.stop_D[document_R] - first_R)
        start_R, stop_R = sentences.spans(random_R)
        for row in np.flatnonzero(is_random_R & (stop_R - start_R < wanted_R)):
            last = min(start_R[row] + wanted_R[row], eod_R[row]) - 1
            stop_R[row] = min(sentences.end_at(int(last)), eod_R[row])
        return np.where(is_random_R, start_R, 0), np.where(is_random_R, stop_R, 0)

    def _truncate(self, start_RT: Int64s, stop_RT: Int64s, draws: Draws) -> None:
        """Leaves tokens out, one by one from the longer text (of two equal ones from B), until each pair fits. Of 10
        tokens of A and 6 of B, 7 are too many: A loses 4, then B loses 2 and A 1.
        """
        length_RT = stop_RT - start_RT
        excess_R = np.maximum(length_RT.sum(1) - self._max_tokens, 0)
        from_longer_R = np.minimum(excess_R, np.abs(length_RT[:, 0] - length_RT[:, 1]))  # until both are equal
        from_both_R = excess_R - from_longer_R
        is_a_longer_R = length_RT[:, 0] > length_RT[:, 1]
        from_a_R = np.where(is_a_longer_R, from_longer_R, 0) + from_both_R // 2
        from_b_R = excess_R - from_a_R
        for text, cut_R, question in ((0, from_a_R, _A_FRONT), (1, from_b_R, _B_FRONT)):
            front_R = draws.heads(question, cut_R)
            start_RT[:, text] += front_R
            stop_RT[:, text] -= cut_R - front_R


def too_few_documents(stream: TokenStream) -> str:
    """Returns the message about a split that has less than two documents with text."""
    return (
        f"{stream.folder}: its {stream.name} split has fewer than two documents with text, and the second text of a "
        "pair comes from another; build it again of more documents, or with a larger --validation"
    )
