"""Examples as token sequences in two flat arrays, whatever their number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.tasks import layouts
from gpt1_ds.tasks.base import Example, Task
from gpt1_ds.tasks.layouts import Int32s, Specials
from gpt1_ds.tasks.targets import soft_targets

NO_LABEL = -1


@dataclass(frozen=True)
class Encoded:
    """N examples of C sequences each. Sequence c of example n is i = n * C + c: tokens[offsets[i] : offsets[i + 1]]."""

    tokens: Int32s  # [total]
    offsets: NDArray[np.int64]  # [N * C + 1]
    sequences: int  # C
    labels: NDArray[np.int64]  # [N], class or choice; -1: none, or a regression
    scores: NDArray[np.float64]  # [N], of a regression; nan: none
    targets: NDArray[np.float32] | None  # [N, 6], of a regression; rows without a score are 0
    ids: tuple[str, ...]  # [N]
    groups: tuple[str, ...]  # [N]
    truncated: int  # examples of which a part was cut off
    limit: int  # tokens that no sequence exceeds

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [N, C]: tokens per sequence, the special ones included."""
        return np.diff(self.offsets).reshape(len(self), self.sequences)

    @cached_property
    def data_hash(self) -> str:
        """Hex sha256 of tokens, borders, labels and targets."""
        targets = self.targets if self.targets is not None else np.zeros(0, dtype=np.float32)
        parts = (self.tokens, self.offsets, self.labels, targets)
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def length_limit(config: TaskConfig, context: int) -> int:
    """Tokens that no sequence exceeds. Raises ConfigError when the model's context cannot hold them."""
    if context < SHORTEST:
        raise ConfigError(f"model.context={context} is too short for a pair of texts; use at least {SHORTEST}")
    if config.max_length is not None and config.max_length > context:
        raise ConfigError(
            f"task.max_length={config.max_length} is more than the model's context of {context}; use {context} or less"
        )
    return config.max_length or context


def encode(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> Encoded:
    """All of `examples`, none longer than `limit` tokens; what is longer is cut as `layouts` says, and counted."""
    specials = Specials.of(tokenizer)
    sequences: list[Int32s] = []
    truncated = 0
    for example in examples:
        texts, choices = encode_texts(example, tokenizer)
        laid_out = lay_out(task, texts, choices, specials, limit)
        sequences += laid_out
        truncated += sum(map(len, laid_out)) < _whole(task, texts, choices)
    scores = np.array([np.nan if example.score is None else example.score for example in examples], dtype=np.float64)
    targets = None
    if task.kind == "regression":
        known = np.isfinite(scores)
        targets = np.where(
            known[:, None], soft_targets(np.where(known, scores, task.score_range[0]), task.score_range), 0
        )
    return Encoded(
        tokens=np.concatenate(sequences) if sequences else np.zeros(0, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(one) for one in sequences])]).astype(np.int64),
        sequences=task.sequences,
        labels=np.array([_label(task, example) for example in examples], dtype=np.int64),
        scores=scores,
        targets=targets,
        ids=tuple(example.id for example in examples),
        groups=tuple(example.group for example in examples),
        truncated=truncated,
        limit=limit,
    )


def encode_texts(example: Example, tokenizer: Tokenizer) -> tuple[list[Int32s], list[Int32s]]:
    """Tokens of each text and of each choice. A choice's question is encoded as what follows its document and a space,
    so that both together are the tokens of one text.
    """
    first, *others = example.texts
    texts = [tokenizer.encode(first)]
    for text in others:
        follows = bool(example.choices and first)
        texts.append(tokenizer.encode_part(f" {text}", first[-1]) if follows else tokenizer.encode(text))
    return texts, [tokenizer.encode(text) for text in example.choices]


def lay_out(
    task: Task, texts: Sequence[Int32s], choices: Sequence[Int32s], specials: Specials, limit: int
) -> list[Int32s]:
    """The C sequences of one example."""
    if task.layout == "choice":
        return layouts.choice(texts[0], texts[1] if len(texts) > 1 else None, list(choices), specials, limit)
    if task.layout == "single":
        return layouts.single(texts[0], specials, limit)
    build = layouts.pair if task.layout == "pair" else layouts.both_orders
    return build(texts[0], texts[1], specials, limit)


def _whole(task: Task, texts: Sequence[Int32s], choices: Sequence[Int32s]) -> int:
    """Tokens of all sequences of an example of which nothing is cut."""
    length = sum(map(len, texts)) + (2 if task.layout == "single" else 3)
    return length * task.sequences + sum(map(len, choices))


def _label(task: Task, example: Example) -> int:
    return task.labels.index(example.label) if example.label is not None else NO_LABEL
