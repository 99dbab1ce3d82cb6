"""Examples whose tokens are scored one by one, as token sequences: several where a text is longer than a row.

tags  S words E                      cut before a word where a row is full, so that every word has its tag; what scores
                                     a word is its first token (Devlin et al. 2019, section 5.3)
span  [CLS] question [SEP] context [SEP], or S question D context E
                                     the question is cut to 64 tokens; of a longer context a row holds as much as fits,
                                     and the next begins `stride` tokens further (as in BERT's run_squad.py)

A row without the whole answer has the null token as its answer, as a question without one has: the first token; of a
causal model the last, because its first has seen nothing.

Shapes: N examples, R rows of them, T tokens of a row, O outputs of a token.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import Int64s
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.encoding import ROLES, Encoded, hash_arrays, pad_id_of
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.formats import brief
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tasks.token_metrics import Objects, objects

QUESTION = 64  # tokens of a question
LONGEST = 30  # tokens of an answer
Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Answered:
    """What was found of N examples. Of spans, `null_gap` [N] is by how much no answer is likelier than the best one
    (logits), and `places` [N, 2] are the characters [first, stop) of the context that this one is.
    """

    found: Objects
    null_gap: NDArray[np.float64] | None = None
    places: Int64s | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRows(Encoded, ABC):
    """`Encoded`, of which a row is one sequence of the example `owners`. Ids and groups are those of rows."""

    owners: Int64s  # [R]
    examples: tuple[Example, ...]  # [N]

    @property
    def example_ids(self) -> tuple[str, ...]:
        return tuple(example.id for example in self.examples)

    @cached_property
    def data_hash(self) -> str:
        parts = (getattr(self, one.name) for one in fields(self))
        return hash_arrays(*(part for part in parts if isinstance(part, np.ndarray)))

    @abstractmethod
    def token_targets(self, rows: Int64s, length: int) -> tuple[Float32s, int]:
        """(float32 [B, length, O]: what the loss counts of these rows, -1 of none, with weights that sum to 1 over all
        of them; how many counted).
        """

    @abstractmethod
    def answers(self, scores: Sequence[Float32s]) -> Answered:
        """Returns what the head's scores [T, O] of each row say of every example."""

    def _tokens_of(self, row: int) -> slice:
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))


@dataclass(frozen=True, kw_only=True)
class TagRows(TokenRows):
    words: Int64s  # [total], which word of its example a token scores; -1: none
    tags: Int64s  # [total], number of its tag; -1: none is known
    names: tuple[str, ...]  # of tags

    def token_targets(self, rows: Int64s, length: int) -> tuple[Float32s, int]:
        targets_BTO = np.zeros((len(rows), length, len(self.names)), dtype=np.float32)
        for row_TO, row in zip(targets_BTO, rows.tolist(), strict=True):
            if row >= 0:
                tags_T = self.tags[self._tokens_of(row)]
                at = np.flatnonzero(tags_T >= 0)
                row_TO[at, tags_T[at]] = 1
        counted = int(targets_BTO.sum(dtype=np.float64))
        return targets_BTO / np.float32(max(1, counted)), counted

    def answers(self, scores: Sequence[Float32s]) -> Answered:
        missing = "O" if "O" in self.names else self.names[0]  # of a word of which the tokenizer leaves nothing
        found = [[missing] * len(example.texts) for example in self.examples]
        for row, scores_TO in enumerate(scores):
            best_T = scores_TO.argmax(axis=1)
            words_T = self.words[self._tokens_of(row)]
            for at in np.flatnonzero(words_T >= 0).tolist():
                found[self.owners[row]][words_T[at]] = self.names[best_T[at]]
        return Answered(objects([*map(tuple, found)]))


