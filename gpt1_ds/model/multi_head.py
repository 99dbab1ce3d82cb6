"""Attention as a layer of a block: projections, heads, masks and caches around model/attention.py's arithmetic.

Shapes: S positions, B rows, D width, N heads on this rank (read off the tensors), H head width, G = B x N, T keys: of
a context, or of the memory, the encoder's last states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY, UNTIL
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import attention, dropout
from gpt1_ds.model.attention import Scores
from gpt1_ds.model.layers import ColumnParallel, RowParallel, TensorParallel
from gpt1_ds.model.relative import score_bias


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


class MemoryCache:
    """Cross attention's keys and values, which stay the same for all positions of the target."""

    def __init__(self) -> None:
        self.known: tuple[Tensor, Tensor] | None = None

    def of(self, make: Callable[[Tensor], tuple[Tensor, Tensor]], memory_TBD: Tensor) -> tuple[Tensor, Tensor]:
        if self.known is None:
            self.known = make(memory_TBD)
        return self.known


@dataclass(frozen=True)
class BlockCache:
    own: KeyValueCache
    memory: MemoryCache


class Attention(nn.Module):
    """Of a stack's states to themselves, and by subclass of a decoder's states to the memory."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self._make(layer, model, tensor)
        self.kind, self.head_dim, self.probability = model.attention, model.head_dim, model.attention_dropout
        self.factor = 1.0 if model.attention_scale == "one" else None  # 1 / sqrt(H)
        decodes = model.kind == "encoder_decoder" and layer.stack == 1
        self.causal = decodes or (model.mask == "causal" and model.kind != "encoder_decoder")
        self.encodes = (model.kind == "encoder_decoder" and layer.stack == 0) or model.mask == "bidirectional"
        self.tensor, self.pairs = tensor, (model.context + 1) // 2  # of keys

    def _make(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        inner, bias = model.attention_width, layer.has("attention.qkv.bias")
        self.qkv = ColumnParallel(model.width, 3 * inner, tensor, bias)
        self.out = RowParallel(inner, model.width, tensor, bias)

    def forward(
        self,
        x_SBD: Tensor,
        facts_B3: Tensor,
        site: Tensor,
        cache: KeyValueCache | None = None,
        table_NK: Tensor | None = None,
    ) -> Tensor:
        qkv = self.qkv(x_SBD).unflatten(-1, (-1, 3, self.head_dim))  # S B N 3 H: whole heads, however many are here
        q_GSH, k_GSH, v_GSH = (part.flatten(0, 1) for part in qkv.permute(3, 1, 2, 0, 4))
        if cache is not None:
            k_GSH, v_GSH = cache.extend(k_GSH, v_GSH)
        bias_NST = None if table_NK is None else score_bias(table_NK, len(qkv), k_GSH.shape[1], self.encodes)
        scores = Scores(self.factor, None if self.causal else _until(facts_B3, qkv.shape[2]), bias_NST=bias_NST)
        out_SBI = self._attended(q_GSH, k_GSH, v_GSH, facts_B3[:, KEY], scores, site, cache is not None)
        return self.out(out_SBI)  # type: ignore[no-any-return]  # here, where a compiled graph breaks in this frame alone

    def _attended(
        self, q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, keys_B: Tensor, scores: Scores, site: Tensor, cached: bool
    ) -> Tensor:
        """[S, B, N x H]"""
        heads = len(q_GSH) // len(keys_B)
        if cached:
            out_GSH = attention.cached(q_GSH, k_GTH, v_GTH, scores)
        elif self.kind == "exact":
            out_GSH = attention.exact(q_GSH, k_GTH, v_GTH, self._mask(keys_B, site, heads), scores)
        else:
            out_GSH = self._fused(q_GSH, k_GTH, v_GTH, keys_B, site, scores)
        return out_GSH.unflatten(0, (-1, heads)).permute(2, 0, 1, 3).flatten(2)  # type: ignore[no-any-return]

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a seed that the compiler sees is a graph for each of its values
    def _fused(
        self, q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, keys_B: Tensor, site: Tensor, scores: Scores
    ) -> Tensor:
        """Its dropout is seeded with (seed, step, first row, layer, this rank's heads)."""
        if not self.training or self.probability == 0.0:
            return attention.fused(q_GSH, k_GTH, v_GTH, 0.0, scores)
        key_B1, second_B1 = dropout.site_keys(keys_B[:1], site, self.tensor.rank)
        key, second = torch.cat([key_B1, second_B1]).flatten().tolist()  # one wait for a GPU, not two
        seed = (key & 0xFFFFFFFF) << 31 | second & 0x7FFFFFFF
        return attention.fused(q_GSH, k_GTH, v_GTH, self.probability, scores, seed)

    def _mask(self, keys_B: Tensor, site: Tensor, heads: int) -> attention.Mask | None:
        if not self.training or self.probability == 0.0:
            return None
        key_BN, second_BN = dropout.site_keys(keys_B, site, self.tensor.rank * heads, heads)
        limit, scale = dropout.threshold(self.probability), dropout.scale(self.probability)
        return attention.Mask(key_BN.flatten(), second_BN.flatten(), limit, scale, self.pairs)


class CrossAttention(Attention):
    """A decoder's states ask, the memory answers; its padding is not seen."""

    def _make(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        inner, bias = model.attention_width, layer.has("cross.q.bias")
        self.q = ColumnParallel(model.width, inner, tensor, bias)
        self.kv = ColumnParallel(model.width, 2 * inner, tensor, bias)
        self.out = RowParallel(inner, model.width, tensor, bias)

    def forward(  # type: ignore[override]
        self, x_SBD: Tensor, memory_TBD: Tensor, facts_B3: Tensor, site: Tensor, cache: MemoryCache | None = None
    ) -> Tensor:
        q_SBO = self.q(x_SBD)
        positions, rows, _ = q_SBO.shape
        q_GSH = q_SBO.view(positions, rows, -1, self.head_dim).permute(1, 2, 0, 3).flatten(0, 1)
        k_GTH, v_GTH = self._memory(memory_TBD) if cache is None else cache.of(self._memory, memory_TBD)
        scores = Scores(self.factor, _until(facts_B3, q_GSH.shape[0] // rows), causal=False)
        out_SBI = self._attended(q_GSH, k_GTH, v_GTH, facts_B3[:, KEY], scores, site, cache is not None)
        return self.out(out_SBI)  # type: ignore[no-any-return]

    def _memory(self, memory_TBD: Tensor) -> tuple[Tensor, Tensor]:
        kv_TBO = self.kv(memory_TBD)
        positions, rows, _ = kv_TBO.shape
        kv = kv_TBO.view(positions, rows, -1, 2, self.head_dim)
        k_GTH, v_GTH = (part.flatten(0, 1) for part in kv.permute(3, 1, 2, 0, 4))
        return k_GTH, v_GTH


def _until(facts_B3: Tensor, heads: int) -> Tensor:
    """int32 [G]: how far every position of a row sees."""
    return facts_B3[:, UNTIL].repeat_interleave(heads).to(torch.int32)
