"""The paper's LSTM (section 5): one layer of 2,048 units in the place of all blocks.

What the paper leaves open: the input is as wide as the embedding, and a linear layer brings the state back to that
width for the tied head and the task's. There are no positions and no tensor parallelism.

On a GPU cuDNN computes the cell in fp32 and fp16 (torch 2.11 has none of its own for bf16: a kernel or two a position).
It wants the cell's weights and biases at the start of one buffer. `Module.to` puts them there, so sampling, evaluation
and ZeRO 0 have them so. ZeRO 1 to 3 keep decayed matrices and biases in two buffers of DeepSpeed's; cuDNN then copies
the cell's weights at each call.
Shapes: S positions, B rows, D width, U units.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import documents, dropout, names, products
from gpt1_ds.model.caches import Columns, Recurrence
from gpt1_ds.model.layers import Linear, TensorParallel
from gpt1_ds.model.states import States

INPUT_SITE, OUTPUT_SITE = 0, 1  # dropout sites


class LstmCell(nn.LSTM):
    """x [S, B, D] -> (states [S, B, U], (state, cell) after the last position)."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__(width, units)
        # else cuDNN rounds the factors of fp32 products to TF32. Backward passes obey the process's setting alone
        torch.backends.cudnn.allow_tf32 = False

    def forward(self, x_SBD, state=None):  # type: ignore[no-untyped-def]
        dtype = torch.float32 if products.slow(x_SBD) else x_SBD.dtype
        zeros_1BU = x_SBD.new_zeros(1, x_SBD.shape[1], self.hidden_size, dtype=dtype)
        before = [zeros_1BU, zeros_1BU] if state is None else [part.to(dtype) for part in state]
        weights = [weight.to(dtype) for weight in self.all_weights[0]]
        # cuDNN has gradients in training alone; without dropout of its own, nothing else differs
        training = self.training or (x_SBD.is_cuda and torch.is_grad_enabled())
        states_SBU, *last = torch.lstm(x_SBD.to(dtype), before, weights, True, 1, 0.0, training, False, False)
        return states_SBU.to(x_SBD.dtype), tuple(last)


class Lstm(nn.Module):
    """The cell, and a linear layer after it: from embeddings [S, B, D] to states [S, B, D]."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        assert tensor.size == 1, "validation refuses tensor parallelism"
        self.cell = LstmCell(model.width, model.units)
        self.out = Linear(model.units, model.width)
        self.probabilities = (model.embedding_dropout, model.residual_dropout)
        names.label(self, layer, tensor)

    def new_cache(self, columns: Columns) -> Recurrence:
        return Recurrence(columns)

    def forward(self, states: States, cache: Recurrence | None = None) -> States:
        x_SBD, facts_BF = states.last, states.facts_BF
        if self.training:
            x_SBD = dropout.dropout(x_SBD, facts_BF[:, KEY], INPUT_SITE, self.probabilities[0])
        if documents.are_apart(facts_BF):
            state_SBU = self._in_documents(x_SBD, documents.bounds(facts_BF, len(x_SBD))[:, 0].T)
        else:
            state_SBU = self.cell(x_SBD)[0] if cache is None else self._after(x_SBD, cache)
        hidden_SBD = self.out(state_SBU)
        if self.training:
            hidden_SBD = dropout.dropout(hidden_SBD, facts_BF[:, KEY], OUTPUT_SITE, self.probabilities[1])
        return States(hidden_SBD, facts_BF)

    def _in_documents(self, x_SBD: Tensor, begin_SB: Tensor) -> Tensor:
        """Returns the states [S, B, U]; where a document begins the state is zero. The cell is called once for every
        position at which one begins in any row, which the host waits for.
        """
        begins_SB = begin_SB == torch.arange(len(x_SBD), device=x_SBD.device).unsqueeze(1)
        borders = [0, *(begins_SB[1:].any(1).nonzero().flatten() + 1).tolist(), len(x_SBD)]
        parts, state = [], None
        for begin, end in pairwise(borders):
            if state is not None:
                state = tuple(part.masked_fill(begins_SB[begin].unsqueeze(1), 0.0) for part in state)
            part_SBU, state = self.cell(x_SBD[begin:end], state)
            parts.append(part_SBU)
        return torch.cat(parts)

    def _after(self, x_SBD: Tensor, cache: Recurrence) -> Tensor:
        """Returns the states [S, B, U] after what the cache holds. Where a row begins its state is zero."""
        first_B = cache.columns.first_B
        if cache.state is not None or first_B is None:
            state_SBU, cache.state = self.cell(x_SBD, cache.state)
            return state_SBU  # type: ignore[no-any-return]
        parts = []
        for begin, end in pairwise(sorted({0, *first_B.tolist(), len(x_SBD)})):
            part_SBU, last = self.cell(x_SBD[begin:end], cache.state)
            has_begun_B1 = (first_B < end).unsqueeze(1)
            cache.state = tuple(part * has_begun_B1 for part in last)
            parts.append(part_SBU)
        return torch.cat(parts)
