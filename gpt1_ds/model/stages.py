"""The model as one ordered list of stages, which both assemblies are made from.

    tokens -> positions -> block 0 ... block L-1 -> head (tied to tokens)

Only (hidden states, dropout keys) pass from stage to stage. Another architecture is another list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from gpt1_ds.config import Config
from gpt1_ds.model.block import Block, KeyValueCache
from gpt1_ds.model.heads import PositionEmbedding, TokenEmbedding
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import token_loss

TIED = "tokens"


@dataclass(frozen=True)
class Stage:
    """One entry of the list: how to build it, and whether it shares the tied module (and then calls `apply` on it)."""

    module: type[nn.Module]
    arguments: tuple[Any, ...]
    tied: bool = False
    apply: Callable[[Any, tuple[Tensor, Tensor]], Tensor] | None = None


def stage_list(config: Config, vocab_size: int, tensor: TensorParallel) -> list[Stage]:
    """L + 3 stages in order. The first takes (token ids [S, B], keys [B]), the last gives logits [S, B, V]."""
    model = config.model
    tokens = (model, vocab_size, tensor)
    recompute = config.train.recompute == "block"
    return [
        Stage(TokenEmbedding, tokens, tied=True),
        Stage(PositionEmbedding, (model, tensor)),
        *(Stage(Block, (model, index, tensor, recompute)) for index in range(model.layers)),
        Stage(TokenEmbedding, tokens, tied=True, apply=head),
    ]


def compile_blocks(model: nn.Module) -> None:
    """torch.compile every block; they share one graph. What cannot be compiled runs as it is."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=False)


def head(tokens: TokenEmbedding, inputs: tuple[Tensor, Tensor]) -> Tensor:
    return tokens.logits(inputs[0])


class DenseModel(nn.Module):
    """All stages in one module, for ranks that hold every layer."""

    def __init__(self, config: Config, vocab_size: int, tensor: TensorParallel) -> None:
        super().__init__()
        first, second, *blocks, last = stage_list(config, vocab_size, tensor)
        assert last.apply is head, "the last stage is the tied head"
        self.tokens = first.module(*first.arguments)
        self.positions = second.module(*second.arguments)
        self.blocks = nn.ModuleList(stage.module(*stage.arguments) for stage in blocks)
        self.tensor = tensor

    def forward(self, tokens_SB: Tensor, keys_B: Tensor, labels_SB: Tensor, weights_SB: Tensor) -> Tensor:
        """fp32 scalar loss of one micro-batch (see losses.token_loss)."""
        return token_loss(self.logits(tokens_SB, keys_B), labels_SB, weights_SB, self.tensor)

    def logits(self, tokens_SB: Tensor, keys_B: Tensor, caches: list[KeyValueCache] | None = None) -> Tensor:
        """[S, B, V]; with `caches` (one per block) the S positions follow those that the caches hold."""
        first_position = caches[0].positions if caches else 0
        state = self.positions(self.tokens((tokens_SB, keys_B)), first_position)
        for index, block in enumerate(self.blocks):
            state = block(state, caches[index] if caches else None)
        return self.tokens.logits(state[0])  # type: ignore[no-any-return, operator]
