"""Zero-shot probes (section 5 of the paper): tasks as texts that a pre-trained model finds more or less likely.

- cola       the sentence; an average token log-probability above a threshold means acceptable. The threshold is the one
             with the highest Matthews' correlation on train, because that is what dev is scored by.
- sst2       the sentence and `very`, then `positive` or `negative`. Each is one token of the vocabulary of 2018; with
             another one they may be several, and unlike in number, which alone would decide: then each sum counts as
             far as it is above the same word's average over all examples (calibration; no label is used).
- choices    race, story_cloze, cosmosqa, copa: document, question and each choice, joined by blanks; the average token
             log-probability of the choice decides.
- schemas    wsc273, pdp, dprd: each candidate in place of the pronoun; the average over the tokens after it decides
             (partial scoring). They are the same in all sequences of a question.
- blimp      the good and the bad sentence of a minimal pair (Warstadt et al. 2020); the log-probability of all tokens
             decides. Accuracy is the mean over the phenomena, each of which counts alike.
- lambada    the last word of a passage; accuracy is how often greedy decoding gives it. As in lm-evaluation-harness
             nothing comes before the passage.

A model that is not fine-tuned yet has no start token, so the first token of a text would have no context. Here it has
what comes before a text in training: the end of the last document (`<eod>`), or in the vocabulary of 2018, whose model
never met that one, the line end (`\\n</w>`). What does not fit the context is cut: of a document the beginning, alike
for all choices, and of a text that is scored the end. Equals share the point, as drawing lots would: in the file of
wsc273 the first candidate is always right.

A template puts any task with classes in words; the log-probability of all tokens of an answer decides. A prefix model
sees all that comes before what is scored at once. An encoder-decoder has it as its source, and writes what is scored
after a sentinel (frame.py).

A masked model sees both sides of a token. In the place of each log-probability stands that of the token when it alone
is masked; their sum is the pseudo-log-likelihood (Salazar et al. 2020). Texts stand in rows as that model has seen
them: `[cls] text [separator]`, or windows without symbols (frame.py). What is cut leaves these symbols in place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import ProbeConfig, TaskConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.tasks import blimp, lambada, metrics, winograd
from gpt1_ds.tasks.base import Example
from gpt1_ds.tasks.frame import Frame, Int32s
from gpt1_ds.tasks.reading import Examples, capped, read_split
from gpt1_ds.tasks.registry import SPECS

Float64s = NDArray[np.float64]
SENTIMENT = (" negative", " positive")  # by label


@dataclass(frozen=True)
class Probe:
    """A probe's examples; `train` is empty where nothing is fitted. Its `title` names it in results."""

    name: str
    split: str  # of `examples`
    examples: Examples
    train: Examples
    title: str = ""
    template: str = ""
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """One example as a sequence per candidate answer; CoLA has one, the sentence."""

    sequences: tuple[Int32s, ...]  # each [T], T at most the frame's size
    scored: tuple[int, ...]  # of each sequence, how many of its last tokens count, the frame's `last` aside
    label: int  # the right sequence; of CoLA 1: acceptable
    group: str = ""  # its phenomenon, which has an accuracy of its own


def read_probe(config: ProbeConfig) -> Probe:
    """The examples of a probe: of dev where the task has dev files, else what is there. Raises DataError."""
    if not Path(config.path).exists():
        raise DataError(f"{config.path}: no such folder; give the one that holds the files of {config.name} in probes")
    train: Examples = ()
    if config.template:
        return _read_template(config)
    if config.name == "blimp":
        pairs = blimp.read_pairs(Path(config.path), config.limit)
        return Probe(config.name, "test", pairs, train, config.shown)
    if config.name == lambada.NAME:
        return Probe(config.name, "test", lambada.read_passages(Path(config.path), config.limit), train, config.shown)
    if config.name in winograd.FILES:
        split, examples = "test", winograd.read_schemas(config.name, Path(config.path))
    else:
        task = TaskConfig(name=config.name, path=config.path)
        alternatives = ["dev", "train"] if SPECS[config.name].kind == "choice" else ["dev"]
        split, examples = read_split(task, alternatives)
        if config.name == "cola":
            train = capped(read_split(task, ["train"])[1], config.train_limit)
    return Probe(config.name, split, capped(examples, config.limit), train, config.shown)


