"""Spans as sequences of tokens: windows, where an answer may begin; and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.tasks.batches import build_batch
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Span
from gpt1_ds.tasks.span_rows import SpanRows, encode_spans
from tests.helpers.words import WordTokenizer

CONTEXT = " ".join(f"w{number}" for number in range(20))
SPAN = Span("table", "pair", ("answer", "no answer"), ("f1",))


def question(answers: tuple[tuple[str, int], ...] | None, context: str = CONTEXT, identity: str = "q") -> Example:
    return Example(identity, ("who is it", context), answers=answers)


def answer(text: str) -> tuple[tuple[str, int], ...]:
    return ((text, CONTEXT.index(text)),)


def spans(*examples: Example, limit: int = 16, stride: int = 4) -> SpanRows:
    return encode_spans(SPAN, examples, WordTokenizer(), limit, stride)


def test_rows_of_a_long_context() -> None:
    rows = spans(question(answer("w9")))
    assert rows.lengths[:, 0].tolist() == [16, 16, 16, 14]  # S, three words, D, at most ten of the context, E
    assert rows.owners.tolist() == [0, 0, 0, 0]
    assert rows.seconds[:, 0].tolist() == [5] * 4
    # w9 is token 9 of the context, whose rows begin at 0, 4, 8 and 12; the last one has it not
    assert rows.spans.tolist() == [[14, 14], [10, 10], [6, 6], [13, 13]]
    assert rows.nulls.tolist() == [15, 15, 15, 13]  # of a causal model the last token
    without = encode_spans(SPAN, [question(())], WordTokenizer(), 16, 4)
    assert without.spans.tolist() == [[15, 15], [15, 15], [15, 15], [13, 13]]


def test_each_token_may_begin_an_answer_in_one_row() -> None:
    rows = spans(question(answer("w9")))
    places = rows.places[rows.begins, 0].tolist()
    assert sorted(places) == sorted(CONTEXT.index(f"w{n} ") if n < 19 else CONTEXT.index("w19") for n in range(20))
    inside = [rows.begins[rows._tokens_of(row)].nonzero()[0].tolist() for row in range(4)]
    assert inside[0] == list(range(5, 12))  # w0 to w6: from w7 on the next row shows more before it


def test_the_best_legal_span_is_found() -> None:
    rows = spans(question(None))
    scores = [np.zeros((length, 2), dtype=np.float32) for length in rows.lengths[:, 0]]
    scores[0][0] = 50  # the symbol before the question
    scores[0][1] = 40  # the question itself
    scores[0][14, 0] = 30  # w9, around which another row shows more
    scores[1][9, 0], scores[1][10, 1] = 6, 5  # w8 to w9
    scores[2][11, 0], scores[2][10, 1] = 5, 8  # the end before the begin
    scores[2][15] = 60  # the symbol at the end
    scores[3][13] = -1, -2  # nothing, least likely of all
    answered = rows.answers(scores)
    assert answered.found.tolist() == ["w8 w9"]
    assert answered.null_gap is not None
    assert answered.null_gap.tolist() == [-3.0 - 11.0]
    assert answered.places is not None
    assert answered.places.tolist() == [[CONTEXT.index("w8"), CONTEXT.index("w9") + 2]]


def test_an_answer_has_at_most_30_tokens() -> None:
    context = " ".join(f"w{number}" for number in range(50))
    rows = encode_spans(SPAN, [question(None, context)], WordTokenizer(), 60, 128)
    scores = np.zeros((int(rows.lengths[0, 0]), 2), dtype=np.float32)
    scores[5, 0], scores[5 + 30, 1], scores[5 + 29, 1] = 9, 9, 1
    assert rows.answers([scores]).found[0].split()[-1] == "w29"


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("ÉDOUARD-Manet's", "It  was\tÉDOUARD-Manet's\n\nbest, 1863."),
        *((name, f"The {name} was open. ") for name in ("cafe\u0301", "re\u0301sume\u0301", "e\u0301\u0323")),
    ],
)
def test_text_is_cut_from_the_original(name: str, context: str, wordpiece_folder: Path) -> None:
    """With accents of its last letter that are letters of their own: this tokenizer leaves nothing of them."""
    start = context.index(name)
    one = Example("q", ("Whose?", context), answers=((name, start),))
    rows = encode_spans(replace(SPAN, symbols="separator"), [one], load_tokenizer(wordpiece_folder), 64, 128)
    scores = np.zeros((int(rows.lengths[0, 0]), 2), dtype=np.float32)
    first, last = rows.spans[0]
    scores[first, 0] = scores[last, 1] = 5
    answered = rows.answers([scores])
    assert answered.found.tolist() == [name]
    assert answered.places is not None
    assert answered.places.tolist() == [[start, start + len(name)]]


def test_weights_of_a_batch_sum_to_one_over_what_is_known() -> None:
    rows = spans(question(answer("w1"), identity="a"), question(None, identity="b"))
    batch = build_batch(rows, np.array([0, 1, 4, -1]))
    assert batch.counted == 2
    assert batch.token_targets is not None
    assert batch.token_targets.sum(axis=(1, 2)).tolist() == [0.5, 0.5, 0, 0]
    unknown = build_batch(rows, np.array([4, 5]))
    assert unknown.token_targets is not None
    assert (unknown.counted, unknown.token_targets.sum()) == (0, 0)


def test_an_answer_of_which_nothing_is_left_is_named(wordpiece_folder: Path) -> None:
    one = Example("q7", ("Whose?", "a ​ b"), answers=(("​", 2),))
    with pytest.raises(DataError, match="question q7: the tokenizer leaves nothing of its answer"):
        encode_spans(replace(SPAN, symbols="separator"), [one], load_tokenizer(wordpiece_folder), 64, 128)
