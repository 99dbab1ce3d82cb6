"""What stands around a text that a language model scores: what it has seen there in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.data.tokenizers.base import OPENAI, Tokenizer

Int32s = NDArray[np.int32]


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
        """Tokens of a text and what comes before it, at most."""
        return self.size - len(self.first) - len(self.last)

    @property
    def most(self) -> int:
        """Tokens of a text that can be scored."""
        return self.capacity - len(self.before)

    def around(self, history: Sequence[int], tokens: Int32s) -> Int32s:
        """The sequence of what is known and what is scored."""
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
    """`[cls] text [separator]` as in data/spans.py, where the tokenizer has these symbols; with `in_rows` false the
    model has seen windows of text without them. Raises ConfigError for a tokenizer without a mask.
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
