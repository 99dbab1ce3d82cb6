"""Both ends of the model: token and position embeddings, and the tied head that turns states back into logits.

Shapes: S positions, B rows, D width, V vocabulary rows on this rank (padded); facts are int64 [B, 3]
(architecture/facts.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY, SECOND
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import dropout, names
from gpt1_ds.model.layers import ColumnProduct, TensorParallel, make_norm
from gpt1_ds.model.relative import RelativeTables

EMBEDDING_SITES = 0, (1 << 16) - 1  # dropout of each stack's embeddings; those of blocks lie elsewhere (block.py)
FINAL_SITES = (1 << 16) - 3, (1 << 16) - 2


class TokenEmbedding(tensor_parallel.VocabParallelEmbedding):
    """Token rows, used twice: looked up on the first stage, multiplied with on the last (tied, no bias)."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        (table,) = layer.parameters
        self.vocab_size, width = table.shape
        rows = table.local_rows(tensor.size) * tensor.size
        super().__init__(rows, width, init_method=nn.init.zeros_, config=tensor.config, tp_group=tensor.group)
        names.label(self, layer, tensor)
        self.tensor = tensor
        self.scale = 1.0 if model.logit_scale == "one" else width**-0.5
        self.output = ColumnProduct(
            width,
            rows,
            config=tensor.config,
            init_method=nn.init.zeros_,
            bias=False,
            skip_weight_param_allocation=True,
            tp_group=tensor.group,
        )

    def forward(self, inputs: tuple[Tensor, ...], _cache: None = None) -> tuple[Tensor, ...]:
        """(token ids [S, B] of each stack, facts) -> (embeddings [S, B, D] of each, facts); S is cut over the ranks if
        they cut sequences.
        """
        *streams, facts_B3 = inputs
        return (*map(self._embedded, streams), facts_B3)

    def _embedded(self, tokens_SB: Tensor) -> Tensor:
        embedded_SBD = super().forward(tokens_SB)
        if self.tensor.sequence:
            embedded_SBD = tensor_parallel.scatter_to_sequence_parallel_region(embedded_SBD, group=self.tensor.group)
        return embedded_SBD  # type: ignore[no-any-return]

    def new_cache(self) -> None:
        """A token is looked up by itself."""

    def projection(self, hidden_SBD: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss makes logits of: (states of all positions [S, B, D], the weights [V, D])."""
        if self.scale != 1.0:
            hidden_SBD = hidden_SBD * self.scale
        if self.tensor.sequence:
            hidden_SBD = tensor_parallel.gather_from_sequence_parallel_region(hidden_SBD, group=self.tensor.group)
        else:
            hidden_SBD = tensor_parallel.copy_to_tensor_model_parallel_region(hidden_SBD, group=self.tensor.group)
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return hidden_SBD, self.weight.view_as(self.weight)

    def logits(self, hidden_SBD: Tensor, bias_V: Tensor | None = None) -> Tensor:
        """[S, B, V]: this rank's columns; those of pad rows are -inf, so that padding never wins or learns."""
        if self.scale != 1.0:
            hidden_SBD = hidden_SBD * self.scale
        logits_SBV = self.output(hidden_SBD, weight=self.weight)[0]
        if bias_V is not None:
            logits_SBV = logits_SBV + bias_V
        real = max(0, self.vocab_size - self.vocab_start_index)
        # behind autograd's back: a softmax has no gradient at -inf, so there is nothing to mask on the way back
        logits_SBV.detach()[..., real:].fill_(-math.inf)
        return logits_SBV  # type: ignore[no-any-return]


class Head(TokenEmbedding):
    """The matrix of a head that is not tied. It does what `apply` does with a tied one."""

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel, apply: Callable[..., Any]) -> None:
        super().__init__(layer, model, tensor)
        self.projected = apply

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # type: ignore[override]
        return self.projected(self, inputs)  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Learned rows [S, D]. ZeRO 3 gathers a parameter for the module that holds it, so that module adds it."""

    def __init__(self, rows: int, width: int, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.tensor = tensor

    def forward(self, hidden_SBD: Tensor, first: int) -> Tensor:
        """The sum with the rows from position `first` on."""
        return hidden_SBD + self.tensor.replicated(self.weight)[first : first + hidden_SBD.shape[0]].unsqueeze(1)


class Segments(nn.Module):
    """Two learned rows [2, D], of the first and of the second text."""

    def __init__(self, rows: int, width: int, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.tensor = tensor

    def forward(self, hidden_SBD: Tensor, first: int, second_B: Tensor) -> Tensor:
        """The sum with each position's row; the second text begins at `second_B`."""
        position_S1 = torch.arange(first, first + hidden_SBD.shape[0], device=hidden_SBD.device).unsqueeze(1)
        is_second_SB1 = (position_S1 >= second_B).unsqueeze(2)
        first_D, second_D = self.tensor.replicated(self.weight)
        return hidden_SBD + torch.where(is_second_SB1, second_D, first_D)