@dataclass(frozen=True, kw_only=True)
class SpanRows(TokenRows):
    spans: Int64s  # [R, 2], the first and the last token of the answer; -1: not known
    nulls: Int64s  # [R], the token that stands for no answer
    places: Int64s  # [total, 2], the characters [first, stop) of its context that a token stands for; -1: none
    begins: NDArray[np.bool_]  # [total], whether an answer may begin here: no other row shows more around the token

    def token_targets(self, rows: Int64s, length: int) -> tuple[Float32s, int]:
        targets_BT2 = np.zeros((len(rows), length, 2), dtype=np.float32)
        known = np.flatnonzero((rows >= 0) & (self.spans[rows, 0] >= 0))
        for output in range(2):
            targets_BT2[known, self.spans[rows[known], output], output] = 0.5 / max(1, len(known))
        return targets_BT2, len(known)

    def answers(self, scores: Sequence[Float32s]) -> Answered:
        N = len(self.examples)
        found, places_N2, gaps = [""] * N, np.zeros((N, 2), dtype=np.int64), np.full(N, np.inf)
        best, null = np.full(N, -np.inf), np.full(N, np.inf)
        for row, scores_T2 in enumerate(scores):
            owner, places_T2 = self.owners[row], self.places[self._tokens_of(row)]
            null[owner] = min(null[owner], float(scores_T2[self.nulls[row]].sum()))
            begins_T, ends_T = (scores_T2[:, side].astype(np.float64) for side in (0, 1))
            begins_T = np.where(self.begins[self._tokens_of(row)], begins_T, -np.inf)
            ends_T = np.where(places_T2[:, 1] > places_T2[:, 0], ends_T, -np.inf)
            score, first, last = _best_span(begins_T, ends_T)
            if score > best[owner]:
                best[owner] = score
                context = self.examples[owner].texts[1]
                start, stop = places_N2[owner] = places_T2[first, 0], _with_marks(context, int(places_T2[last, 1]))
                found[owner] = context[start:stop]
        there = np.isfinite(best)
        gaps[there] = null[there] - best[there]
        return Answered(objects(found), gaps, places_N2)


def _with_marks(text: str, stop: int) -> int:
    """Returns where the last letter before `stop` ends with its accents, of which some tokenizers leave nothing."""
    while stop < len(text) and unicodedata.category(text[stop])[0] == "M":
        stop += 1
    return stop


def _best_span(begins_T: NDArray[np.float64], ends_T: NDArray[np.float64]) -> tuple[float, int, int]:
    """(score, first, last) of the span of at most LONGEST tokens with the largest sum; of equal ones the shortest."""
    best = (-np.inf, 0, 0)
    for more in range(min(LONGEST, len(begins_T))):
        sums = begins_T[: len(begins_T) - more] + ends_T[more:]
        first = int(sums.argmax())
        if sums[first] > best[0]:
            best = (float(sums[first]), first, first + more)
    return best


