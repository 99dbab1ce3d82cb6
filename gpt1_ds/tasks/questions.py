"""What a probe asks, as token sequences whose last tokens are scored; what stands around a text that a language model
scores, as it stood there in training; and what the control of a probe asks (zeroshot.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.data.tokenizers.base import OPENAI, Tokenizer
from gpt1_ds.tasks import winograd
from gpt1_ds.tasks.book_probes import NEXT_SENTENCE, REPEAT
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.lambada import LAMBADA
from gpt1_ds.tasks.registry import SPECS
from gpt1_ds.tasks.text import Int32s
from gpt1_ds.tasks.zeroshot import SENTIMENT, Probe

REPEATED = 64  # tokens of a passage that is repeated, at most


@dataclass(frozen=True)
class Frame:
    """A sequence is `first`, a text, `last`. `before` is cut with the text that it comes before, the others never are.

    With a `mask`, a token is scored by what stands in its place and on both sides of it, else by what comes before it.
    With a `sentinel`, a decoder writes what is scored, after the sentinel that stands for it in the encoder's source.
    """

    size: int  # tokens of a sequence at most, the frame's included
    before: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    mask: int | None = None
    sentinel: int | None = None

    @property
    def capacity(self) -> int:
        """Returns the number of tokens of a text and what comes before it, at most."""
        return self.size - len(self.first) - len(self.last)

    @property
    def most(self) -> int:
        """Returns the number of tokens of a text that can be scored."""
        return self.capacity - len(self.before)

    def around(self, history: Sequence[int], tokens: Int32s) -> Int32s:
        """Returns the sequence of what is known and what is scored."""
        return np.concatenate([np.array((*self.first, *history), np.int32), tokens, np.array(self.last, np.int32)])


def causal_frame(tokenizer: Tokenizer, context: int, in_rows: bool = False) -> Frame:
    """Before a text comes the end of the last document, or in the vocabulary of 2018 the line end. The last token of a
    sequence is no input, so it is one longer than the context. A model that has seen rows of sentences (`in_rows`)
    knows `[cls] text` as in data/spans.py, and predicts no more than a row holds. Raises ConfigError for a tokenizer
    without this symbol.
    """
    if in_rows:
        return Frame(context, first=(tokenizer.special_ids.require("cls", "a model of rows of sentences"),))
    before = tokenizer.encode_part("\na", "a")[0] if tokenizer.kind == OPENAI else tokenizer.eod_id
    return Frame(context + 1, before=(int(before),))


def masked_frame(tokenizer: Tokenizer, context: int, in_rows: bool) -> Frame:
    """Returns `[cls] text [separator]` as in data/spans.py, where the tokenizer has these symbols; with `in_rows` false
    the model has seen windows of text without them. Raises ConfigError for a tokenizer without a mask.
    """
    special = tokenizer.special_ids
    first, last = (() if role is None or not in_rows else (role,) for role in (special.cls, special.separator))
    return Frame(context, first=first, last=last, mask=special.require("mask", "a probe of model.mask=bidirectional"))


def sentinel_frame(tokenizer: Tokenizer, context: int) -> Frame:
    """As a text whose last span is missing: the source is the text, `<extra_id_0>` and the end symbol, the target
    `<extra_id_0>` and what is scored. Raises ConfigError for a tokenizer without sentinels.
    """
    if not tokenizer.special_ids.sentinels:
        raise ConfigError(
            "a probe of model.kind=encoder_decoder needs a token <extra_id_0>: the tokenizer has none; train one with "
            "--sentinels"
        )
    return Frame(context - 2, sentinel=tokenizer.vocab_size - 1)


@dataclass(frozen=True)
class Question:
    """One example as a sequence per candidate answer; CoLA has one, the sentence."""

    sequences: tuple[Int32s, ...]  # each [T], T at most the frame's size
    scored: tuple[int, ...]  # of each sequence, how many of its last tokens count, the frame's `last` aside
    label: int  # the right sequence; of CoLA 1: acceptable
    group: str = ""  # its phenomenon, which has an accuracy of its own
    candidates: tuple[Int32s, ...] = ()  # what the control scores; empty: what is scored here

    def answers(self, frame: Frame) -> tuple[Int32s, ...]:
        """Returns the scored tokens of each sequence."""
        stops = [len(sequence) - len(frame.last) for sequence in self.sequences]
        return tuple(
            sequence[stop - count : stop]
            for sequence, count, stop in zip(self.sequences, self.scored, stops, strict=True)
        )

    def alone(self, frame: Frame) -> Question:
        """Returns the control's: the candidates with nothing before them but what the frame puts before any text."""
        answers = [answer[: frame.most] for answer in self.candidates or self.answers(frame)]
        sequences = tuple(frame.around(frame.before, answer) for answer in answers)
        return replace(self, sequences=sequences, scored=tuple(map(len, answers)))


def tokens_alone(asked: Sequence[Question], frame: Frame) -> tuple[list[Int32s], NDArray[np.int64], NDArray[np.int64]]:
    """The control of scores that are sums over all tokens of a sentence: every distinct token of the N that are scored
    as a sequence of its own; of each of the N, which one of them it is, and which sequence of `asked` it belongs to.

    Within a sequence they are in the order of their ids, so that the same tokens in any order have the same sum.
    """
    answers = [answer for question in asked for answer in question.answers(frame)]
    sequence_N = np.repeat(np.arange(len(answers)), [len(answer) for answer in answers])
    distinct, token_N = np.unique(np.concatenate([*answers, np.zeros(0, np.int32)]), return_inverse=True)
    order = np.lexsort((token_N, sequence_N))
    rows = [frame.around(frame.before, token.reshape(1)) for token in distinct]
    return rows, token_N[order].astype(np.int64), sequence_N


