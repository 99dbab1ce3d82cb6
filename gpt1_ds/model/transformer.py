"""The transformer, from its norms to its block: what GPT-1, GPT-2, BERT, RoBERTa, T5 and prefix models have in common.

    post-norm (GPT-1, BERT)   n = N(x + attention(x)); N(n + mlp(n))
    pre-norm (GPT-2, T5)      n = x + attention(N(x)); n + mlp(N(n))    a final norm ends the stack

A decoder's block, which is pre-norm, has n = n + cross(N(n), memory) between the two; memory is the encoder's last
states. Matrices are cut over tensor-parallel ranks (layers.py): attention by heads, the mlp by features. Dropout is a
hash of where an element lies (dropout.py): each place of it in the model has a number, its site.

Shapes: S positions (of this rank, under sequence parallelism), B rows, D width, F features of the mlp on this rank, N
heads on this rank (read off the tensors), H head width, G = B x N, T keys: of a context, or of the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpt1_ds.architecture.facts import KEY, UNTIL
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import documents, dropout, names
from gpt1_ds.model.caches import BlockCache, Columns, KeyValueCache, MemoryCache
from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.inputs import Drop, RowDrop, Scores, each_of
from gpt1_ds.model.kernels.residual_norm import sum_and_norm
from gpt1_ds.model.layers import ColumnParallel, ColumnParallelActivation, RowParallel, TensorParallel
from gpt1_ds.model.relative import score_bias
from gpt1_ds.model.states import States

# A block's dropout sites, counted from its first one, attention's probabilities; its last one is the mlp's output.
# Those of the embeddings (embeddings.py) are 0 and, of a second stack, 65535; heads.py has the others.
ATTENTION_OUT, CROSS, CROSS_OUT, MLP_INNER = 1, 2, 3, 4


class LayerNorm(nn.LayerNorm):
    """Over the last axis, biased variance, `eps` inside the root."""

    def __init__(self, width: int, eps: float, tensor: TensorParallel) -> None:
        super().__init__(width, eps)
        self.tensor = tensor

    def forward(self, x_SBD: Tensor) -> Tensor:
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        return nn.functional.layer_norm(x_SBD, self.normalized_shape, weight, bias, self.eps)


class RmsNorm(nn.Module):
    """w x / sqrt(mean(x^2) + eps) over the last axis, the mean in fp32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.tensor = eps, tensor

    def forward(self, x_SBD: Tensor) -> Tensor:
        wide_SBD = x_SBD.float()
        normal_SBD = wide_SBD * torch.rsqrt(wide_SBD.square().mean(-1, keepdim=True) + self.eps)
        return self.tensor.replicated(self.weight) * normal_SBD.to(x_SBD.dtype)


Norm = LayerNorm | RmsNorm
NORMS: dict[str, type[Norm]] = {"layer": LayerNorm, "rms": RmsNorm}


def make_norm(model: ModelConfig, tensor: TensorParallel) -> Norm:
    return NORMS[model.norm_kind](model.width, model.norm_eps, tensor)


