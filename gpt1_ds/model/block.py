"""A transformer block.

    post-LayerNorm (GPT-1)   n = LN(x + attention(x)); LN(n + mlp(n))
    pre-LayerNorm            n = x + attention(LN(x)); n + mlp(LN(n))    a final LN ends the stack

Shapes: S positions, B rows, D width, N heads on this rank (read off the tensors), H head width, G = B x N.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpt1_ds.architecture.facts import KEY, UNTIL
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import attention, dropout, names
from gpt1_ds.model.layers import ColumnParallel, ColumnParallelActivation, LayerNorm, RowParallel, TensorParallel
from gpt1_ds.model.residual import sum_and_norm

SITES = 3  # dropout sites of a block: attention probabilities, attention output, mlp output


class KeyValueCache:
    """Keys and values of the positions seen so far, for sampling, in buffers that hold a whole context T."""

    def __init__(self, context: int) -> None:
        self.context, self.positions = context, 0
        self.key_GTH: Tensor | None = None
        self.value_GTH: Tensor | None = None

    def extend(self, key_GSH: Tensor, value_GSH: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all positions so far, these S the last of them: views of the buffers."""
        if self.key_GTH is None or self.value_GTH is None:
            groups, _, width = key_GSH.shape
            self.key_GTH, self.value_GTH = key_GSH.new_empty(2, groups, self.context, width)
        first, self.positions = self.positions, self.positions + key_GSH.shape[1]
        assert self.positions <= self.context, "the context is full"
        self.key_GTH[:, first : self.positions] = key_GSH
        self.value_GTH[:, first : self.positions] = value_GSH
        return self.key_GTH[:, : self.positions], self.value_GTH[:, : self.positions]


