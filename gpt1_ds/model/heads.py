"""What stands between the last block and the loss: the norm that ends a stack, the matrix of logits, what a masked
language model has before it, and what scores a sequence or makes a vector of it.

Shapes: S positions (of this rank, under sequence parallelism), B rows, D width, V vocabulary rows on this rank, C
sequences of one example (adjacent rows, B = E x C), O outputs of the head, F = 3D features of two vectors, K classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY, UNTIL
from gpt1_ds.architecture.head import HeadSpec, Pooling
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import dropout, names, products
from gpt1_ds.model.caches import Columns
from gpt1_ds.model.embeddings import TokenEmbedding
from gpt1_ds.model.layers import ACTIVATIONS, Activation, Linear, TensorParallel, cut_parameter
from gpt1_ds.model.states import States
from gpt1_ds.model.transformer import LayerNorm, make_norm

FINAL_SITES = (1 << 16) - 3, (1 << 16) - 2  # of dropout after the final norm of each stack
HEAD_SITE = 1 << 20  # far after the dropout sites of any number of blocks
AnyPooling = Literal[Pooling, "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]  # sentence-transformers' names


class FinalNorm(nn.Module):
    """Normalises the states of a stack of pre-norm blocks at its end. After the last stack only these states remain. An
    encoder-decoder drops what it has normalised, as T5 does.
    """

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.norm = make_norm(model, tensor)
        self.stack, self.is_last, self.tensor = layer.stack, layer.stack == model.stacks - 1, tensor
        self.probability = model.residual_dropout if model.stacks > 1 else 0.0
        names.label(self.norm, layer, tensor)

    def new_cache(self, columns: Columns) -> None:
        """A position is normalised by itself."""

    def forward(self, states: States, _cache: None = None) -> States:
        normal_SBD = self.norm(states.stacks[self.stack])
        if self.training and self.probability:
            keys_B, site = states.facts_BF[:, KEY], FINAL_SITES[self.stack]
            first = self.tensor.first_position(normal_SBD)
            normal_SBD = dropout.dropout(normal_SBD, keys_B, site, self.probability, first)
        if self.is_last:
            return States(normal_SBD, states.facts_BF)
        return states.with_stack(self.stack, normal_SBD)


class Head(TokenEmbedding):
    """The matrix of a head that is not tied: it is never looked up, only multiplied with."""

    def forward(self, states: States, _cache: None = None) -> States:
        return self.project(states)


class Dense(nn.Linear):
    """[S, B, D] -> [S, B, D]: a linear layer and the activation."""

    def __init__(self, width: int, activation: Activation, tensor: TensorParallel) -> None:
        super().__init__(width, width)
        self.activation, self.tensor = ACTIVATIONS[activation], tensor

    def forward(self, hidden_SBD: Tensor) -> Tensor:
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        return self.activation(products.linear(hidden_SBD, weight), bias)


class MaskedHead(nn.Module):
    """What a masked language model has between its last block and the tied matrix: LN(activation(W hidden)), and a bias
    of the logits (BERT's code, get_masked_lm_output of run_pretraining.py; its paper does not mention it).

    The bias belongs to this layer and not to the tied module, whose copies on other stages would need one, too.
    """

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.dense = Dense(model.width, model.activation, tensor)
        self.norm = LayerNorm(model.width, model.norm_eps, tensor)
        bias = next(parameter for parameter in layer.parameters if parameter.cut is not None)
        self.bias = cut_parameter(bias.local_rows(tensor.size))
        names.label(self, layer, tensor)

    def forward(self, states: States) -> States:
        hidden_SBD, bias_V = self.mapped(states.last)
        return states._replace(hidden_SBD=hidden_SBD, bias_V=bias_V)

    def mapped(self, hidden_SBD: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the matrix of logits reads, and the logits' bias."""
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return self.norm(self.dense(hidden_SBD)), self.bias.view_as(self.bias)


class TaskHead(nn.Module):
    """A linear layer. It scores every position, [S, B, O], of which the loss takes the extract token's, or all of them:
    positions do not travel through pipeline stages, and labels reach the last one only.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(parameter.shape)) for parameter in layer.parameters)
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, states: States) -> States:
        dropped_SBD = states.last
        if self.training:
            dropped_SBD = self._drop(dropped_SBD, states.facts_BF)
        weight, bias = self.tensor.replicated(self.weight), self.tensor.replicated(self.bias)
        added = 1 if self.spec.choice else self.spec.sequences  # sequences whose scores are added get a part of it
        return states._replace(scores=self.tensor.all_positions(products.linear(dropped_SBD, weight, bias / added)))

    def _drop(self, hidden_SBD: Tensor, facts_BF: Tensor) -> Tensor:
        if self.spec.reads_tokens:  # a mask of its own for each
            first = self.tensor.first_position(hidden_SBD)
            return dropout.dropout(hidden_SBD, facts_BF[:, KEY], HEAD_SITE, self.spec.dropout, first)
        return hidden_SBD * _mask(hidden_SBD, facts_BF, self.spec, HEAD_SITE)


class PooledHead(nn.Module):
    """A pooler, tanh(dense(first state)), then a linear layer that scores [1, B, O]; dropout before it, and before the
    dense layer, too, if that is not a pooler that was trained before.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        dense, *_ = layer.parameters
        width = dense.shape[0]
        self.pooler = nn.ModuleDict({"dense": Linear(width, width)})
        self.add_module(spec.name, Linear(width, spec.outputs))
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, states: States) -> States:
        facts_BF = states.facts_BF
        state_1BD = self.tensor.all_positions(states.last[:1])[:1]  # of all ranks' first positions the first
        if self.spec.kind == "dense":
            state_1BD = self._drop(state_1BD, facts_BF, HEAD_SITE + 1)
        state_1BD = self._drop(torch.tanh(self.pooler["dense"](state_1BD)), facts_BF, HEAD_SITE)
        return states._replace(scores=self.get_submodule(self.spec.name)(state_1BD))

    def _drop(self, state_1BD: Tensor, facts_BF: Tensor, site: int) -> Tensor:
        return state_1BD * _mask(state_1BD, facts_BF, self.spec, site) if self.training else state_1BD


