"""The scores of probes from the log-probabilities of their sequences, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from gpt1_ds.tasks import intervals
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.probe_scores import above_control, best_threshold, score_probe, shown_score, with_control
from gpt1_ds.tasks.questions import Question
from gpt1_ds.tasks.zeroshot import Probe


def asked(counts: list[tuple[int, ...]], labels: list[int]) -> list[Question]:
    return [
        Question(tuple(np.zeros(count + 1, dtype=np.int32) for count in part), part, label)
        for part, label in zip(counts, labels, strict=True)
    ]


def probe(name: str) -> Probe:
    return Probe(name, "dev", (), ())


def test_choices_are_compared_by_averages_and_sentiment_by_sums() -> None:
    one = asked([(1, 3)], [1])
    assert score_probe(probe("copa"), one, np.array([-2.0, -3.0]))["accuracy"] == 1, "-2 and -1 a token"
    two = asked([(2, 2)], [1])
    assert score_probe(probe("sst2"), two, np.array([-2.0, -3.0]))["accuracy"] == 0


def test_words_of_unlike_length_are_compared_with_their_own_average() -> None:
    sums = np.array([-9.0, -2.0, -11.0, -1.5])  # by the plain sums the shorter word always wins
    assert score_probe(probe("sst2"), asked([(2, 1)] * 2, [0, 1]), sums)["accuracy"] == 1.0


def test_pairs_are_compared_by_sums_and_phenomena_count_alike() -> None:
    pairs = [replace(one, group=group) for one, group in zip(asked([(2, 3)] * 4, [0] * 4), "aaab", strict=True)]
    asked_for = tuple(Example("", (), source=paradigm) for paradigm in "xxyz")
    found = score_probe(
        replace(probe("blimp"), examples=asked_for), pairs, np.array([-3, -2, -2, -3, -1, -2, -5, -6.0])
    )
    low, high = intervals.of_shares([2 / 3, 1], [3, 1])
    each = {"a": 2 / 3, "b": 1.0}
    whole = {"accuracy": (2 / 3 + 1) / 2, "low": low, "high": high, "chance": 0.5, "examples": 4, "paradigms": 3}
    assert found == whole | each


def test_a_difference_to_the_control_is_that_of_each_question() -> None:
    pairs = [replace(one, group=group) for one, group in zip(asked([(2, 3)] * 5, [0] * 5), "aaabb", strict=True)]
    ours = np.array([-1, -2, -1, -2, -2, -1, -1, -2, -1, -2.0])  # right, right, wrong; right, right
    control = np.array([-2, -1, -1, -2, -2, -1, -1, -1, -2, -1.0])  # wrong, right, wrong; half, wrong
    found = above_control(probe("blimp"), pairs, ours, pairs, control)
    assert found["above_control"] == pytest.approx((1 / 3 + 3 / 4) / 2), "groups count alike"
    variances = np.var([1, 0, 0], ddof=1) / 3, np.var([0.5, 1], ddof=1) / 2
    half = intervals.Z * (sum(variances)) ** 0.5 / 2
    assert found["above_control_high"] - found["above_control"] == pytest.approx(half)
    assert found["above_control"] - found["above_control_low"] == pytest.approx(half)
    merged = with_control(
        {"accuracy": 0.9, "low": 0.8, "high": 1.0, "chance": 0.5}, {"accuracy": 0.5, "low": 0.4, "high": 0.6}, found
    )
    assert [*merged][-5:] == ["control_high", *found, "chance"]


def test_the_control_of_answers_alone_has_sequences_of_its_own() -> None:
    whole, alone = asked([(2, 2)] * 2, [0, 1]), asked([(1, 1)] * 2, [0, 1])
    found = above_control(probe("copa"), whole, np.array([-1, -2, -2, -1.0]), alone, np.array([-1, -1, -1, -2.0]))
    assert found["above_control"] == pytest.approx((1 / 2 + 1) / 2)


@pytest.mark.parametrize("name", ["cola", "lambada"])
def test_metrics_that_are_no_mean_over_questions_have_no_difference(name: str) -> None:
    one = asked([(2,)], [1])
    assert above_control(probe(name), one, np.array([-1.0]), one, np.array([-1.0])) == {}


def test_equals_share_the_point() -> None:
    four = asked([(1, 1), (2, 1), (1, 1, 1, 1), (1, 1, 1)], [0, 1, 3, 0])
    sums = np.array([-1, -1, -4, -2, -1, -1, -1, -1, -3, -2, -2.0])
    found = score_probe(probe("wsc273"), four, sums)
    assert found["accuracy"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4 + 0) / 4)
    assert found["chance"] == pytest.approx((1 / 2 + 1 / 2 + 1 / 4 + 1 / 3) / 4)
    assert found["examples"] == 4


def test_cola_by_hand() -> None:
    dev = asked([(2,), (1,), (4,), (1,)], [1, 0, 1, 0])
    train = asked([(1,), (2,), (1,)], [0, 1, 1])
    sums = np.array([-2, -6, -12, -2.5, *(-5, -6, -2)])  # averages -1, -6, -3, -2.5 and -5, -3, -2
    found = score_probe(probe("cola"), dev, sums, train)
    assert found["threshold"] == -4
    assert found["accuracy"] == 3 / 4
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 0) / np.sqrt(3 * 2 * 2 * 1))
    assert (found["examples"], found["fitted"], found["chance"]) == (4, 3, 0)
    assert next(iter(found)) == "matthews", "what figures draw"
    assert found["auc"] == roc_auc_score([1, 0, 1, 0], [-1, -6, -3, -2.5]) == 3 / 4
    assert (found["auc_low"], found["auc_high"]) == intervals.of_area(
        np.array([-1, -6, -3, -2.5]), np.array([1, 0, 1, 0])
    )[1:]
    assert found["low"] < found["matthews"] < found["high"]
    assert found["auc_chance"] == 0.5
    same = score_probe(probe("cola"), asked([(1,)] * 2, [1, 1]), np.array([-1, -2, -3.0]), asked([(1,)], [1]))
    assert (same["matthews"], "auc" in same) == (0.0, False), "of one class there is no area"


def test_the_threshold_is_the_best_of_all() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(50):
        labels = numbers.integers(0, 2, 40)
        values = np.round(numbers.normal(size=40) + labels, 1)  # some are equal
        # Matthews' correlation is Pearson's of two classes, and 0 where all are called one of them
        best = max(np.corrcoef(labels, values > t)[0, 1] for t in values[values < values.max()])
        found = matthews_corrcoef(labels, values > best_threshold(values, labels))
        assert found == pytest.approx(max(best, 0))


@pytest.mark.parametrize("labels", [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_no_threshold_helps(labels: list[int]) -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert best_threshold(values, np.array(labels)) < 1
    assert best_threshold(np.full(4, 2.0), np.array(labels)) < 2


def test_words_that_are_alike_everywhere_share_the_point() -> None:
    """As in the control, where nothing stands before them: no rounding decides."""
    sums = np.array([-10.1, -3.7] * 7)
    assert score_probe(probe("sst2"), asked([(2, 1)] * 7, [1, 0] * 3 + [1]), sums)["accuracy"] == 0.5


def test_the_control_stands_before_chance_with_its_own_interval() -> None:
    found = {"accuracy": 0.6, "low": 0.5, "high": 0.7, "chance": 0.25, "examples": 9}
    merged = with_control(found, {"accuracy": 0.55, "low": 0.45, "high": 0.65, "chance": 0.25})
    assert list(merged) == ["accuracy", "low", "high", "control", "control_low", "control_high", "chance", "examples"]
    assert merged == found | {"control": 0.55, "control_low": 0.45, "control_high": 0.65}
    cola = {"matthews": 0.1, "chance": 0.0, "auc": 0.6, "auc_chance": 0.5}
    control = {"matthews": 0.2, "low": 0.1, "high": 0.3, "auc": 0.4, "auc_low": 0.35, "auc_high": 0.45}
    assert with_control(cola, control) == {
        **cola,
        **{"control": 0.2, "control_low": 0.1, "control_high": 0.3},
        **{"auc_control": 0.4, "auc_control_low": 0.35, "auc_control_high": 0.45},
    }
    control = {"accuracy": 0.0, "low": 0.0, "high": 0.1, "perplexity": 99.0}
    words = with_control({"accuracy": 0.1, "chance": 0.0, "perplexity": 9.0}, control)
    assert (words["control"], words["perplexity_control"]) == (0.0, 99.0)


def test_a_repeated_passage_counts_by_its_tokens() -> None:
    found = score_probe(probe("repeat"), asked([(2,), (4,)], [0, 0]), np.array([-2.0, -8.0]), vocabulary=8)
    assert found == {
        **{"log_probability": -1.5, "low": pytest.approx(-1.5 - 1.96 * 0.5, abs=1e-3)},
        **{"high": pytest.approx(-1.5 + 1.96 * 0.5, abs=1e-3), "chance": pytest.approx(-np.log(8)), "examples": 2},
    }


def test_the_line_for_people() -> None:
    accuracy = {"accuracy": 0.5612, "low": 0.5574, "high": 0.565, "control": 0.5021, "chance": 0.5}
    accuracy |= {"control_low": 0.498, "control_high": 0.506}
    line = "accuracy 0.561 (0.557 to 0.565), control 0.502 (0.498 to 0.506), chance 0.5"
    assert shown_score({**accuracy, "examples": 67_000}) == f"{line}, examples 67000"
    cola = {"matthews": 0.05, "low": -0.01, "high": 0.11, "control": 0.0, "chance": 0.0, "auc": 0.53, "auc_low": 0.5,
            "auc_high": 0.56, "auc_control": 0.49, "auc_chance": 0.5, "threshold": -4.12345,
            "control_low": -0.05, "control_high": 0.05, "auc_control_low": 0.45, "auc_control_high": 0.53}  # fmt: skip
    assert shown_score(cola) == (
        "matthews 0.05 (-0.01 to 0.11), control 0 (-0.05 to 0.05), chance 0, auc 0.53 (0.5 to 0.56), "
        "auc control 0.49 (0.45 to 0.53), auc chance 0.5, "
        "threshold -4.123"
    )


def test_last_words_by_greedy_decoding() -> None:
    questions, sums = asked([(1,), (1,)], [0, 0]), np.log([0.5, 0.125])
    found = score_probe(probe("lambada"), questions, sums, likeliest=np.array([1.0, 0.0]))
    low, high = intervals.of_shares([0.5], [2])
    scores = {"accuracy": 0.5, "low": low, "high": high, "chance": 0.0}
    assert found == {**scores, "perplexity": pytest.approx(4.0), "examples": 2}
