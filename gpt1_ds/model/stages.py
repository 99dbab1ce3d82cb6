"""The model as one ordered list of stages, which both assemblies are made from.

    tokens -> positions -> block 0 ... block L-1 -> head (tied to tokens)                pre-training
    tokens -> positions -> block 0 ... block L-1 -> task head -> head (tied to tokens)   fine-tuning
    tokens -> lstm -> ...                                                                the paper's ablation

Only (hidden states, dropout keys) pass from stage to stage, and behind the task head (hidden states, scores). Another
architecture is another list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from gpt1_ds.config import Config
from gpt1_ds.model.block import Block, KeyValueCache
from gpt1_ds.model.heads import PositionEmbedding, TokenEmbedding
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import TaskLoss, make_loss
from gpt1_ds.model.lstm import Lstm, Recurrence
from gpt1_ds.model.task_head import HeadSpec, TaskHead

TIED = "tokens"
Cache = KeyValueCache | Recurrence


@dataclass(frozen=True)
class Stage:
    """One entry of the list: how to build it, and whether it shares the tied module (and then calls `apply` on it)."""

    module: type[nn.Module]
    arguments: tuple[Any, ...]
    tied: bool = False
    apply: Callable[[Any, tuple[Tensor, Tensor]], Any] | None = None


def stage_list(config: Config, vocab_size: int, tensor: TensorParallel, head: HeadSpec | None = None) -> list[Stage]:
    """The stages in order. The first takes (token ids [S, B], keys [B]); the last gives what the loss asks for: the
    head's projection, with a task's `head` also its scores [S, B, O], or (hidden [S, B, D], scores) where the language
    model's loss counts nothing.
    """
    tokens = Stage(TokenEmbedding, (config.model, vocab_size, tensor), tied=True)
    stages = [tokens, *_body(config, tensor)]
    if head is None:
        return [*stages, replace(tokens, apply=language_head)]
    stages.append(Stage(TaskHead, (config.model, head, tensor)))
    if head.lm_coefficient:
        return [*stages, replace(tokens, apply=both_heads)]
    return [replace(tokens, tied=False), *stages[1:]]


def _body(config: Config, tensor: TensorParallel) -> list[Stage]:
    model, recompute = config.model, config.train.recompute == "block"
    if model.kind == "lstm":
        return [Stage(Lstm, (model, tensor))]
    blocks = [Stage(Block, (model, index, tensor, recompute)) for index in range(model.layers)]
    return [Stage(PositionEmbedding, (model, tensor)), *blocks]


def compile_blocks(model: nn.Module) -> None:
    """torch.compile every block; they share one graph. What cannot be compiled runs as it is."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=False)


def language_head(tokens: TokenEmbedding, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return tokens.projection(inputs[0])


def both_heads(tokens: TokenEmbedding, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    hidden_SBD, scores_SBO = inputs
    return (*tokens.projection(hidden_SBD), scores_SBO)


class DenseModel(nn.Module):
    """All stages in one module, for ranks that hold every layer. Its loss is called `loss`."""

    def __init__(self, config: Config, vocab_size: int, tensor: TensorParallel, head: HeadSpec | None = None) -> None:
        super().__init__()
        stages = stage_list(config, vocab_size, tensor, head)
        self.tokens = TokenEmbedding(*stages[0].arguments)
        built = [stage.module(*stage.arguments) for stage in stages[1:] if not stage.tied]
        self.positions = next((one for one in built if isinstance(one, PositionEmbedding)), None)
        self.blocks = nn.ModuleList(one for one in built if isinstance(one, Block | Lstm))
        self.head = next((one for one in built if isinstance(one, TaskHead)), None)
        self.loss = make_loss(head, vocab_size, tensor)

    def forward(self, tokens_SB: Tensor, keys_B: Tensor, *labels: Tensor) -> Tensor:
        """fp32 scalar loss of one micro-batch; `labels` are those of the loss (see model/losses.py)."""
        state = self.hidden(tokens_SB, keys_B)
        if self.head is None:
            return self.loss(language_head(self.tokens, state), labels)
        state = self.head(state)
        return self.loss(both_heads(self.tokens, state) if self.head.spec.lm_coefficient else state, labels)

    def hidden(self, tokens_SB: Tensor, keys_B: Tensor, caches: Sequence[Cache] | None = None) -> tuple[Tensor, Tensor]:
        """(the last block's output [S, B, D], keys); with `caches` (one per block) the S positions follow those that
        the caches hold.
        """
        state = self.tokens((tokens_SB, keys_B))
        if self.positions is not None:
            state = self.positions(state, caches[0].positions if caches else 0)
        for index, block in enumerate(self.blocks):
            state = block(state, caches[index] if caches else None)
        return state  # type: ignore[no-any-return]

    def logits(self, tokens_SB: Tensor, keys_B: Tensor, caches: Sequence[Cache] | None = None) -> Tensor:
        """[S, B, V] of the language model."""
        return self.tokens.logits(self.hidden(tokens_SB, keys_B, caches)[0])

    def scores(self, tokens_SB: Tensor, extract_B: Tensor) -> Tensor:
        """fp32 [E, K]: of each example's classes or choices, before the softmax."""
        assert self.head is not None, "this model was fine-tuned on a task"
        assert isinstance(self.loss, TaskLoss), "and has its loss"
        _, scores_SBO = self.head(self.hidden(tokens_SB, tokens_SB.new_zeros(tokens_SB.shape[1])))
        return self.loss.at_extract(scores_SBO, extract_B)

    def caches(self) -> list[Cache]:
        """Empty caches, one per block."""
        return [Recurrence() if isinstance(block, Lstm) else KeyValueCache() for block in self.blocks]
