"""Tagging as token sequences: `S words E`, in several rows where a sentence is longer than one.

Sentences are cut before a word, so that every word has its tag. The first token of a word is what scores it (Devlin et
al. 2019, section 5.3):

    tokens   S  B  ##ob  Lee  left  E
    words   -1  0   -1    1    2   -1
    tags    -1  3   -1    4    0   -1      where B-person is tag 3, I-person 4 and O 0

Shapes: R rows, T tokens of a row, P tokens of a sentence, O tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import Int64s
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tasks.token_metrics import objects
from gpt1_ds.tasks.token_rows import Answered, Float32s, TokenRows, common_fields, symbol_ids


@dataclass(frozen=True, kw_only=True)
class TagRows(TokenRows):
    words: Int64s  # [total], the word of its example that a token scores; -1: none
    tags: Int64s  # [total], the number of that word's tag; -1: none, or not known
    names: tuple[str, ...]  # of tags

    def token_targets(self, rows: Int64s, length: int) -> tuple[Float32s, int]:
        targets_BTO = np.zeros((len(rows), length, len(self.names)), dtype=np.float32)
        for row_TO, row in zip(targets_BTO, rows.tolist(), strict=True):
            if row >= 0:
                tags_T = self.tags[self._tokens_of(row)]
                position = np.flatnonzero(tags_T >= 0)
                row_TO[position, tags_T[position]] = 1
        count = int(targets_BTO.sum(dtype=np.float64))
        return targets_BTO / np.float32(max(1, count)), count

    def answers(self, scores: Sequence[Float32s]) -> Answered:
        missing = "O" if "O" in self.names else self.names[0]  # of a word of which the tokenizer leaves nothing
        found = [[missing] * len(example.texts) for example in self.examples]
        for row, scores_TO in enumerate(scores):
            best_T = scores_TO.argmax(axis=1)
            words_T = self.words[self._tokens_of(row)]
            for position in np.flatnonzero(words_T >= 0).tolist():
                found[self.owners[row]][words_T[position]] = self.names[best_T[position]]
        return Answered(objects([*map(tuple, found)]))


def encode_tags(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> TagRows:
    first, _, last = symbol_ids(task, tokenizer)
    number_of = {name: number for number, name in enumerate(task.labels)}
    rows: list[Int32s] = []
    words: list[Int64s] = []
    owners: list[int] = []
    for owner, example in enumerate(examples):
        ids, word_P = _scored_words(example.texts, tokenizer)
        for start, stop in _row_ranges(word_P >= 0, limit - 2):
            rows.append(np.concatenate([first, ids[start:stop], last]).astype(np.int32))
            words.append(np.concatenate([[-1], word_P[start:stop], [-1]]))
            owners.append(owner)
    tags = []
    for word_T, owner in zip(words, owners, strict=True):
        tag_T = np.full(len(word_T), NO_LABEL)
        names = examples[owner].tags
        if names:
            tag_T[word_T >= 0] = [number_of[names[word]] for word in word_T[word_T >= 0]]
        tags.append(tag_T)
    lengths = [len(row) for row in rows]
    return TagRows(
        **common_fields(task, examples, tokenizer, limit, rows, owners, lengths),
        words=_flat(words),
        tags=_flat(tags),
        names=task.labels,
    )


def _scored_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[Int32s, Int64s]:
    """Returns (ids [P] of the words with a blank between them; [P] the word of which each id is the first, -1 of
    none).
    """
    ids, offsets_P2 = tokenizer.encode_with_offsets(" ".join(words))
    borders = np.cumsum([0, *(len(word) + 1 for word in words)])
    is_blank_P = offsets_P2[:, 0] == offsets_P2[:, 1]  # the blank before a word, which some tokenizers give a token
    word_P = np.searchsorted(borders, offsets_P2[:, 0] + is_blank_P, side="right") - 1
    word_P[1:][np.diff(word_P) == 0] = -1
    return ids, word_P


def _row_ranges(may_begin_P: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """Returns [start, stop) of rows of at most `most` tokens; each begins at a token that may begin one, wherever one
    fits.
    """
    ranges, start = [], 0
    while len(may_begin_P) - start > most:
        begins = np.flatnonzero(may_begin_P[start + 1 : start + most + 1])
        stop = start + 1 + int(begins[-1]) if len(begins) else start + most
        ranges.append((start, stop))
        start = stop
    return [*ranges, (start, len(may_begin_P))]


def _flat(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
