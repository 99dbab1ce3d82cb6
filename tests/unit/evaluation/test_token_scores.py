"""The threshold above which a question has no answer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpt1_ds.evaluation.token_scores import best_threshold, with_refusals
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Span
from gpt1_ds.tasks.span_rows import encode_spans
from gpt1_ds.tasks.token_metrics import objects, of_sums, parts
from gpt1_ds.tasks.token_rows import Answered
from tests.helpers.words import WordTokenizer

TASK = Span("table", "pair", ("answer", "no answer"), ("exact_match",))


def rows_of(*answers: str):  # type: ignore[no-untyped-def]
    """Questions about one text with these answers; an empty one stands for none."""
    examples = [
        Example(str(n), ("who is it", "a b c d"), answers=((answer, "a b c d".index(answer)),) if answer else ())
        for n, answer in enumerate(answers)
    ]
    return encode_spans(TASK, examples, WordTokenizer(), 32, 16)


@pytest.mark.parametrize("gaps", [(2.0, -3.0, 0.5, -1.0), (-1.0, -1.0, -1.0, 2.0)], ids=["apart", "alike"])
@pytest.mark.parametrize("known", itertools.product(["c", ""], repeat=4))
def test_no_other_threshold_is_better(known: tuple[str, ...], gaps: tuple[float, ...]) -> None:
    """All ways to refuse some of four questions by their gaps are tried; rows that are alike have the same one."""
    rows = rows_of(*known)
    answered = Answered(objects(["c", "b", "c", "c"]), np.array(gaps))
    gold = TASK.gold(rows.examples)

    def value(threshold: float) -> float | None:
        return of_sums("exact_match", parts("exact_match", gold, with_refusals(TASK, answered, threshold)).sum(axis=0))

    values = {at: value(at) for at in (-9.0, -2.0, 0.0, 1.0, 9.0)}
    threshold = best_threshold(TASK, rows, answered)
    assert value(threshold) == max(values.values())


def test_a_question_that_has_an_answer_gets_one() -> None:
    """As in SQuAD 1.1: a row of a long text that does not hold the answer learns that it has none, but the text has."""
    answered = Answered(objects(["a", "b"]), np.array([5.0, -5.0]))
    assert with_refusals(TASK, answered, 0.0).tolist() == ["", "b"]
    assert with_refusals(replace(TASK, labels=("answer",)), answered, 0.0).tolist() == ["a", "b"]


def test_a_context_without_a_word_has_no_threshold_of_its_own() -> None:
    answered = Answered(objects(["", ""]), np.array([np.inf, np.inf]))
    assert best_threshold(TASK, rows_of("", ""), answered) == 0.0
    assert with_refusals(TASK, answered, 0.0).tolist() == ["", ""]
