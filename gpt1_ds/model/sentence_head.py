"""A vector for each sentence, of the states of all its tokens (Reimers and Gurevych 2019, section 3).

Shapes: S positions (of this rank, under sequence parallelism), B rows, D width, E examples of 2 adjacent rows, F = 3D
features, K classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import UNTIL
from gpt1_ds.architecture.head import HeadSpec, Pooling
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.model import names, products
from gpt1_ds.model.layers import TensorParallel

AnyPooling = Literal[Pooling, "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]  # sentence-transformers' names


class SentenceHead(nn.Module):
    """(hidden [S, B, D], facts) -> (hidden, vectors [B, D], of nli also logits [E, K] of W [u; v; |u - v|] + b). The
    facts say how long a row is, also of a causal model.
    """

    def __init__(self, layer: Layer, spec: HeadSpec, tensor: TensorParallel) -> None:
        super().__init__()
        if layer.parameters:
            self.weight, self.bias = (nn.Parameter(torch.zeros(parameter.shape)) for parameter in layer.parameters)
        self.spec, self.tensor = spec, tensor
        names.label(self, layer, tensor)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        hidden_SBD, facts_B3 = inputs
        vectors_BD = pooled(hidden_SBD, facts_B3[:, UNTIL], self.spec.kind, self.tensor)  # type: ignore[arg-type]
        if self.spec.loss != "nli":
            return hidden_SBD, vectors_BD
        u_ED, v_ED = vectors_BD.view(-1, 2, vectors_BD.shape[-1]).unbind(1)
        features_EF = torch.cat([u_ED, v_ED, (u_ED - v_ED).abs()], dim=-1)
        return hidden_SBD, vectors_BD, products.linear(features_EF.to(self.weight.dtype), self.weight, self.bias)


def pooled(hidden_SBD: Tensor, length_B: Tensor, pooling: AnyPooling, tensor: TensorParallel) -> Tensor:
    """fp32 [B, D]: of each row's first `length_B` states, control symbols included, the mean, the largest value of each
    channel (max), the first state (cls), the sum divided by the root of their number (mean_sqrt_len_tokens), the mean
    weighted with 1, 2, 3, ... (weightedmean), or the last state (lasttoken). Sequence-parallel ranks pool their own
    positions, then together.
    """
    if pooling == "cls":
        return tensor.all_positions(hidden_SBD[:1])[0].float()  # of all ranks' first positions the first
    first = tensor.rank * len(hidden_SBD) if tensor.sequence else 0
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