def probe_questions(probe: Probe, examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame) -> list[Question]:
    """Returns the examples of a probe as token sequences, framed for a model."""
    if not probe.template:
        return questions(probe.name, examples, tokenizer, frame)
    return [_templated(example, tokenizer, frame, probe) for example in examples]


def questions(name: str, examples: Sequence[Example], tokenizer: Tokenizer, frame: Frame) -> list[Question]:
    """Returns the questions of the probe of this name, as `probe_questions` does."""
    kinds = {
        "cola": _sentence,
        "sst2": _sentiment,
        "blimp": _pair,
        LAMBADA: _last_word,
        NEXT_SENTENCE: _next,
        REPEAT: _repeated,
    }
    ask = kinds.get(name) or (_schema if name in winograd.FILES else partial(_choice, labels=SPECS[name].labels))
    return [ask(example, tokenizer, frame) for example in examples]


def _sentence(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    tokens = tokenizer.encode(example.texts[0])
    return _question((), [tokens], int(example.label == "1"), frame)


def _pair(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    both = [tokenizer.encode(text) for text in example.texts]
    return replace(_question((), both, int(example.label or 0), frame), group=example.group)


def _last_word(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """Returns encoded together and cut where the text before the word alone ends, as lm-evaluation-harness does."""
    before, word = example.texts
    tokens, size = tokenizer.encode(f"{before} {word}"), len(tokenizer.encode(before.rstrip()))
    return _question(tokens[:size], [tokens[size:]], 0, replace(frame, before=()))


def _sentiment(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    text = f"{example.texts[0]} very"
    words = [tokenizer.encode_part(word, text[-1]) for word in SENTIMENT]
    return _question(tokenizer.encode(text), words, int(example.label == "1"), frame)


def _templated(example: Example, tokenizer: Tokenizer, frame: Frame, probe: Probe) -> Question:
    """Returns the example in the words of the template, then each answer after a blank."""
    texts = dict(zip(("{text}", "{text2}"), example.texts, strict=False))
    text = re.sub(r"\{text2?\}", lambda field: texts.get(field[0], ""), probe.template).rstrip()
    answers = [tokenizer.encode_part(f" {answer}", text[-1]) for answer in probe.answers]
    return _question(tokenizer.encode(text), answers, SPECS[probe.name].labels.index(str(example.label)), frame)


def _choice(example: Example, tokenizer: Tokenizer, frame: Frame, labels: Sequence[str]) -> Question:
    text = " ".join(filter(None, example.texts))
    choices = [tokenizer.encode_part(f" {choice}", text[-1]) for choice in example.choices]
    return _question(tokenizer.encode(text), choices, labels.index(str(example.label)), frame)


def _next(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """After the last whole sentences that fit half of a sequence; of a longer one its end."""
    half = frame.size // 2
    for first in range(len(example.texts)):
        text = "".join(example.texts[first:]).strip()
        tokens = tokenizer.encode(text)
        if len(tokens) <= half:
            break
    choices = [tokenizer.encode_part(f" {choice}", text[-1]) for choice in example.choices]
    return _question(tokens[-half:], choices, int(example.label or 0), frame)


def _repeated(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """Returns the same tokens twice, as many as fit."""
    tokens = tokenizer.encode(example.texts[0])[: min(REPEATED, frame.most // 2)]
    return _question(tokens, [tokens], 0, frame)


def _schema(example: Example, tokenizer: Tokenizer, frame: Frame) -> Question:
    """Returns a question of whole sentences, because what lies after the pronoun may be glued to it, like a full stop.
    The tokens that come after the candidate in all of the sentences are those after the pronoun.
    """
    parts = [winograd.substituted(example, candidate) for candidate in example.choices]
    wholes = [tokenizer.encode(f"{before}{after}") for before, after in parts]
    after = min(
        len(whole) - _common(whole, tokenizer.encode(before)) for whole, (before, _) in zip(wholes, parts, strict=True)
    )
    kept = [[*frame.before, *whole.tolist()][-frame.capacity :] for whole in wholes]
    sequences = tuple(frame.around(whole, np.zeros(0, dtype=np.int32)) for whole in kept)
    encoded_text = tokenizer.encode(example.texts[0])
    encoded_parts = [tokenizer.encode(before) for before, _ in parts]
    candidates = tuple(part[_common(part, encoded_text) :] for part in encoded_parts)
    counts = (min(after, frame.most),) * len(wholes)
    return Question(sequences, counts, int(example.label or 0), candidates=candidates)


def _question(text: Sequence[int] | Int32s, answers: Sequence[Int32s], label: int, frame: Frame) -> Question:
    """Returns `text` and each of `answers`, which are scored; cut so that every answer has the same text before it."""
    answers = [answer[: frame.most] for answer in answers]
    history = [*frame.before, *text]
    kept = history[max(0, len(history) + max(map(len, answers)) - frame.capacity) :]
    return Question(tuple(frame.around(kept, answer) for answer in answers), tuple(map(len, answers)), label)


def _common(first: Int32s, second: Int32s) -> int:
    """Returns how many tokens two sequences have in common at their beginning."""
    size = min(len(first), len(second))
    differ = np.flatnonzero(first[:size] != second[:size])
    return int(differ[0]) if len(differ) else size
