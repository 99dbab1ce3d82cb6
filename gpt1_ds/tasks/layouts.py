"""Tokens of texts as the sequences of the papers: pure functions, arrays in, arrays out.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.tasks.base import Symbols, Task
from gpt1_ds.tasks.text import in_text

Int32s = NDArray[np.int32]
ROLES: dict[Symbols, tuple[str, tuple[str, ...], str]] = {  # before, between and after texts
    "extract": ("start", ("delimiter",), "extract"),
    "separator": ("cls", ("separator",), "separator"),
    "two_separators": ("cls", ("separator", "separator"), "separator"),
}


@dataclass(frozen=True)
class Row:
    """One sequence, int32 [T], and the position where its second text begins; T where there is none."""

    tokens: Int32s
    second: int


def fitted(task: Task, settings: TaskConfig, model: ModelConfig) -> Task:
    """`task` as a model of this kind reads it."""
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


def lay_out(task: Task, texts: Sequence[Int32s], choices: Sequence[Int32s], ids: SpecialIds, limit: int) -> list[Row]:
    """The C sequences of one example, none longer than `limit`. Raises ConfigError when the tokenizer lacks a symbol.

    Both orders of two texts have the same T; their final states are added before the head. A document with a question
    is cut alike for all its choices.
    """
    assert limit >= SHORTEST, f"a limit of {limit} tokens leaves nothing for texts"
    first, between, last = ROLES[task.symbols]
    id_of = {role: ids.require(role, f"task.name={task.name}") for role in (first, *between, last)}

    def joined(*parts: Int32s) -> Row:
        tokens, second = [id_of[first], *parts[0].tolist()], None
        for part in parts[1:]:
            tokens += [id_of[role] for role in between]
            second = len(tokens)
            tokens += part.tolist()
        tokens.append(id_of[last])
        return Row(np.array(tokens, dtype=np.int32), len(tokens) if second is None else second)

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


def count_specials(task: Task) -> int:
    """Symbols in one sequence."""
    return 2 if task.layout in ("single", "sentences") else 2 + len(ROLES[task.symbols][1])


def _cut(texts: Sequence[Int32s], limit: int, specials: int, symbols: Symbols) -> list[Int32s]:
    """Two texts that fit, in the way of the model's authors."""
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