def _read_template(config: ProbeConfig) -> Probe:
    """Raises ConfigError for a task without classes, and where there is no answer for each."""
    spec = SPECS.get(config.name)
    if spec is None or not spec.labels or spec.kind == "choice":
        known = ", ".join(name for name, one in SPECS.items() if one.labels and one.kind != "choice")
        raise ConfigError(f"probes: name={config.name} has no classes that a template can ask for; choose {known}")
    if len(config.answers) != len(spec.labels):
        raise ConfigError(
            f"probes: answers={config.answers} of {config.name} must be one for each of {', '.join(spec.labels)}"
        )
    split, examples = read_split(TaskConfig(name=config.name, path=config.path), ["dev", "train"])
    kept, answers = capped(examples, config.limit), tuple(config.answers)
    return Probe(config.name, split, kept, (), config.shown, config.template, answers)


def probe_questions(probe: Probe, examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame) -> list[Question]:
    """Examples of a probe as token sequences, framed for a model."""
    if not probe.template:
        return questions(probe.name, examples, tokenizer, frame)
    return [_templated(example, tokenizer, frame, probe) for example in examples]


def questions(name: str, examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame) -> list[Question]:
    """As `probe_questions`, of the probe of this name."""
    choice = partial(_choice, labels=SPECS[name].labels if name in SPECS else ())
    kinds = {"cola": _sentence, "sst2": _sentiment, "blimp": _pair, lambada.NAME: _last_word}
    ask = kinds.get(name, _schema if name in winograd.FILES else choice)
    return [ask(example, tokenizer, frame) for example in examples]


def score(
    probe: Probe,
    asked: Sequence[Question],
    sums: Float64s,
    fitted: Sequence[Question] = (),
    likeliest: Float64s | None = None,
) -> dict[str, float]:
    """The metrics of a probe, and beside them `chance`, what guessing gives, and `examples`, how many were asked.

    `sums` are the log-probabilities of the scored tokens of every sequence of `asked`, then of `fitted`, in order.
    `fitted` is the training part of CoLA, whose metrics also hold the threshold (nats) and on how many it was `fitted`.
    `likeliest`, for lambada: 1 for a sequence all of whose scored tokens are the likeliest.
    """
    if probe.name == lambada.NAME:
        assert likeliest is not None, "the caller has them"
        return lambada.measured(sums, likeliest)
    sizes = [len(question.sequences) for question in (*asked, *fitted)]
    counts = np.array([count for question in (*asked, *fitted) for count in question.scored])
    values = sums if probe.template else sums / np.maximum(counts, 1)
    if probe.name == "blimp":
        return _phenomena(asked, sums)
    if probe.name == "sst2" and not probe.template:
        pairs_N2 = sums.reshape(-1, 2)
        values = (pairs_N2 - pairs_N2.mean(axis=0)).reshape(-1) if len(set(counts.tolist())) > 1 else sums
    if probe.name != "cola" or probe.template:
        points = [
            _points(part, q.label) for part, q in zip(np.split(values, np.cumsum(sizes)[:-1]), asked, strict=True)
        ]
        return {
            "accuracy": float(np.mean(points)),
            "chance": float(np.mean([1 / size for size in sizes])),
            "examples": len(asked),
        }
    gold = np.array([question.label for question in (*asked, *fitted)])
    threshold = best_threshold(values[len(asked) :], gold[len(asked) :])
    predictions = (values[: len(asked)] > threshold).astype(np.int64)
    return {
        "matthews": metrics.measure("matthews", gold[: len(asked)], predictions) or 0.0,
        "accuracy": metrics.measure("accuracy", gold[: len(asked)], predictions) or 0.0,
        "chance": 0.0,
        "examples": len(asked),
        "fitted": len(fitted),
        "threshold": threshold,
    }


