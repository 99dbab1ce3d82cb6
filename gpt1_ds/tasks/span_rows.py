"""Questions about a context as token sequences, whose answer is a span of the context or none:

    [CLS] question [SEP] context [SEP]      or      S question D context E

The question is cut to 64 tokens. Of a longer context a row holds a window, as much as fits, and the next window begins
`stride` tokens further (as in BERT's run_squad.py).

A row without the whole answer has the null token as its answer, as a question without one has: the first token; of a
causal model the last, because its first has seen nothing.

Shapes: N examples, R rows, T tokens of a row, P tokens of a context.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.windows import Int64s
from gpt1_ds.tasks.base import NO_LABEL, Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.tables import brief
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tasks.token_metrics import objects
from gpt1_ds.tasks.token_rows import Answered, Float32s, TokenRows, common_fields, symbol_ids

QUESTION = 64  # tokens of a question
LONGEST = 30  # tokens of an answer


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
        """Returns the span with the largest sum of scores over all rows of an example."""
        N = len(self.examples)
        texts, places_N2 = [""] * N, np.zeros((N, 2), dtype=np.int64)
        best_N, null_N, gap_N = np.full(N, -np.inf), np.full(N, np.inf), np.full(N, np.inf)
        for row, scores_T2 in enumerate(scores):
            owner, places_T2 = self.owners[row], self.places[self._tokens_of(row)]
            null_N[owner] = min(null_N[owner], float(scores_T2[self.nulls[row]].sum()))
            begins_T, ends_T = (scores_T2[:, side].astype(np.float64) for side in (0, 1))
            begins_T = np.where(self.begins[self._tokens_of(row)], begins_T, -np.inf)
            ends_T = np.where(places_T2[:, 1] > places_T2[:, 0], ends_T, -np.inf)
            score, first, last = _best_span(begins_T, ends_T)
            if score > best_N[owner]:
                context = self.examples[owner].texts[1]
                start, stop = int(places_T2[first, 0]), _with_marks(context, int(places_T2[last, 1]))
                best_N[owner], places_N2[owner], texts[owner] = score, (start, stop), context[start:stop]
        has_span_N = np.isfinite(best_N)
        gap_N[has_span_N] = null_N[has_span_N] - best_N[has_span_N]
        return Answered(objects(texts), gap_N, places_N2)


def encode_spans(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int, stride: int) -> SpanRows:
    """Raises DataError for an answer of which the tokenizer leaves nothing."""
    encoder = _SpanEncoder(task, tokenizer, limit, stride)
    rows: list[_SpanRow] = []
    owners: list[int] = []
    for owner, example in enumerate(examples):
        rows += encoder.rows(example)
        owners += [owner] * (len(rows) - len(owners))
    tokens, seconds = [row.tokens for row in rows], [row.second for row in rows]
    return SpanRows(
        **common_fields(task, examples, tokenizer, limit, tokens, owners, seconds),
        spans=np.array([row.span for row in rows], dtype=np.int64).reshape(-1, 2),
        nulls=np.array([row.null for row in rows], dtype=np.int64),
        places=np.concatenate([np.zeros((0, 2), dtype=np.int64), *(row.places_T2 for row in rows)]),
        begins=np.concatenate([np.zeros(0, dtype=np.bool_), *(row.begins_T for row in rows)]),
    )


@dataclass(frozen=True)
class _SpanRow:
    """One row; its context begins at token `second`. The other fields are as in SpanRows."""

    tokens: Int32s  # [T]
    second: int
    span: tuple[int, int]
    null: int
    places_T2: Int64s
    begins_T: NDArray[np.bool_]


class _SpanEncoder:
    """Makes rows of examples; a context of several questions is encoded once."""

    def __init__(self, task: Task, tokenizer: Tokenizer, limit: int, stride: int) -> None:
        self.tokenizer, self.limit, self.stride = tokenizer, limit, stride
        self._first, self._between, self._last = symbol_ids(task, tokenizer)
        self._is_null_last = task.symbols == "extract"
        self._contexts: dict[str, tuple[Int32s, Int64s]] = {}

    def rows(self, example: Example) -> Iterator[_SpanRow]:
        question, context = example.texts
        if context not in self._contexts:
            self._contexts[context] = self.tokenizer.encode_with_offsets(context)
        ids_P, offsets_P2 = self._contexts[context]
        capacity = self.limit - 2 - len(self._between)  # tokens of both texts
        question_ids = self.tokenizer.encode(question)[: min(QUESTION, capacity // 2)]
        second = 1 + len(question_ids) + len(self._between)
        answer = _answer_tokens(example, offsets_P2)
        windows = _windows(len(ids_P), capacity - len(question_ids), self.stride)
        window_P, has_text_P = _best_windows(len(ids_P), windows), offsets_P2[:, 1] > offsets_P2[:, 0]
        for number, (start, stop) in enumerate(windows):
            parts = (self._first, question_ids, self._between, ids_P[start:stop], self._last)
            tokens = np.concatenate(parts).astype(np.int32)
            null = len(tokens) - 1 if self._is_null_last else 0
            span = (NO_LABEL, NO_LABEL) if example.answers is None else (null, null)
            if answer is not None and start <= answer[0] and answer[1] < stop:
                span = (second + answer[0] - start, second + answer[1] - start)
            shown = slice(second, second + stop - start)  # the window in the row
            places_T2, begins_T = np.full((len(tokens), 2), -1), np.zeros(len(tokens), dtype=np.bool_)
            places_T2[shown] = offsets_P2[start:stop]
            begins_T[shown] = (window_P[start:stop] == number) & has_text_P[start:stop]
            yield _SpanRow(tokens, second, span, null, places_T2, begins_T)


def _answer_tokens(example: Example, offsets_P2: Int64s) -> tuple[int, int] | None:
    """Returns the first and the last token of an example's first answer; None where it has none."""
    if not example.answers:
        return None
    text, start = example.answers[0]
    inside = np.flatnonzero((offsets_P2[:, 0] < start + len(text)) & (offsets_P2[:, 1] > start))
    if not len(inside):
        raise DataError(f"question {brief(example.id)}: the tokenizer leaves nothing of its answer {brief(text)}")
    return int(inside[0]), int(inside[-1])