def encode_tags(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> TagRows:
    first, _, last = _symbols(task, tokenizer)
    number_of = {name: number for number, name in enumerate(task.labels)}
    rows: list[Int32s] = []
    words: list[Int64s] = []
    owners: list[int] = []
    for owner, example in enumerate(examples):
        ids, word_P = _pieces(example.texts, tokenizer)
        for start, stop in _cuts(word_P >= 0, limit - 2):
            rows.append(np.concatenate([first, ids[start:stop], last]).astype(np.int32))
            words.append(np.concatenate([[-1], word_P[start:stop], [-1]]))
            owners.append(owner)
    tags = []
    for word_T, owner in zip(words, owners, strict=True):
        tag_T = np.full(len(word_T), NO_LABEL)
        if known := examples[owner].tags:
            tag_T[word_T >= 0] = [number_of[known[word]] for word in word_T[word_T >= 0]]
        tags.append(tag_T)
    lengths = [len(row) for row in rows]
    return TagRows(
        **_common(task, examples, tokenizer, limit, rows, owners, lengths),
        words=_flat(words),
        tags=_flat(tags),
        names=task.labels,
    )


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[Int32s, Int64s]:
    """(ids [P] of the words with a blank between them, [P] the word whose first token each is; -1: it is none)."""
    ids, offsets_P2 = tokenizer.encode_with_offsets(" ".join(words))
    borders = np.cumsum([0, *(len(word) + 1 for word in words)])
    is_blank_P = offsets_P2[:, 0] == offsets_P2[:, 1]  # the blank before a word, which some tokenizers give a token
    word_P = np.searchsorted(borders, offsets_P2[:, 0] + is_blank_P, side="right") - 1
    word_P[1:][np.diff(word_P) == 0] = -1
    return ids, word_P


def _cuts(may_begin_P: NDArray[np.bool_], most: int) -> list[tuple[int, int]]:
    """[start, stop) of rows of at most `most` tokens, which begin at a word wherever one fits."""
    cuts, start = [], 0
    while len(may_begin_P) - start > most:
        words = np.flatnonzero(may_begin_P[start + 1 : start + most + 1])
        stop = start + 1 + int(words[-1]) if len(words) else start + most
        cuts.append((start, stop))
        start = stop
    return [*cuts, (start, len(may_begin_P))]


def encode_spans(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int, stride: int) -> SpanRows:
    """Raises DataError for an answer of which the tokenizer leaves nothing."""
    first, between, last = _symbols(task, tokenizer)
    contexts: dict[str, tuple[Int32s, Int64s]] = {}
    rows: list[Int32s] = []
    owners: list[int] = []
    seconds: list[int] = []
    spans: list[tuple[int, int]] = []
    nulls: list[int] = []
    places: list[Int64s] = []
    begins: list[NDArray[np.bool_]] = []
    for owner, example in enumerate(examples):
        question, context = example.texts
        if context not in contexts:
            contexts[context] = tokenizer.encode_with_offsets(context)
        ids, offsets_P2 = contexts[context]
        left = limit - 2 - len(between)
        asked = tokenizer.encode(question)[: min(QUESTION, left // 2)]
        answer = _answer_tokens(example, offsets_P2)
        windows = _windows(len(ids), left - len(asked), stride)
        window_P, is_text_P = _shown(len(ids), windows), offsets_P2[:, 1] > offsets_P2[:, 0]
        for number, (start, stop) in enumerate(windows):
            second = 1 + len(asked) + len(between)
            row = np.concatenate([first, asked, between, ids[start:stop], last]).astype(np.int32)
            null = len(row) - 1 if task.symbols == "extract" else 0
            span = (NO_LABEL, NO_LABEL) if example.answers is None else (null, null)
            if answer is not None and start <= answer[0] and answer[1] < stop:
                span = (second + answer[0] - start, second + answer[1] - start)
            place_T2 = np.full((len(row), 2), -1)
            place_T2[second : second + stop - start] = offsets_P2[start:stop]
            begin_T = np.zeros(len(row), dtype=np.bool_)
            begin_T[second : second + stop - start] = (window_P[start:stop] == number) & is_text_P[start:stop]
            rows.append(row)
            owners.append(owner)
            seconds.append(second)
            spans.append(span)
            nulls.append(null)
            places.append(place_T2)
            begins.append(begin_T)
    return SpanRows(
        **_common(task, examples, tokenizer, limit, rows, owners, seconds),
        spans=np.array(spans, dtype=np.int64).reshape(-1, 2),
        nulls=np.array(nulls, dtype=np.int64),
        places=np.concatenate(places) if places else np.zeros((0, 2), dtype=np.int64),
        begins=np.concatenate(begins) if begins else np.zeros(0, dtype=np.bool_),
    )


def _answer_tokens(example: Example, offsets_P2: Int64s) -> tuple[int, int] | None:
    """The first and the last token of an example's first answer; None where it has none."""
    if not example.answers:
        return None
    text, start = example.answers[0]
    inside = np.flatnonzero((offsets_P2[:, 0] < start + len(text)) & (offsets_P2[:, 1] > start))
    if not len(inside):
        raise DataError(f"question {brief(example.id)}: the tokenizer leaves nothing of its answer {brief(text)}")
    return int(inside[0]), int(inside[-1])


def _windows(count: int, most: int, stride: int) -> list[tuple[int, int]]:
    """[start, stop) of each run of at most `most` tokens, `stride` apart, until the last of `count` is in one."""
    found, start = [], 0
    while True:
        found.append((start, min(start + most, count)))
        if start + most >= count:
            return found
        start += min(most, stride)


def _shown(count: int, windows: Sequence[tuple[int, int]]) -> Int64s:
    """int64 [count]: the number of the window with the most around each token: on the shorter side, and then in the
    longer window.
    """
    most_P, window_P = np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
    for number, (start, stop) in enumerate(windows):
        at = np.arange(start, stop)
        around = np.minimum(at - start, stop - 1 - at) + 0.01 * (stop - start)
        better = at[around > most_P[start:stop]]
        most_P[better], window_P[better] = around[better - start], number
    return window_P


def _symbols(task: Task, tokenizer: Tokenizer) -> tuple[Int32s, Int32s, Int32s]:
    """The ids before, between and after texts."""
    first, between, last = ROLES[task.symbols]
    need = f"task.name={task.name}"
    groups = ([tokenizer.special_ids.require(role, need) for role in roles] for roles in ((first,), between, (last,)))
    before, middle, after = (np.array(one, dtype=np.int32) for one in groups)
    return before, middle, after


def _common(
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    limit: int,
    rows: Sequence[Int32s],
    owners: Sequence[int],
    seconds: Sequence[int],
) -> dict[str, Any]:
    """What every kind of rows has."""
    labels = [0 if examples[owner].is_labelled else NO_LABEL for owner in owners]
    return {
        "tokens": np.concatenate([np.zeros(0, dtype=np.int32), *rows]),
        "offsets": np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        "seconds": np.array(seconds, dtype=np.int64).reshape(-1, 1),
        "sequences": 1,
        "labels": np.array(labels, dtype=np.int64),
        "scores": np.full(len(rows), np.nan),
        "targets": None,
        "ids": tuple(examples[owner].id for owner in owners),
        "groups": tuple(examples[owner].group for owner in owners),
        "truncated": 0,  # nothing is: a longer text has several rows
        "limit": limit,
        "pad": pad_id_of(task, tokenizer),
        "owners": np.array(owners, dtype=np.int64),
        "examples": tuple(examples),
    }


def _flat(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
