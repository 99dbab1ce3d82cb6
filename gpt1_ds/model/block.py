"""A transformer block.

    post-norm (GPT-1)   n = N(x + attention(x)); N(n + mlp(n))
    pre-norm            n = x + attention(N(x)); n + mlp(N(n))    a final norm ends the stack

A decoder's block, which is pre-norm, has n = n + cross(N(n), memory) between the two; memory is the encoder's last
states.

What passes from layer to layer: the states [S, B, D] of each stack; with relative positions their tables
[stacks, N, buckets]; the facts of the rows.

Shapes: S positions, B rows, D width, F features of the mlp on this rank, N heads, T positions of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpt1_ds.architecture.facts import KEY
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import dropout, names
from gpt1_ds.model.layers import ColumnParallelActivation, RowParallel, TensorParallel, make_norm
from gpt1_ds.model.multi_head import Attention, BlockCache, CrossAttention, KeyValueCache, MemoryCache
from gpt1_ds.model.residual import sum_and_norm

SITES = 3  # dropout sites of a block: attention probabilities, attention output, mlp output
MORE_SITES, FIRST_OF_MORE = 8, 1 << 16  # with cross attention's two after them, and the one inside the mlp
INNER = 4  # that one


@dataclass(frozen=True)
class Sites:
    """Where a block's dropout sites lie, from its first one on."""

    attended: int = 1
    crossing: int = 2
    crossed: int = 3
    out: int = 2


class Mlp(nn.Module):
    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        bias, outputs = layer.has("mlp.up.bias"), (1 + model.gated) * model.ffn_width
        self.up = ColumnParallelActivation(model.width, outputs, model.activation, tensor, bias)
        self.down = RowParallel(model.ffn_width, model.width, tensor, bias)
        self.probability, self.features, self.tensor = model.ffn_dropout, model.ffn_width, tensor

    def forward(self, x_SBD: Tensor, facts_B3: Tensor, site: Tensor) -> Tensor:
        """`site` is the block's first one."""
        inner_SBF = self.up(x_SBD)
        if self.training and self.probability:
            inner_SBF = self._drop(inner_SBF, facts_B3[:, KEY], site + INNER)
        return self.down(inner_SBF)  # type: ignore[no-any-return]

    def _drop(self, x_SBF: Tensor, keys_B: Tensor, site: Tensor) -> Tensor:
        """As dropout.dropout, of this rank's part of the features, which it numbers as all of them are."""
        positions, _, features = x_SBF.shape
        first, width = self.tensor.rank * features, self.features + self.features % 2
        element_SF = torch.arange(first, first + features, dtype=torch.int32, device=x_SBF.device)
        element_SF = element_SF + width * torch.arange(positions, dtype=torch.int32, device=x_SBF.device)[:, None]
        key_B1, second_B1 = dropout.site_keys(keys_B, site)
        limit, scale = dropout.threshold(self.probability), dropout.scale(self.probability)
        return torch.where(dropout.is_kept(element_SF[:, None], key_B1, second_B1, limit), x_SBF * scale, 0.0)


class Block(nn.Module):
    """(states, facts) -> (states, facts): those of its own stack are mapped, the others pass."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel, recompute: bool = False) -> None:
        super().__init__()
        assert layer.depth is not None, "a block has its number"
        self.attention = Attention(layer, model, tensor)
        self.attention_norm = make_norm(model, tensor)
        self.cross = CrossAttention(layer, model, tensor) if layer.has("cross_norm.weight") else None
        self.cross_norm = make_norm(model, tensor) if self.cross is not None else None
        self.mlp = Mlp(layer, model, tensor)
        self.mlp_norm = make_norm(model, tensor)
        self.probability, self.tensor, self.recompute = model.residual_dropout, tensor, recompute
        self.pre_norm, self.context = layer.norm == "pre", model.context
        self.stack, self.stacks = layer.stack, model.stacks
        more = model.stacks > 1 or model.ffn_dropout > 0
        first = FIRST_OF_MORE + MORE_SITES * layer.depth if more else SITES * layer.depth + 1
        self.sites = Sites(out=5) if more else Sites()
        self.site: Tensor  # a buffer, not a number, so that one compiled graph serves every block
        self.register_buffer("site", torch.tensor(first), persistent=False)
        names.label(self, layer, tensor)

    def new_cache(self) -> BlockCache:
        """Raises ConfigError where tokens see those after them: their states change with each new one."""
        if self.attention.encodes:
            raise ConfigError("model.mask=bidirectional has no caches: it reads whole rows; leave caches out")
        return BlockCache(KeyValueCache(self.context), MemoryCache())

    def forward(self, inputs: tuple[Tensor, ...], cache: BlockCache | None = None) -> tuple[Tensor, ...]:
        *states, facts_B3 = inputs  # never written to: compiled by torch 2.11 it is a tuple
        table_NK = states[self.stacks][self.stack] if len(states) > self.stacks else None
        if self.recompute and self.training:
            # reentrant checkpointing would silently cut the gradient after integer inputs
            x_SBD = checkpoint(
                self._forward, states[self.stack], states[0], table_NK, facts_B3, use_reentrant=False,
                preserve_rng_state=False,
            )  # fmt: skip
        else:
            x_SBD = self._forward(states[self.stack], states[0], table_NK, facts_B3, cache)
        return (*states[: self.stack], x_SBD, *states[self.stack + 1 :], facts_B3)

    def _forward(
        self,
        x_SBD: Tensor,
        memory_TBD: Tensor,
        table_NK: Tensor | None,
        facts_B3: Tensor,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """`memory` is read where there is cross attention."""
        join = partial(sum_and_norm, keys_B=facts_B3[:, KEY] if self.training else None, probability=self.probability)
        own, at = None if cache is None else cache.own, self.sites
        if not self.pre_norm:
            attended_SBD = self.attention(x_SBD, facts_B3, self.site, own, table_NK)
            _, n_SBD = join(x_SBD, attended_SBD, self.attention_norm, site=self.site + at.attended)
            return join(n_SBD, self.mlp(n_SBD, facts_B3, self.site), self.mlp_norm, site=self.site + at.out)[1]
        attended_SBD = self.attention(self.attention_norm(x_SBD), facts_B3, self.site, own, table_NK)
        following = self.mlp_norm if self.cross_norm is None else self.cross_norm
        n_SBD, normal_SBD = join(x_SBD, attended_SBD, following, site=self.site + at.attended)
        if self.cross is not None:
            of_memory = None if cache is None else cache.memory
            crossed_SBD = self.cross(normal_SBD, memory_TBD, facts_B3, self.site + at.crossing, of_memory)
            n_SBD, normal_SBD = join(n_SBD, crossed_SBD, self.mlp_norm, site=self.site + at.crossed)
        return n_SBD + self._drop(self.mlp(normal_SBD, facts_B3, self.site), facts_B3, self.site + at.out)

    def _drop(self, y_SBD: Tensor, facts_B3: Tensor, site: Tensor) -> Tensor:
        if not self.training:
            return y_SBD
        first_position = self.tensor.rank * y_SBD.shape[0] if self.tensor.sequence else 0
        return dropout.dropout(y_SBD, facts_B3[:, KEY], site, self.probability, first_position)
