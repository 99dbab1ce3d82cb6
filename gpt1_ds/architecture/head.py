"""What a task asks of a model's head and of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gpt1_ds.config import Config, ModelConfig

Pooling = Literal["mean", "cls", "max"]
TokenKind = Literal["tags", "span"]
Kind = Literal["linear", "pooled", "dense", "text", TokenKind, Pooling]
SentenceLoss = Literal["nli", "triplet", "cosine", "ranking"]


@dataclass(frozen=True)
class HeadSpec:
    """Kinds: `linear` reads one state of a sequence, the one that the labels name. The others read the first:
    `pooled` by a pooler, tanh(W h), and a linear layer; `dense` has that layer in the head itself, with dropout before.
    `text` has no layer: the language model's head writes the answer, and an evaluation scores whole rows. `tags` and
    `span` read every state by a linear layer: a softmax is over the outputs of a token, or over the tokens of a row,
    once for where a span begins and once for where it ends.

    Where `choice` is set, there is one output and the softmax is over an example's sequences. Elsewhere the states
    of an example's sequences are added (similarity reads both orders of its texts) and the softmax is over the outputs;
    a single one is a score.

    With a `loss` of sentence vectors each sequence is a text of its own, and `kind` says what of its states is its
    vector. `outputs` are the classes of nli.
    """

    outputs: int
    sequences: int
    choice: bool = False
    dropout: float = 0.1
    lm_coefficient: float = 0.5  # weight of the language-model loss; at 0 the model has no tied head
    kind: Kind = "linear"
    name: Literal["head", "next_sentence"] = "head"  # begins the names of its parameters
    loss: SentenceLoss | None = None
    margin: float = 1.0  # of triplet
    group: int = 1  # of ranking: examples whose second texts are one another's wrong answers

    @property
    def is_value(self) -> bool:
        """Returns whether the one output is a score itself, whose loss is the squared error."""
        return self.outputs == 1 and not self.choice

    @property
    def reads_tokens(self) -> bool:
        """Returns whether every token has a score of its own that counts."""
        return self.kind in get_args(TokenKind)

    @property
    def is_sound(self) -> bool:
        """Returns whether a head can be made of what may have come from a file."""
        counts = all(type(count) is int and 1 <= count < 2**48 for count in (self.outputs, self.sequences))
        counts = counts and type(self.group) is int and 1 <= self.group < 2**31
        numbers = (self.dropout, self.lm_coefficient, self.margin)
        shares = all(type(share) in (int, float) and share >= 0 for share in numbers)
        known = self.kind in get_args(Kind) and self.name in ("head", "next_sentence")
        known = known and (self.loss in get_args(SentenceLoss) if self.kind in get_args(Pooling) else self.loss is None)
        return counts and shares and known and self.dropout < 1 and type(self.choice) is bool


NEXT_SENTENCE = HeadSpec(2, 1, dropout=0.0, lm_coefficient=1.0, kind="pooled", name="next_sentence")
TEXT = HeadSpec(1, 1, dropout=0.0, lm_coefficient=1.0, kind="text")


def head_kind(model: ModelConfig) -> Kind:
    """Returns which head a task gets: the one that the authors of such a model read. Only a causal model's last token
    has seen all others; BERT, which has segments, was pre-trained with a pooler, RoBERTa was not.
    """
    if model.mask == "causal":
        return "linear"
    return "pooled" if model.segments else "dense"


def pretraining_head(config: Config) -> HeadSpec | None:
    """Returns what the objective of pre-training asks for besides the language model's head."""
    return NEXT_SENTENCE if config.objective.next_sentence else None
