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
from gpt1_ds.tasks.base import NO_LABEL, Example, Task
from gpt1_ds.tasks.layouts import Int32s, Row, count_specials, lay_out
from gpt1_ds.tasks.text import encode_source


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
    """All of `examples`, none longer than `limit` tokens; what is longer is cut as `layouts` says, and counted. Of a
    task in text they are the sources, and labels are numbers of answers.
    """
    if task.answers:
        return _encode_sources(task, examples, tokenizer, limit)
    rows: list[Row] = []
    truncated, specials = 0, count_specials(task)
    for example in examples:
        texts, choices = encode_texts(example, tokenizer)
        laid_out = lay_out(task, texts, choices, tokenizer.special_ids, limit)
        rows += laid_out
        copies = 1 if task.layout == "sentences" else task.sequences  # of each text
        whole = copies * sum(map(len, texts)) + task.sequences * specials + sum(map(len, choices))
        truncated += sum(len(row.tokens) for row in laid_out) < whole
    number_of: dict[str | None, int] = {None: NO_LABEL, **{label: number for number, label in enumerate(task.labels)}}
    scores = np.array([np.nan if example.score is None else example.score for example in examples], dtype=np.float64)
    known = np.isfinite(scores)
    targets = task.targets(np.where(known, scores, task.score_range[0]))
    if targets is not None:
        targets = np.where(known[:, None], targets, 0)
    return Encoded(
        tokens=np.concatenate([row.tokens for row in rows]) if rows else np.zeros(0, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(row.tokens) for row in rows])]).astype(np.int64),
        seconds=np.array([row.second for row in rows], dtype=np.int64).reshape(-1, task.sequences),
        sequences=task.sequences,
        labels=np.array([number_of[example.label] for example in examples], dtype=np.int64),
        scores=scores,
        targets=targets,
        ids=tuple(example.id for example in examples),
        groups=tuple(example.group for example in examples),
        truncated=truncated,
        limit=limit,
        pad=0 if task.symbols == "extract" else tokenizer.special_ids.require("pad", f"task.name={task.name}"),
    )


def _encode_sources(task: Task, examples: Sequence[Example], tokenizer: Tokenizer, limit: int) -> Encoded:
    sources = [encode_source(task, example, tokenizer, limit) for example in examples]
    lengths = np.array([len(tokens) for tokens, _ in sources], dtype=np.int64)
    return Encoded(
        tokens=np.concatenate([np.zeros(0, dtype=np.int32), *(tokens for tokens, _ in sources)]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        seconds=lengths[:, None],
        sequences=1,
        labels=np.array([task.answer_number(example) for example in examples], dtype=np.int64),
        scores=np.array([np.nan if e.score is None else e.score for e in examples], dtype=np.float64),
        targets=None,
        ids=tuple(example.id for example in examples),
        groups=tuple(example.group for example in examples),
        truncated=sum(cut for _, cut in sources),
        limit=limit,
        pad=tokenizer.pad_id,
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
