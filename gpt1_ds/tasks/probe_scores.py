"""What the scores of sequences say of a probe's questions: its metrics, their intervals, and their control's.

`low` and `high` are the 95 % interval of the first metric (intervals.py): what another draw of as many questions does.
`above_control` is the first metric less the control's, question by question, whose interval is narrower
than the two intervals together. CoLA and lambada, whose metric is no mean over questions, have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.tasks import intervals, metrics
from gpt1_ds.tasks.blimp import BLIMP
from gpt1_ds.tasks.book_probes import REPEAT
from gpt1_ds.tasks.lambada import LAMBADA
from gpt1_ds.tasks.questions import Question
from gpt1_ds.tasks.zeroshot import Probe

Float64s = NDArray[np.float64]
NOTHING: Mapping[str, float] = {}


def score_probe(
    probe: Probe,
    asked: Sequence[Question],
    sums: Float64s,
    fitted: Sequence[Question] = (),
    likeliest: Float64s | None = None,
    vocabulary: int = 1,
) -> dict[str, float]:
    """Returns the metrics of a probe, the one that decides first; its interval, `chance`, what guessing gives, and
    `examples`, how many were asked.

    `sums` are the log-probabilities of the scored tokens of every sequence of `asked`, then of `fitted`, in order.
    `fitted` is the training part of CoLA, whose metrics also hold the threshold (nats) and on how many it was `fitted`.
    `likeliest`, for lambada: 1 for a sequence all of whose scored tokens are the likeliest. `vocabulary`, for repeat:
    how many tokens there are to guess.
    """
    if probe.name == LAMBADA:
        assert likeliest is not None, "the caller has them"
        return _last_words(sums, likeliest)
    if probe.name == BLIMP:
        return _phenomena(probe, asked, sums)
    if probe.sums_tokens:
        return _acceptability(sums / _counts((*asked, *fitted)), asked, fitted)
    points = question_points(probe, asked, sums)
    if probe.name == REPEAT:
        low, high = intervals.of_mean(points)
        chance = -float(np.log(vocabulary))
        return {"log_probability": float(points.mean()), "low": low, "high": high, "chance": chance,
                "examples": len(asked)}  # fmt: skip
    chance = float(np.mean([1 / len(question.sequences) for question in asked]))
    return {**_shares([float(points.mean())], [len(asked)]), "chance": chance, "examples": len(asked)}


def question_points(probe: Probe, asked: Sequence[Question], sums: Float64s) -> Float64s:
    """Returns float64 [len(asked)]: of each question 1 for a right answer, 0 for a wrong one, a share where several are
    the best; of repeat the log-probability of a token. `sums` as in `score_probe`.
    """
    count_N = _counts(asked)
    values = sums if probe.template or probe.name == BLIMP else sums / count_N
    if probe.name == "sst2" and not probe.template:
        values = _calibrated(sums) if len(set(count_N.tolist())) > 1 else sums
    if probe.name == REPEAT:
        return values
    parts = np.split(values, np.cumsum([len(question.sequences) for question in asked])[:-1])
    return np.array([_points(part, question.label) for part, question in zip(parts, asked, strict=True)])


def above_control(
    probe: Probe, asked: Sequence[Question], sums: Float64s, alone: Sequence[Question], of_control: Float64s
) -> dict[str, float]:
    """Returns how far the metric is above that of the control, whose questions are `alone` and in the same order, and
    the 95 % interval of this difference; nothing of CoLA and lambada.
    """
    if probe.name == LAMBADA or (probe.sums_tokens and probe.name != BLIMP):
        return {}
    difference_N = question_points(probe, asked, sums) - question_points(probe, alone, of_control)
    groups: dict[str, list[float]] = {}
    for question, difference in zip(asked, difference_N, strict=True):
        groups.setdefault(question.group if probe.name == BLIMP else "", []).append(difference)
    parts = [np.array(part) for part in groups.values()]
    low, high = intervals.of_means(parts)
    mean = float(np.mean([part.mean() for part in parts]))
    return {"above_control": mean, "above_control_low": low, "above_control_high": high}


def with_control(
    found: Mapping[str, float], control: Mapping[str, float], above: Mapping[str, float] = NOTHING
) -> dict[str, float]:
    """Returns the metrics of a probe with those of its control (zeroshot.py): before each chance, what the control has
    of the same metric and its interval, how far the metric is `above` it, and lambada's other metric.
    """
    merged: dict[str, float] = {}
    for key, value in found.items():
        if key.endswith("chance"):
            before = key.removesuffix("chance")  # of the area under the curve, or nothing
            merged[f"{before}control"] = control[before.removesuffix("_") or next(iter(found))]
            merged |= {f"{before}control_{end}": control[before + end] for end in ("low", "high")}
            merged |= above if not before else {}
        merged[key] = value
        if key == "perplexity":
            merged["perplexity_control"] = control[key]
    return merged


def shown_score(found: Mapping[str, float]) -> str:
    """Returns one line for people, like `accuracy 0.561 (0.557 to 0.565), control 0.502 (0.498 to 0.506), chance
    0.5`.
    """
    ends = {key: (f"{key}_low", f"{key}_high") for key in ("auc", "control", "auc_control", "above_control")}
    ends[next(iter(found))] = ("low", "high")
    parts = []
    for key, value in found.items():
        if key.endswith(("low", "high")):
            continue
        text = f"{key.replace('_', ' ')} {_digits(value)}"
        if key in ends:
            text += " ({} to {})".format(*(_digits(found[end]) for end in ends[key]))
        parts.append(text)
    return ", ".join(parts)


def _digits(value: float) -> str:
    return f"{value:.{4 if abs(value) >= 1 else 3}g}" if isinstance(value, float) else str(value)


def best_threshold(values: Float64s, labels: NDArray[np.int64]) -> float:
    """Returns the t for which `values > t` has the highest Matthews' correlation with `labels` (0 or 1), halfway
    between two values; of equals the lowest. Below all values where no threshold does better than calling everything 1.
    """
    order = np.argsort(values, kind="stable")
    ordered, positive = values[order], labels[order] == 1
    cuts = np.flatnonzero(np.diff(ordered) > 0) + 1  # this many values are called 0
    false_negative, true_negative = np.cumsum(positive)[cuts - 1], np.cumsum(~positive)[cuts - 1]
    true_positive, false_positive = positive.sum() - false_negative, (~positive).sum() - true_negative
    product = (1.0 * positive.sum()) * (~positive).sum() * cuts * (len(values) - cuts)
    correlation = (true_positive * true_negative - false_positive * false_negative) / np.sqrt(np.maximum(product, 1))
    if len(cuts) == 0 or correlation.max() <= 0:
        return float(ordered[0] - 1)
    cut = cuts[int(np.argmax(correlation))]
    return float((ordered[cut - 1] + ordered[cut]) / 2)


def _counts(questions: Sequence[Question]) -> NDArray[np.int64]:
    """Returns int64 [sequences]: how many tokens of each are scored, at least 1."""
    return np.maximum([count for question in questions for count in question.scored], 1)


def _points(values: Float64s, label: int) -> float:
    """Returns 1 for a right answer, 0 for a wrong one, a share where several are the best."""
    best = values == values.max()
    return float(best[label] / best.sum())


def _shares(shares: Sequence[float], counts: Sequence[int]) -> dict[str, float]:
    """Returns the mean of shares that are right, each of so many examples, and its interval."""
    low, high = intervals.of_shares(shares, counts)
    return {"accuracy": float(np.mean(shares)), "low": low, "high": high}


def _calibrated(sums: Float64s) -> Float64s:
    """Returns each of two words by how far it is above its average. Zero where all examples are alike, without
    rounding.
    """
    pairs_N2 = sums.reshape(-1, 2) - sums[:2]
    pairs_N2 = pairs_N2 - pairs_N2.mean(axis=0)
    values: Float64s = pairs_N2.reshape(-1)
    return values


def _phenomena(probe: Probe, asked: Sequence[Question], sums: Float64s) -> dict[str, float]:
    """Returns the mean over the phenomena, and the accuracy of each."""
    points: dict[str, list[float]] = {}
    for question, point in zip(asked, question_points(probe, asked, sums), strict=True):
        points.setdefault(question.group, []).append(float(point))
    each = {name: float(np.mean(points[name])) for name in sorted(points)}
    return {
        **_shares([*each.values()], [len(points[name]) for name in each]),
        **{"chance": 0.5, "examples": len(asked), "paradigms": len({one.source for one in probe.examples})},
        **each,
    }


def _acceptability(values: Float64s, asked: Sequence[Question], fitted: Sequence[Question]) -> dict[str, float]:
    """Returns matthews' correlation and the accuracy of values above a threshold that is fitted, and without any
    threshold the area under the ROC curve, which is not there where all sentences are of one class.
    """
    gold = np.array([question.label for question in (*asked, *fitted)])
    threshold = best_threshold(values[len(asked) :], gold[len(asked) :])
    values, gold = values[: len(asked)], gold[: len(asked)]
    predictions = (values > threshold).astype(np.int64)
    low, high = intervals.of_matthews(gold, predictions)
    area = intervals.of_area(values, gold)
    keys = ("auc", "auc_low", "auc_high", "auc_chance")
    return {
        "matthews": metrics.measure("matthews", gold, predictions) or 0.0,
        **{"low": low, "high": high, "chance": 0.0},
        **(dict(zip(keys, (*area, 0.5), strict=True)) if area else {}),
        "accuracy": metrics.measure("accuracy", gold, predictions) or 0.0,
        **{"examples": len(asked), "fitted": len(fitted), "threshold": threshold},
    }


def _last_words(sums_N: Float64s, likeliest_N: Float64s) -> dict[str, float]:
    """Returns how often greedy decoding gives the last word of a passage, and the perplexity of a word. `likeliest_N`
    says whether it gives word n, `sums_N` are the log-probabilities of words (nats).
    """
    accuracy = float(likeliest_N.mean())
    low, high = intervals.of_shares([accuracy], [len(sums_N)])
    return {
        **{"accuracy": accuracy, "low": low, "high": high, "chance": 0.0},
        "perplexity": float(np.exp(-sums_N.mean())),
        "examples": len(sums_N),
    }