def best_threshold(values: Float64s, labels: NDArray[np.int64]) -> float:
    """The t for which `values > t` has the highest Matthews' correlation with `labels` (0 or 1), halfway between two
    values; of equals the lowest. Below all values where no threshold does better than calling everything 1.
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


def _points(values: Float64s, label: int) -> float:
    """1 for a right answer, 0 for a wrong one, a share where several are the best."""
    best = values == values.max()
    return float(best[label] / best.sum())


def _phenomena(asked: Sequence[Question], sums: Float64s) -> dict[str, float]:
    """The mean over the phenomena, and the accuracy of each."""
    points: dict[str, list[float]] = {}
    for question, pair in zip(asked, sums.reshape(-1, 2), strict=True):
        points.setdefault(question.group, []).append(_points(pair, question.label))
    each = {name: float(np.mean(points[name])) for name in sorted(points)}
    return {"accuracy": float(np.mean([*each.values()])), "chance": 0.5, "examples": len(asked), **each}


def _sentence(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    tokens = tokenizer.encode(example.texts[0])
    return _question((), [tokens], int(example.label == "1"), frame)


def _pair(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    both = [tokenizer.encode(text) for text in example.texts]
    return replace(_question((), both, int(example.label or 0), frame), group=example.group)


def _last_word(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """Encoded together and cut where the text before the word alone ends, as lm-evaluation-harness does."""
    before, word = example.texts
    tokens, size = tokenizer.encode(f"{before} {word}"), len(tokenizer.encode(before.rstrip()))
    return _question(tokens[:size], [tokens[size:]], 0, replace(frame, before=()))


def _sentiment(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    text = f"{example.texts[0]} very"
    words = [tokenizer.encode_part(word, text[-1]) for word in SENTIMENT]
    return _question(tokenizer.encode(text), words, int(example.label == "1"), frame)


def _templated(example: Example, tokenizer: Tokenizer, frame: Frame, probe: Probe) -> Question:
    """The example in the words of the template, then each answer after a blank."""
    texts = dict(zip(("{text}", "{text2}"), example.texts, strict=False))
    text = re.sub(r"\{text2?\}", lambda field: texts.get(field[0], ""), probe.template).rstrip()
    answers = [tokenizer.encode_part(f" {answer}", text[-1]) for answer in probe.answers]
    return _question(tokenizer.encode(text), answers, SPECS[probe.name].labels.index(str(example.label)), frame)


def _choice(example: Example, tokenizer: Tokenizer, frame: Frame, labels: Sequence[str]) -> Question:
    text = " ".join(filter(None, example.texts))
    choices = [tokenizer.encode_part(f" {choice}", text[-1]) for choice in example.choices]
    return _question(tokenizer.encode(text), choices, labels.index(str(example.label)), frame)


def _schema(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """What lies after the pronoun may be glued to it, like a full stop, so whole sentences are encoded: the tokens
    that come after the candidate in all of them are those after the pronoun.
    """
    parts = [winograd.substituted(example, candidate) for candidate in example.choices]
    wholes = [tokenizer.encode(f"{before}{after}") for before, after in parts]
    after = min(
        len(whole) - _common(whole, tokenizer.encode(before)) for whole, (before, _) in zip(wholes, parts, strict=True)
    )
    kept = [[*frame.before, *whole.tolist()][-frame.capacity :] for whole in wholes]
    sequences = tuple(frame.around(whole, np.zeros(0, dtype=np.int32)) for whole in kept)
    return Question(sequences, (min(after, frame.most),) * len(wholes), int(example.label or 0))


def _question(text: Sequence[int] | Int32s, answers: Sequence[Int32s], label: int, frame: Frame) -> Question:
    """`text` and each of `answers`, which are scored; cut so that every answer has the same text before it."""
    answers = [answer[: frame.most] for answer in answers]
    history = [*frame.before, *text]
    kept = history[max(0, len(history) + max(map(len, answers)) - frame.capacity) :]
    return Question(tuple(frame.around(kept, answer) for answer in answers), tuple(map(len, answers)), label)


def _common(first: Int32s, second: Int32s) -> int:
    """How many tokens two sequences have in common at their beginning."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size