def _mask(hidden_SBD: Tensor, facts_BF: Tensor, spec: HeadSpec, site: int) -> Tensor:
    """Returns [1, B, D]: one mask per example, shared by its sequences as in the authors' code, and by all
    positions.
    """
    C = spec.sequences
    key_B = facts_BF[:, KEY].view(-1, C)[:, :1].expand(-1, C).reshape(-1)
    return dropout.dropout(hidden_SBD.new_ones(1, *hidden_SBD.shape[1:]), key_B, site, spec.dropout)


class SentenceHead(nn.Module):
    """A vector [B, D] for each sentence, of the states of all its tokens; of nli also scores [E, K], W [u; v; |u - v|]
    + b (Reimers and Gurevych 2019, section 3). The facts say how long a row is, also of a causal model.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        if layer.parameters:
            self.weight, self.bias = (nn.Parameter(torch.zeros(parameter.shape)) for parameter in layer.parameters)
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, states: States) -> States:
        length_B = states.facts_BF[:, UNTIL]
        vectors_BD = pooled(states.last, length_B, self.spec.kind, self.tensor)  # type: ignore[arg-type]
        if self.spec.loss != "nli":
            return states._replace(vectors_BD=vectors_BD)
        u_ED, v_ED = vectors_BD.view(-1, 2, vectors_BD.shape[-1]).unbind(1)
        features_EF = torch.cat([u_ED, v_ED, (u_ED - v_ED).abs()], dim=-1)
        scores_EK = products.linear(features_EF.to(self.weight.dtype), self.weight, self.bias)
        return states._replace(vectors_BD=vectors_BD, scores=scores_EK)


def pooled(hidden_SBD: Tensor, length_B: Tensor, pooling: AnyPooling, tensor: TensorParallel) -> Tensor:
    """Returns fp32 [B, D]: of each row's first `length_B` states, control symbols included, the mean, the largest value
    of each channel (max), the first state (cls), the sum divided by the root of their number (mean_sqrt_len_tokens),
    the mean weighted with 1, 2, 3, ... (weightedmean), or the last state (lasttoken). Sequence-parallel ranks pool
    their own positions, then together.
    """
    if pooling == "cls":
        return tensor.all_positions(hidden_SBD[:1])[0].float()  # of all ranks' first positions the first
    first = tensor.first_position(hidden_SBD)
    position_S1 = torch.arange(first, first + len(hidden_SBD), device=hidden_SBD.device).unsqueeze(1)
    is_token_SB1 = (position_S1 < length_B).unsqueeze(-1)
    wide_SBD = hidden_SBD.float()
    if pooling == "max":
        lowest = torch.finfo(torch.float32).min
        found_1BD = wide_SBD.masked_fill(~is_token_SB1, lowest).max(0, keepdim=True).values
        return tensor.all_positions(found_1BD).max(0).values
    length_B1 = length_B.unsqueeze(-1)
    divisor_B1 = length_B1
    if pooling == "mean_sqrt_len_tokens":
        divisor_B1 = length_B1.sqrt()
    elif pooling == "weightedmean":
        wide_SBD = wide_SBD * (position_S1 + 1).unsqueeze(-1)
        divisor_B1 = length_B1 * (length_B1 + 1) / 2
    elif pooling == "lasttoken":
        is_token_SB1 = (position_S1 == length_B - 1).unsqueeze(-1)
        divisor_B1 = torch.ones_like(length_B1)
    sum_1BD = wide_SBD.masked_fill(~is_token_SB1, 0.0).sum(0, keepdim=True)
    return tensor.all_positions(sum_1BD).sum(0) / divisor_B1