class PositionCount:
    """Of those seen so far, for sampling."""

    positions = 0


class PositionEmbedding(nn.Module):
    """Adds the learned positions and segments, normalises and drops; kept apart from the tied module, whose copies are
    synchronised. Relative positions' tables begin their way here: they travel between states and facts.
    """

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.positions = Positions(model.context, model.width, tensor) if model.positions == "learned" else None
        self.segments = Segments(model.segments, model.width, tensor) if model.segments else None
        self.embedding_norm = make_norm(model, tensor) if model.embedding_norm else None
        self.relative = RelativeTables(layer.parameters[-1], tensor) if model.positions == "relative" else None
        self.tensor = tensor
        self.probability = model.embedding_dropout
        names.label(self, layer, tensor)

    def new_cache(self) -> PositionCount:
        return PositionCount()

    def forward(self, inputs: tuple[Tensor, ...], cache: PositionCount | None = None) -> tuple[Tensor, ...]:
        *streams, facts_B3 = inputs
        states = [self._mapped(x_SBD, facts_B3, EMBEDDING_SITES[at], cache) for at, x_SBD in enumerate(streams)]
        return (*states, facts_B3) if self.relative is None else (*states, self.relative(), facts_B3)

    def _mapped(self, hidden_SBD: Tensor, facts_B3: Tensor, site: int, cache: PositionCount | None) -> Tensor:
        first_position = self.tensor.rank * hidden_SBD.shape[0] if self.tensor.sequence else 0
        if cache is not None:
            first_position, cache.positions = cache.positions, cache.positions + len(hidden_SBD)
        if self.positions is not None:
            hidden_SBD = self.positions(hidden_SBD, first_position)
        if self.segments is not None:
            hidden_SBD = self.segments(hidden_SBD, first_position, facts_B3[:, SECOND])
        if self.embedding_norm is not None:
            hidden_SBD = self.embedding_norm(hidden_SBD)
        if self.training:
            hidden_SBD = dropout.dropout(hidden_SBD, facts_B3[:, KEY], site, self.probability, first_position)
        return hidden_SBD


class FinalNorm(nn.Module):
    """Ends a stack of pre-norm blocks: (states, facts) -> (states, facts), of the last stack (its states, facts). An
    encoder-decoder drops what it has normalised, as T5 does.
    """

    def __init__(self, layer: Layer, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.norm = make_norm(model, tensor)
        self.stack, self.is_last, self.tensor = layer.stack, layer.stack == model.stacks - 1, tensor
        self.probability = model.residual_dropout if model.stacks > 1 else 0.0
        names.label(self.norm, layer, tensor)

    def new_cache(self) -> None:
        """A position is normalised by itself."""

    def forward(self, inputs: tuple[Tensor, ...], _cache: None = None) -> tuple[Tensor, ...]:
        *states, facts_B3 = inputs
        normal_SBD = self.norm(states[self.stack])
        if self.training and self.probability:
            first = self.tensor.rank * len(normal_SBD) if self.tensor.sequence else 0
            site = FINAL_SITES[self.stack]
            normal_SBD = dropout.dropout(normal_SBD, facts_B3[:, KEY], site, self.probability, first)
        if self.is_last:
            return normal_SBD, facts_B3
        return (*states[: self.stack], normal_SBD, *states[self.stack + 1 :], facts_B3)
