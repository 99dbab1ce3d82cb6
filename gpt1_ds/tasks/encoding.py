"""Examples as token sequences in two flat arrays, whatever their number.

GPT-1 (section 3.3 of the paper) reads the extract token, the last one, which has seen all of a sequence. S start,
D delimiter, E extract; with a limit of M tokens (`task.max_length`, else the model's context):
- single        S x E                       x is cut to M - 2 tokens
- pair          S a D b E                   each text is cut to M // 2 - 2 tokens (254 of 512), as in the authors' code
- both          S a D b E and S b D a E     the same
- choice        S document D choice E       per choice: the document, here a story's sentences, and each choice are cut
                                            to M // 2 - 2 tokens, as in the authors' code
- sentences     S x E                       per text: x is cut to M - 2 tokens
- choice with a question
                S document question D choice E
                                            no delimiter before the question; question and choices are cut to M // 4 - 1
                                            tokens, the document to what the longest choice leaves

A bidirectional model reads the first token. BERT has [CLS] a [SEP] b [SEP], and the second segment begins at b; a model
without segments, like RoBERTa, has two separators between texts. The order of two texts says nothing, so `both` is a
`pair`. Of two texts the longer one is cut, token by token, as in BERT's code. A choice with a question is cut as above.

What is cut is a text's end. No sequence is longer than M, and the specials are always there. The language-model loss
counts every token after S, D and E included. The authors' code knows pairs of texts only; the cuts of a single text and
of a document with a question are this program's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import SpecialIds, Tokenizer
from gpt1_ds.tasks.base import NO_LABEL, Symbols, Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.text import Int32s, encode_source, in_text

ROLES: dict[Symbols, tuple[str, tuple[str, ...], str]] = {  # before, between and after texts
    "extract": ("start", ("delimiter",), "extract"),
    "separator": ("cls", ("separator",), "separator"),
    "two_separators": ("cls", ("separator", "separator"), "separator"),
}


@dataclass(frozen=True)
class SequenceRow:
    """One sequence, int32 [T], and the position where its second text begins; T where there is none."""

    tokens: Int32s
    second: int


def fitted(task: Task, settings: TaskConfig, model: ModelConfig) -> Task:
    """Returns `task` as a model of this kind reads it."""
    task = task.with_settings(settings)
    if settings.form == "text":
        return in_text(task)
    if model.mask == "causal":
        return replace(task, regression="value" if settings.regression == "value" else "classes")
    return replace(
        task,
        layout="pair" if task.layout == "both" else task.layout,
        symbols="separator" if model.segments else "two_separators",
        regression="classes" if settings.regression == "classes" else "value",
    )


def lay_out(
    task: Task, texts: Sequence[Int32s], choices: Sequence[Int32s], ids: SpecialIds, limit: int
) -> list[SequenceRow]:
    """Returns the C sequences of one example, none longer than `limit`. Raises ConfigError when the tokenizer lacks a
    symbol.

    Both orders of two texts have the same T; their final states are added before the head. A document with a question
    is cut alike for all its choices.
    """
    assert limit >= SHORTEST, f"a limit of {limit} tokens leaves nothing for texts"
    first, between, last = ROLES[task.symbols]
    id_of = {role: ids.require(role, f"task.name={task.name}") for role in (first, *between, last)}

    def joined(*parts: Int32s) -> SequenceRow:
        tokens, second = [id_of[first], *parts[0].tolist()], None
        for part in parts[1:]:
            tokens += [id_of[role] for role in between]
            second = len(tokens)
            tokens += part.tolist()
        tokens.append(id_of[last])
        return SequenceRow(np.array(tokens, dtype=np.int32), len(tokens) if second is None else second)

    specials = 2 + len(between)
    if task.layout in ("single", "sentences"):
        return [joined(text[: limit - 2]) for text in texts]
    if task.layout != "choice":
        pair = _cut(texts, limit, specials, task.symbols)
        return [joined(*order) for order in ([pair] if task.layout == "pair" else [pair, pair[::-1]])]
    if len(texts) == 1:
        return [joined(*_cut([texts[0], choice], limit, specials, task.symbols)) for choice in choices]
    quarter = limit // 4 - 1
    question, choices = texts[1][:quarter], [choice[:quarter] for choice in choices]
    left = limit - specials - len(question) - max(map(len, choices))
    context = np.concatenate([texts[0][:left], question])
    return [joined(context, choice) for choice in choices]


def symbol_roles(task: Task) -> tuple[str, ...]:
    """Returns the roles of the symbols that the sequences of a task with a head need of a tokenizer."""
    first, between, last = ROLES[task.symbols]
    return tuple(dict.fromkeys((first, *between, last, *(() if task.symbols == "extract" else ("pad",)))))


def _cut(texts: Sequence[Int32s], limit: int, specials: int, symbols: Symbols) -> list[Int32s]:
    """Returns two texts that fit, in the way of the model's authors."""
    if symbols == "extract":
        return [text[: limit // 2 - 2] for text in texts]
    first, second, capacity = len(texts[0]), len(texts[1]), limit - specials
    shorter = min(first, second)
    if first + second <= capacity:
        return list(texts)
    if shorter > capacity // 2:  # both lose tokens, the second one more
        first, second = capacity - capacity // 2, capacity // 2
    else:
        longer = capacity - shorter
        first, second = (shorter, longer) if first < second else (longer, shorter)
    return [texts[0][:first], texts[1][:second]]


@dataclass(frozen=True)
class Encoded:
    """N examples of C sequences each. Sequence c of example n is i = n * C + c: tokens[offsets[i] : offsets[i + 1]]."""

    tokens: Int32s  # [total]
    offsets: NDArray[np.int64]  # [N * C + 1]
    seconds: NDArray[np.int64]  # [N, C], where the second text begins; the length where there is none
    sequences: int  # C
    labels: NDArray[np.int64]  # [N], class or choice; -1: none, or a regression. In text: number of the answer
    scores: NDArray[np.float64]  # [N], of a regression; nan: none
    targets: NDArray[np.float32] | None  # [N, 6] or [N, 1], of a regression; rows without a score are 0
    ids: tuple[str, ...]  # [N]
    groups: tuple[str, ...]  # [N]
    truncated: int  # examples of which a part was cut off
    limit: int  # tokens that no sequence exceeds
    pad: int = 0  # fills up short rows; no state of a token sees it

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def example_ids(self) -> tuple[str, ...]:
        """Returns those of what is answered; tags and spans have several rows for one."""
        return self.ids

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Returns int64 [N, C]: tokens per sequence, the special ones included."""
        return np.diff(self.offsets).reshape(len(self), self.sequences)

    @cached_property
    def data_hash(self) -> str:
        """Returns the hex sha256 of tokens, borders, labels and targets."""
        targets = self.targets if self.targets is not None else np.zeros(0, dtype=np.float32)
        return hash_arrays(self.tokens, self.offsets, self.labels, targets)


def hash_arrays(*parts: NDArray[Any]) -> str:
    """Returns the hex sha256 of the bytes of these arrays, one after the other."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def length_limit(config: TaskConfig, context: int) -> int:
    """Returns the number of tokens that no sequence exceeds. Raises ConfigError when the model's context cannot hold
    them.
    """
    if context < SHORTEST:
        raise ConfigError(f"model.context={context} is too short for a pair of texts; use at least {SHORTEST}")
    if config.max_length is not None and config.max_length > context:
        raise ConfigError(
            f"task.max_length={config.max_length} is more than the model's context of {context}; use {context} or less"
        )
    return config.max_length or context


def encode(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> Encoded:
    """Returns all of `examples`, none longer than `limit` tokens; what is longer is cut as `lay_out` says, and counted.
    Of a text-to-text task they are the sources, and labels are numbers of answers.
    """
    rows: list[SequenceRow] = []
    truncated = 0
    for example in examples:
        sequences, is_cut = _sequences(task, example, tokenizer, limit)
        rows += sequences
        truncated += is_cut
    scores = np.array([np.nan if example.score is None else example.score for example in examples], dtype=np.float64)
    known = np.isfinite(scores)
    targets = None
    if task.is_text_to_text:
        labels = [task.answer_number(example) for example in examples]
    else:
        number_of = {label: number for number, label in enumerate(task.labels)}
        labels = [NO_LABEL if example.label is None else number_of[example.label] for example in examples]
        targets = task.head_targets(np.where(known, scores, task.score_range[0]))
    if targets is not None:
        targets = np.where(known[:, None], targets, 0)
    return Encoded(
        tokens=np.concatenate([row.tokens for row in rows]) if rows else np.zeros(0, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(row.tokens) for row in rows])]).astype(np.int64),
        seconds=np.array([row.second for row in rows], dtype=np.int64).reshape(-1, task.sequences),
        sequences=task.sequences,
        labels=np.array(labels, np.int64),
        scores=scores,
        targets=targets,
        ids=tuple(example.id for example in examples),
        groups=tuple(example.group for example in examples),
        truncated=truncated,
        limit=limit,
        pad=pad_id_of(task, tokenizer),
    )