class HeadAttention(nn.Module):
    """What self-attention and cross-attention share: softmax(q k') v of each head."""

    def __init__(self, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.kind, self.head_dim, self.probability = model.attention, model.head_dim, model.attention_dropout
        self.factor = 1.0 if model.attention_scale == "one" else None  # 1 / sqrt(H)
        self.tensor, self.pairs = tensor, (model.context + 1) // 2  # of keys

    def attend(
        self,
        parts: tuple[Tensor, ...],
        facts_BF: Tensor,
        scores: Scores,
        site: Tensor,
        cached: bool,
        visible_BST: Tensor | None = None,
    ) -> Tensor:
        """Returns [S, B, N x H]. The slices of `parts`, tensors [P, G, positions, H], are q, k and v."""
        keys_B, heads = facts_BF[:, KEY], parts[0].shape[1] // len(facts_BF)
        if cached:
            out_GSH = attention.cached(*each_of(parts), scores, len(facts_BF), visible_BST)
        elif self.kind == "exact":
            out_GSH = attention.exact_of_parts(parts, self._head_drop(keys_B, site, heads), scores)
        else:
            out_GSH = self._fused(*each_of(parts), keys_B, site, scores)
        return out_GSH.unflatten(0, (-1, heads)).permute(2, 0, 1, 3).flatten(2)  # type: ignore[no-any-return]

    def _head_drop(self, keys_B: Tensor, site: Tensor, heads: int) -> Drop | None:
        if not self.training or self.probability == 0.0:
            return None
        key_BN, second_BN = dropout.site_keys(keys_B, site, self.tensor.rank * heads, heads)
        limit, scale = dropout.threshold(self.probability), dropout.scale(self.probability)
        return Drop(key_BN.flatten(), second_BN.flatten(), limit, scale, self.pairs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a seed that the compiler sees is a graph for each of its values
    def _fused(
        self, q_GSH: Tensor, k_GTH: Tensor, v_GTH: Tensor, keys_B: Tensor, site: Tensor, scores: Scores
    ) -> Tensor:
        """Returns attention by torch's kernels; their dropout is seeded with (seed, step, first row, layer, heads)."""
        if not self.training or self.probability == 0.0:
            return attention.fused(q_GSH, k_GTH, v_GTH, 0.0, scores)
        key_B1, second_B1 = dropout.site_keys(keys_B[:1], site, self.tensor.rank)
        key, second = torch.cat([key_B1, second_B1]).flatten().tolist()  # one wait for a GPU, not two
        seed = (key & 0xFFFFFFFF) << 31 | second & 0x7FFFFFFF
        return attention.fused(q_GSH, k_GTH, v_GTH, self.probability, scores, seed)


class Attention(HeadAttention):
    """Self-attention: queries, keys and values are made of the states of one stack."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__(model, tensor)
        inner, bias = model.attention_width, layer.has("attention.qkv.bias")
        self.qkv = ColumnParallel(model.width, 3 * inner, tensor, bias)
        self.out = RowParallel(inner, model.width, tensor, bias)
        self.causal, self.stack = layer.causal, layer.stack
        self.bidirectional = not layer.causal and model.mask != "prefix"

    def forward(
        self,
        x_SBD: Tensor,
        facts_BF: Tensor,
        site: Tensor,
        cache: KeyValueCache | None = None,
        table_NK: Tensor | None = None,
    ) -> Tensor:
        qkv = self.qkv(x_SBD).unflatten(-1, (-1, 3, self.head_dim))  # S B N 3 H: whole heads, however many are here
        positions, heads = qkv.shape[0], qkv.shape[2]
        qkv_3GSH = qkv.permute(3, 1, 2, 0, 4).flatten(1, 2)
        parts = (qkv_3GSH,) if cache is None else (qkv_3GSH[:1], cache.extend(qkv_3GSH[1:]))
        keys = parts[-1].shape[2]
        columns = None if cache is None else cache.columns
        visible_BST = None if columns is None else columns.visible(positions, keys)
        bias_NST = None if table_NK is None else self._bias(table_NK, positions, keys, columns)
        until_G = None if self.causal else _until(facts_BF, heads)
        apart = documents.are_apart(facts_BF)
        bounds_G2S = documents.bounds_of_heads(facts_BF, positions, heads, self.stack) if apart else None
        scores = Scores(self.factor, until_G, bias_NST=bias_NST, bounds_G2S=bounds_G2S)
        out_SBI = self.attend(parts, facts_BF, scores, site, cache is not None, visible_BST)
        return self.out(out_SBI)  # type: ignore[no-any-return]  # here, where a compiled graph breaks in this frame alone

    def _bias(self, table_NK: Tensor, queries: int, keys: int, columns: Columns | None) -> Tensor:
        """Returns fp32 [N, S, T], which is the same for all blocks of a stack."""
        if columns is None:
            return score_bias(table_NK, queries, keys, self.bidirectional)
        return columns.once("bias", lambda: score_bias(table_NK, queries, keys, self.bidirectional, columns.place))


class CrossAttention(HeadAttention):
    """Queries are made of the decoder's states, keys and values of the memory, whose padding is not seen."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__(model, tensor)
        inner, bias = model.attention_width, layer.has("cross.q.bias")
        self.q = ColumnParallel(model.width, inner, tensor, bias)
        self.kv = ColumnParallel(model.width, 2 * inner, tensor, bias)
        self.out = RowParallel(inner, model.width, tensor, bias)

    def forward(
        self, x_SBD: Tensor, memory_TBD: Tensor, facts_BF: Tensor, site: Tensor, cache: MemoryCache | None = None
    ) -> Tensor:
        q_SBO = self.q(x_SBD)
        positions, rows, _ = q_SBO.shape
        q_GSH = q_SBO.view(positions, rows, -1, self.head_dim).permute(1, 2, 0, 3).flatten(0, 1)
        kv_2GTH = self._memory(memory_TBD) if cache is None else cache.of(self._memory, memory_TBD)
        heads, apart = q_GSH.shape[0] // rows, documents.are_apart(facts_BF)
        bounds_G2S = documents.memory_bounds_of_heads(facts_BF, positions, heads) if apart else None
        scores = Scores(self.factor, _until(facts_BF, heads), causal=False, bounds_G2S=bounds_G2S)
        out_SBI = self.attend((q_GSH[None], kv_2GTH), facts_BF, scores, site, cache is not None)
        return self.out(out_SBI)  # type: ignore[no-any-return]

    def _memory(self, memory_TBD: Tensor) -> Tensor:
        """Returns its keys and values [2, G, T, H]."""
        kv_TBO = self.kv(memory_TBD)
        positions, rows, _ = kv_TBO.shape
        kv = kv_TBO.view(positions, rows, -1, 2, self.head_dim)  # T B N 2 H
        return kv.permute(3, 1, 2, 0, 4).flatten(1, 2)  # type: ignore[no-any-return]


def _until(facts_BF: Tensor, heads: int) -> Tensor:
    """Returns int32 [G]: every position of a row sees those before this one."""
    return facts_BF[:, UNTIL].repeat_interleave(heads).to(torch.int32)


class Mlp(nn.Module):
    """down(dropout(activation(up(x)))). A gated activation has two outputs of `up` for each feature."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        bias, outputs = layer.has("mlp.up.bias"), (1 + model.gated) * model.ffn_width
        self.up = ColumnParallelActivation(model.width, outputs, model.activation, tensor, bias)
        self.down = RowParallel(model.ffn_width, model.width, tensor, bias)
        self.probability, self.features, self.tensor = model.ffn_dropout, model.ffn_width, tensor

    def forward(self, x_SBD: Tensor, facts_BF: Tensor, site: Tensor) -> Tensor:
        """`site` is the block's first one."""
        inner_SBF = self.up(x_SBD)
        if self.training and self.probability:
            first = self.tensor.rank * inner_SBF.shape[-1]
            inner_SBF = dropout.dropout_of_part(
                inner_SBF, facts_BF[:, KEY], site + MLP_INNER, self.probability, first, self.features
            )
        return self.down(inner_SBF)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Maps the states of its own stack; those of the other one pass unchanged."""

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
        self.pre_norm, self.stack = layer.norm == "pre", layer.stack
        if model.stacks == 1 and model.ffn_dropout == 0:  # three sites: no CROSS, CROSS_OUT, MLP_INNER
            first, self.last_site = 1 + 3 * layer.depth, 2
        else:
            first, self.last_site = (1 << 16) + 8 * layer.depth, 5
        self.site: Tensor  # a buffer, not a number, so that one compiled graph serves every block
        self.register_buffer("site", torch.tensor(first), persistent=False)
        names.label(self, layer, tensor)

    def new_cache(self, columns: Columns) -> BlockCache:
        """Returns empty caches. Raises ConfigError for a bidirectional model: each new token changes all states."""
        if self.attention.bidirectional:
            raise ConfigError("model.mask=bidirectional has no caches: it reads whole rows; leave caches out")
        return BlockCache(columns, KeyValueCache(columns), MemoryCache())

    def forward(self, states: States, cache: BlockCache | None = None) -> States:
        table_NK = None if states.tables is None else states.tables[self.stack]
        own_SBD, memory_TBD, facts_BF = states.stacks[self.stack], states.stacks[0], states.facts_BF
        if self.recompute and self.training:
            # reentrant checkpointing would silently cut the gradient after integer inputs
            x_SBD = checkpoint(
                self.transformed, own_SBD, memory_TBD, table_NK, facts_BF, use_reentrant=False, preserve_rng_state=False
            )
        else:
            x_SBD = self.transformed(own_SBD, memory_TBD, table_NK, facts_BF, cache)
        return states.with_stack(self.stack, x_SBD)

    def transformed(
        self,
        x_SBD: Tensor,
        memory_TBD: Tensor,
        table_NK: Tensor | None,
        facts_BF: Tensor,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """Returns this stack's states after the block. `memory` is read where there is cross attention."""
        own, of_memory = (None, None) if cache is None else (cache.own, cache.memory)
        site = self.site
        if not self.pre_norm:
            attended_SBD = self.attention(x_SBD, facts_BF, site, own, table_NK)
            _, n_SBD = self._sum_and_norm(x_SBD, attended_SBD, self.attention_norm, facts_BF, site + ATTENTION_OUT)
            mapped_SBD = self.mlp(n_SBD, facts_BF, site)
            return self._sum_and_norm(n_SBD, mapped_SBD, self.mlp_norm, facts_BF, site + self.last_site)[1]
        attended_SBD = self.attention(self.attention_norm(x_SBD), facts_BF, site, own, table_NK)
        following = self.mlp_norm if self.cross_norm is None else self.cross_norm
        n_SBD, normal_SBD = self._sum_and_norm(x_SBD, attended_SBD, following, facts_BF, site + ATTENTION_OUT)
        if self.cross is not None:
            crossed_SBD = self.cross(normal_SBD, memory_TBD, facts_BF, site + CROSS, of_memory)
            n_SBD, normal_SBD = self._sum_and_norm(n_SBD, crossed_SBD, self.mlp_norm, facts_BF, site + CROSS_OUT)
        return n_SBD + self._drop(self.mlp(normal_SBD, facts_BF, site), facts_BF, site + self.last_site)

    def _sum_and_norm(
        self, x_SBD: Tensor, y_SBD: Tensor, norm: Norm, facts_BF: Tensor, site: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns (x + dropout(y), its norm), both [S, B, D]. On a GPU that is one kernel where the norm is a
        LayerNorm.
        """
        if not x_SBD.is_cuda or not isinstance(norm, LayerNorm):
            total_SBD = x_SBD + self._drop(y_SBD, facts_BF, site)
            return total_SBD, norm(total_SBD)
        weight_D, bias_D = self.tensor.replicated(norm.weight), self.tensor.replicated(norm.bias)
        return sum_and_norm(x_SBD, y_SBD, weight_D, bias_D, self._row_drop(y_SBD, facts_BF, site), norm.eps)

    def _drop(self, y_SBD: Tensor, facts_BF: Tensor, site: Tensor) -> Tensor:
        if not self.training:
            return y_SBD
        return dropout.dropout(y_SBD, facts_BF[:, KEY], site, self.probability, self.tensor.first_position(y_SBD))

    def _row_drop(self, y_SBD: Tensor, facts_BF: Tensor, site: Tensor) -> RowDrop:
        probability = self.probability if self.training else 0.0
        limit, scale = dropout.threshold(probability), dropout.scale(probability)
        if not probability:
            return RowDrop(None, None, self.tensor.first_position(y_SBD), limit, scale)
        key_B1, second_B1 = dropout.site_keys(facts_BF[:, KEY], site)
        return RowDrop(key_B1.flatten(), second_B1.flatten(), self.tensor.first_position(y_SBD), limit, scale)
