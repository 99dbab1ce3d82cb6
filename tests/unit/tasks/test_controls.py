"""Controls find what words alone tell, and nothing where words tell nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import Layout
from gpt1_ds.tasks.controls import CONTROLS, COSINE, MAJORITY, OVERLAP, SECOND, STRONGEST, WORDS
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import KINDS, Sentences
from gpt1_ds.tasks.metrics import control_scores
from gpt1_ds.tasks.reading import TaskData

COLOURS, THINGS = ("red", "blue", "green"), ("ball", "book", "hat", "tree", "boat", "lamp")


def scores(kind: Kind, layout: Layout, examples: list[Example], labels: tuple[str, ...] = ()) -> dict[str, float]:
    """Control -> the first metric on dev, which is every third example."""
    metric = "pearson" if kind == "regression" else "accuracy"
    train = tuple(example for number, example in enumerate(examples) if number % 3)
    data = TaskData(KINDS[kind]("t", layout, labels, (metric,)), {"train": train, "dev": tuple(examples[::3])}, ())
    found = list(control_scores(data.task, data.task.controls(data.splits)))
    assert {(score.split, score.metric) for score in found} == {("dev", metric)}
    return {score.control: score.value if score.value is not None else np.nan for score in found}


def test_a_word_tells_the_class() -> None:
    examples = [
        Example("", (f"a {colour} {thing} {number}",), label="1" if colour == "red" else "0")
        for number, (colour, thing) in enumerate(itertools.product(COLOURS, THINGS * 2))
    ]
    found = scores("classification", "single", examples, ("0", "1"))
    assert found == {MAJORITY: pytest.approx(2 / 3), WORDS: 1.0}


def test_common_words_tell_what_neither_text_does() -> None:
    """Every thing is as often in either text, and in either class."""
    pairs = list(itertools.product(THINGS, THINGS[:3] + THINGS[3:]))
    examples = [
        Example("", (f"the {first}", f"the {second}"), label="same" if first == second else "other")
        for first, second in [*pairs, *((thing, thing) for thing in THINGS * 4)]
    ]
    found = scores("classification", "pair", examples, ("same", "other"))
    assert found[OVERLAP] == found[STRONGEST] == 1.0
    assert max(found[WORDS], found[SECOND]) < 0.7, "neither has seen both texts"


def test_the_second_text_betrays_the_class() -> None:
    texts = [(f"{a} {b}", "nobody sleeps" if number % 2 else "somebody sleeps") for number, (a, b) in
             enumerate(itertools.product(COLOURS, THINGS))]  # fmt: skip
    examples = [Example("", pair, label="no" if "nobody" in pair[1] else "yes") for pair in texts]
    found = scores("classification", "pair", examples, ("yes", "no"))
    assert found[SECOND] == found[WORDS] == found[STRONGEST] == 1.0
    assert found[OVERLAP] < 0.7, "it sees no word"


def test_sentences_are_compared_by_their_words() -> None:
    texts = ["a red ball", "a blue book", "a green hat", "the red boat"]
    train = tuple(Example("", (text, text), label="entailment") for text in texts)
    pairs = [("a red ball", "a red ball", 5.0), ("a red ball", "the red boat", 2.0), ("red ball", "blue book", 0.0)]
    dev = tuple(Example("", (a, b), score=score) for a, b, score in pairs)
    task = Sentences("nli", "sentences", ("entailment",), ("spearman",), loss="nli")
    (found,) = control_scores(task, task.controls({"train": train, "dev": dev}))
    assert (found.control, found.split, found.value) == (COSINE, "dev", 1.0)
    hidden = tuple(replace(example, score=None) for example in dev)  # GLUE's test split
    assert len(list(task.controls({"train": train, "dev": dev, "test": hidden}))) == 1


def test_scores_and_choices() -> None:
    counts = list(itertools.product(range(6), range(4)))
    rated = [Example("", ("a b c d e", " ".join("abcde"[:common]) + " x" * (5 - common)), score=float(common))
             for common, _ in counts]  # fmt: skip
    found = scores("regression", "both", rated)
    assert np.isnan(found[MAJORITY]), "one score for all has no correlation"
    assert found[OVERLAP] > 0.95
    assert found[STRONGEST] > 0.95
    asked = [Example("", (f"{thing} {colour}", "which?"), ("nothing", thing), label="1")
             for thing, colour in itertools.product(THINGS, COLOURS)]  # fmt: skip
    assert scores("choice", "choice", asked, ("0", "1")) == dict.fromkeys(CONTROLS, 1.0)