def _sequences(task: Task, example: Example, tokenizer: Tokenizer, limit: int) -> tuple[list[SequenceRow], bool]:
    """Returns (the C sequences of an example, whether a part was cut off)."""
    if task.is_text_to_text:
        tokens, is_cut = encode_source(task, example, tokenizer, limit)
        return [SequenceRow(tokens, len(tokens))], is_cut
    texts, choices = encode_texts(example, tokenizer)
    rows = lay_out(task, texts, choices, tokenizer.special_ids, limit)
    specials = 2 if task.layout in ("single", "sentences") else 2 + len(ROLES[task.symbols][1])  # of a sequence
    copies = 1 if task.layout == "sentences" else task.sequences  # of each text
    whole = copies * sum(map(len, texts)) + task.sequences * specials + sum(map(len, choices))
    return rows, sum(len(row.tokens) for row in rows) < whole


def pad_id_of(task: Task, tokenizer: Tokenizer) -> int:
    """Returns the id that fills up short rows."""
    if task.is_text_to_text:
        return tokenizer.pad_id
    return 0 if task.symbols == "extract" else tokenizer.special_ids.require("pad", f"task.name={task.name}")


def encode_texts(example: Example, tokenizer: Tokenizer) -> tuple[list[Int32s], list[Int32s]]:
    """Returns the tokens of each text and of each choice. A choice's question is encoded as what follows its document
    and a space, so that both together are the tokens of one text.
    """
    first, *others = example.texts
    texts = [tokenizer.encode(first)]
    for text in others:
        follows = bool(example.choices and first)
        texts.append(tokenizer.encode_part(f" {text}", first[-1]) if follows else tokenizer.encode(text))
    return texts, [tokenizer.encode(text) for text in example.choices]