def _windows(count: int, most: int, stride: int) -> list[tuple[int, int]]:
    """Returns [start, stop) of each run of at most `most` tokens, `stride` apart, until the last of `count` is in
    one.
    """
    windows, start = [], 0
    while True:
        windows.append((start, min(start + most, count)))
        if start + most >= count:
            return windows
        start += min(most, stride)


def _best_windows(count: int, windows: Sequence[tuple[int, int]]) -> Int64s:
    """Returns int64 [count]: the number of the window that shows most around each token, on the token's shorter side;
    of equal ones it is the longer window.
    """
    most_P, window_P = np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
    for number, (start, stop) in enumerate(windows):
        token = np.arange(start, stop)
        around = np.minimum(token - start, stop - 1 - token) + 0.01 * (stop - start)
        better = token[around > most_P[start:stop]]
        most_P[better], window_P[better] = around[better - start], number
    return window_P


def _best_span(begins_T: NDArray[np.float64], ends_T: NDArray[np.float64]) -> tuple[float, int, int]:
    """Returns (score, first, last) of the span of at most LONGEST tokens with the largest sum; of equal ones the
    shortest.
    """
    best = (-np.inf, 0, 0)
    for more in range(min(LONGEST, len(begins_T))):
        sums = begins_T[: len(begins_T) - more] + ends_T[more:]
        first = int(sums.argmax())
        if sums[first] > best[0]:
            best = (float(sums[first]), first, first + more)
    return best


def _with_marks(text: str, stop: int) -> int:
    """Returns where the last letter before `stop` ends with its accents, of which some tokenizers leave nothing."""
    while stop < len(text) and unicodedata.category(text[stop])[0] == "M":
        stop += 1
    return stop