class Attention(nn.Module):
    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.qkv = ColumnParallel(model.width, 3 * model.width, tensor, layer.has("attention.qkv.bias"))
        self.out = RowParallel(model.width, model.width, tensor, layer.has("attention.out.bias"))
        self.kind, self.head_width, self.probability = model.attention, model.head_width, model.attention_dropout
        self.causal, self.tensor = model.mask == "causal", tensor

    def forward(self, x_SBD: Tensor, facts_B3: Tensor, site: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        qkv_SBO = self.qkv(x_SBD)
        positions, rows, _ = qkv_SBO.shape
        qkv = qkv_SBO.view(positions, rows, -1, 3, self.head_width)  # S B N 3 H: whole heads, however many are here
        heads = qkv.shape[2]
        q_GSH, k_GSH, v_GSH = (part.flatten(0, 1) for part in qkv.permute(3, 1, 2, 0, 4))
        keys_B = facts_B3[:, KEY]
        until_G = None if self.causal else facts_B3[:, UNTIL].repeat_interleave(heads).to(torch.int32)
        if cache is not None:
            out_GSH = attention.cached(q_GSH, *cache.extend(k_GSH, v_GSH))
        elif self.kind == "exact":
            out_GSH = attention.exact(q_GSH, k_GSH, v_GSH, self._mask(keys_B, site, heads), until_G)
        else:
            out_GSH = self._fused(q_GSH, k_GSH, v_GSH, keys_B, site, until_G)
        out_SBD = out_GSH.view(rows, heads, positions, -1).permute(2, 0, 1, 3).reshape(positions, rows, -1)
        return self.out(out_SBD)  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a seed that the compiler sees is a graph for each of its values
    def _fused(
        self, q_GSH: Tensor, k_GSH: Tensor, v_GSH: Tensor, keys_B: Tensor, site: Tensor, until_G: Tensor | None
    ) -> Tensor:
        """Its dropout is seeded with (seed, step, first row, layer, this rank's heads)."""
        if not self.training or self.probability == 0.0:
            return attention.fused(q_GSH, k_GSH, v_GSH, 0.0, until_G=until_G)
        key_B1, second_B1 = dropout.site_keys(keys_B[:1], site, self.tensor.rank)
        key, second = torch.cat([key_B1, second_B1]).flatten().tolist()  # one wait for a GPU, not two
        seed = (key & 0xFFFFFFFF) << 31 | second & 0x7FFFFFFF
        return attention.fused(q_GSH, k_GSH, v_GSH, self.probability, seed, until_G)

    def _mask(self, keys_B: Tensor, site: Tensor, heads: int) -> attention.Mask | None:
        if not self.training or self.probability == 0.0:
            return None
        key_BN, second_BN = dropout.site_keys(keys_B, site, self.tensor.rank * heads, heads)
        limit, scale = dropout.threshold(self.probability), dropout.scale(self.probability)
        return attention.Mask(key_BN.flatten(), second_BN.flatten(), limit, scale)


class Mlp(nn.Module):
    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        bias = layer.has("mlp.up.bias")
        self.up = ColumnParallelActivation(model.width, model.ffn_width, model.activation, tensor, bias)
        self.down = RowParallel(model.ffn_width, model.width, tensor, layer.has("mlp.down.bias"))

    def forward(self, x_SBD: Tensor) -> Tensor:
        return self.down(self.up(x_SBD))  # type: ignore[no-any-return]


class Block(nn.Module):
    """(hidden [S, B, D], facts) -> (hidden, facts)."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel, recompute: bool = False) -> None:
        super().__init__()
        assert layer.depth is not None, "a block has its number"
        self.attention = Attention(layer, model, tensor)
        self.attention_norm = LayerNorm(model.width, model.norm_eps, tensor)
        self.mlp = Mlp(layer, model, tensor)
        self.mlp_norm = LayerNorm(model.width, model.norm_eps, tensor)
        self.probability, self.tensor, self.recompute = model.residual_dropout, tensor, recompute
        self.pre_norm, self.context = layer.norm == "pre", model.context
        self.site: Tensor  # a buffer, not a number, so that one compiled graph serves every block
        self.register_buffer("site", torch.tensor(SITES * layer.depth + 1), persistent=False)
        names.label(self, layer, tensor)

    def new_cache(self) -> KeyValueCache:
        """Raises ConfigError where tokens see those after them: their states change with each new one."""
        if not self.attention.causal:
            raise ConfigError("model.mask=bidirectional has no caches: it reads whole rows; leave caches out")
        return KeyValueCache(self.context)

    def forward(self, inputs: tuple[Tensor, Tensor], cache: KeyValueCache | None = None) -> tuple[Tensor, Tensor]:
        hidden_SBD, facts_B3 = inputs
        if self.recompute and self.training:
            # reentrant checkpointing would silently cut the gradient after integer inputs
            hidden_SBD = checkpoint(self._forward, hidden_SBD, facts_B3, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden_SBD = self._forward(hidden_SBD, facts_B3, cache)
        return hidden_SBD, facts_B3

    def _forward(self, x_SBD: Tensor, facts_B3: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        join = partial(sum_and_norm, keys_B=facts_B3[:, KEY] if self.training else None, probability=self.probability)
        if self.pre_norm:
            attended_SBD = self.attention(self.attention_norm(x_SBD), facts_B3, self.site, cache)
            n_SBD, normal_SBD = join(x_SBD, attended_SBD, self.mlp_norm, site=self.site + 1)
            return n_SBD + self._drop(self.mlp(normal_SBD), facts_B3, self.site + 2)
        attended_SBD = self.attention(x_SBD, facts_B3, self.site, cache)
        _, n_SBD = join(x_SBD, attended_SBD, self.attention_norm, site=self.site + 1)
        return join(n_SBD, self.mlp(n_SBD), self.mlp_norm, site=self.site + 2)[1]

    def _drop(self, y_SBD: Tensor, facts_B3: Tensor, site: Tensor) -> Tensor:
        if not self.training:
            return y_SBD
        first_position = self.tensor.rank * y_SBD.shape[0] if self.tensor.sequence else 0
        return dropout.dropout(y_SBD, facts_B3[:, KEY], site, self.probability, first_position)
