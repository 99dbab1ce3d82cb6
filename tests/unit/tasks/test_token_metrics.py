"""Scores of spans and tags, against a restatement of SQuAD's and conlleval's rules and values that were worked out by
hand.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.comparison import estimate
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import Span, Tagging
from gpt1_ds.tasks.metrics import measure
from gpt1_ds.tasks.token_metrics import entities, entity_problem, loose, objects, of_sums, parts

PIECES = ("The", "the", "a", "an", "cat", "Cat's", "dog,", "(dog)", "--", "1,000", "in", "New York", "“so”", "  ")


def squad_script(answers: list[str], said: str) -> tuple[float, float]:
    """(exact match, F1), step by step as the official script's description has it."""

    def normalised(text: str) -> str:
        text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())

    def f1(answer: str) -> float:
        wanted, found = normalised(answer).split(), normalised(said).split()
        if not wanted or not found:
            return float(wanted == found)
        same = sum((Counter(wanted) & Counter(found)).values())
        if same == 0:
            return 0.0
        precision, recall = same / len(found), same / len(wanted)
        return 2 * precision * recall / (precision + recall)

    candidates = answers or [""]
    return max(float(normalised(one) == normalised(said)) for one in candidates), max(map(f1, candidates))


def test_200_answers_score_as_the_official_script_says() -> None:
    draw = random.Random(0)
    text = lambda most: " ".join(draw.choices(PIECES, k=draw.randint(0, most)))  # noqa: E731
    seen = set()
    for _ in range(200):
        answers, said = [text(4) for _ in range(draw.randint(0, 3))], text(3)
        gold, found = objects([tuple(answers)]), objects([said])
        exact, f1 = squad_script(answers, said)
        assert parts("exact_match", gold, found).tolist() == [[exact, 1.0]]
        assert parts("f1", gold, found)[0] == pytest.approx([f1, 1.0])
        seen.add((exact, 0 < f1 < 1))
    assert {(0.0, True), (0.0, False), (1.0, False)} <= seen


@pytest.mark.parametrize(
    ("answers", "said", "exact", "f1"),
    [
        (("the Eiffel Tower",), "Eiffel tower.", 1, 1.0),
        (("in 1889", "1889"), "1889", 1, 1.0),  # the nearest of several
        (("two words",), "two other words", 0, 0.8),
        ((), "", 1, 1.0),
        ((), "something", 0, 0.0),
        (("something",), "", 0, 0.0),
        (("a",), "the", 1, 1.0),  # of articles nothing is left on both sides
    ],
)
def test_a_span(answers: tuple[str, ...], said: str, exact: float, f1: float) -> None:
    gold, found = objects([answers]), objects([said])
    assert measure("exact_match", gold, found) == exact
    assert measure("f1", gold, found) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-per I-per O", {("per", 1, 2)}),
        ("B-per B-per", {("per", 0, 0), ("per", 1, 1)}),
        ("B-per I-loc", {("per", 0, 0), ("loc", 1, 1)}),  # an I- of another kind begins an entity, as in conlleval
        ("I-per I-per O I-per", {("per", 0, 1), ("per", 3, 3)}),
        ("B-per-x I-per-x", {("per-x", 0, 1)}),
        ("S-loc B-org I-org E-org O", {("loc", 0, 0), ("org", 1, 3)}),
        ("B-org E-org I-org", {("org", 0, 1), ("org", 2, 2)}),
        ("B-per I-per L-per O U-per", {("per", 0, 2), ("per", 4, 4)}),  # BILOU
        ("U-loc U-loc L-loc", {("loc", 0, 0), ("loc", 1, 1), ("loc", 2, 2)}),
        ("B-per M-per E-per W-per", {("per", 0, 2), ("per", 3, 3)}),  # BMEWO
        ("NOUN VERB", set()),
        ("O O", set()),
    ],
)
def test_entities(tags: str, found: set[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == found


def test_an_answer_of_articles_is_none_where_questions_may_have_no_answer() -> None:
    examples = [
        Example("0", ("Which letter?", "The letter A."), "train", answers=(("A", 11), ("letter A", 4))),
        Example("1", ("Which word?", "The word."), "train", answers=(("The", 0),)),
    ]
    without = Span("squad", "pair", ("answer",), ("f1",))
    assert without.gold(examples).tolist() == [("A", "letter A"), ("The",)]
    with_none = Span("squad2", "pair", ("answer", "no answer"), ("f1",))
    assert with_none.gold(examples).tolist() == [("letter A",), ()]
    assert measure("exact_match", with_none.gold(examples), objects(["", ""])) == 0.5


def test_tags_of_which_entities_cannot_be_counted() -> None:
    assert entity_problem(["NOUN", "VERB"]) == "no tag is part of an entity (B-..., I-...)"
    problem = "tag X-per begins with none of B-, I-, E-, S-, M-, L-, U-, W-"
    assert entity_problem(["B-per", "I-per", "O", "X-per"]) == problem
    assert entity_problem(["B-per", "I-per", "L-per", "O", "U-per"]) == ""
    with pytest.raises(DataError, match=re.escape(f"data: {problem}; set task.metric=accuracy")):
        Tagging.fit_metrics(("entity_f1", "accuracy"), ("B-per", "X-per"), "data")
    assert Tagging.fit_metrics(("accuracy", "entity_f1"), ("B-per", "X-per"), "data") == ("accuracy",)


def test_entities_that_begin_with_i_are_counted() -> None:
    assert loose(["O", "I-per", "I-per", "B-loc", "I-loc", "I-per"]) == 2


def test_entity_f1_is_of_all_sentences_together() -> None:
    gold = objects([("B-per", "I-per", "O"), ("B-loc", "O"), ("O", "O")])
    found = objects([("B-per", "O", "O"), ("B-loc", "O"), ("B-loc", "O")])  # 1 right, 3 found, 2 there
    assert measure("entity_f1", gold, found) == pytest.approx(2 * 1 / (3 + 2))
    assert measure("accuracy", gold, found) == pytest.approx(5 / 7)
    nothing = objects([("O", "O")])
    assert measure("entity_f1", nothing, nothing) is None


@pytest.mark.parametrize("metric", ["entity_f1", "accuracy"])
def test_an_interval_leaves_out_blocks_of_sentences(metric: str) -> None:
    draw = random.Random(0)
    rows = [tuple(draw.choices(("B-x", "I-x", "O"), k=4)) for _ in range(130)]
    others = [tuple(tag if draw.random() < 0.7 else "O" for tag in tags) for tags in rows]
    gold, found = objects(rows), objects(others)
    one = estimate(metric, gold, [found])
    assert one is not None
    blocks = np.array_split(np.arange(len(rows)), 50)
    left = [parts(metric, np.delete(gold, block), np.delete(found, block)) for block in blocks]
    wanted = [of_sums(metric, one.sum(axis=0)) for one in left]
    (left,) = one.without_block.values()
    assert left == pytest.approx(np.array(wanted, dtype=float))
    assert one.by_seed == (measure(metric, gold, found),)
