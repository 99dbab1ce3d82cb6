"""The embeddings of tokens, positions and segments. The tokens' are also the head of a model whose ends are tied.

Shapes: S positions, B rows, D width, V vocabulary rows on this rank (padded); facts are int64 [B, F]
(architecture/facts.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn

from gpt1_ds.architecture.facts import KEY, SECOND
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig
from gpt1_ds.model import documents, dropout, names
from gpt1_ds.model.caches import Columns
from gpt1_ds.model.layers import ColumnProduct, TensorParallel
from gpt1_ds.model.relative import RelativeTables
from gpt1_ds.model.states import States
from gpt1_ds.model.transformer import make_norm

EMBEDDING_SITES = 0, (1 << 16) - 1  # dropout of each stack's embeddings; those of blocks are in transformer.py


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
        self.output = ColumnProduct(width, rows, tensor, bias=False, skip_weight_param_allocation=True)

    def forward(self, states: States, _cache: None = None) -> States:
        """Maps token ids [S, B] of each stack to embeddings [S, B, D]; ranks that cut sequences keep a part of S."""
        return States.of(tuple(map(self._embedded, states.stacks)), states.facts_BF)

    def _embedded(self, tokens_SB: Tensor) -> Tensor:
        embedded_SBD = super().forward(tokens_SB)
        if self.tensor.sequence:
            embedded_SBD = tensor_parallel.scatter_to_sequence_parallel_region(embedded_SBD, group=self.tensor.group)
        return embedded_SBD  # type: ignore[no-any-return]

    def new_cache(self, columns: Columns) -> None:
        """A token is looked up by itself."""

    def project(self, states: States) -> States:
        """Adds the weights [V, D] that the loss makes logits with; the states are then those of all positions."""
        hidden_SBD = states.last
        if self.scale != 1.0:
            hidden_SBD = hidden_SBD * self.scale
        if self.tensor.sequence:
            hidden_SBD = tensor_parallel.gather_from_sequence_parallel_region(hidden_SBD, group=self.tensor.group)
        else:
            hidden_SBD = tensor_parallel.copy_to_tensor_model_parallel_region(hidden_SBD, group=self.tensor.group)
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return states._replace(hidden_SBD=hidden_SBD, weight_VD=self.weight.view_as(self.weight))

    def logits(self, hidden_SBD: Tensor, bias_V: Tensor | None = None) -> Tensor:
        """Returns [S, B, V]: this rank's columns; those of pad rows are -inf, so that padding never wins or learns."""
        if self.scale != 1.0:
            hidden_SBD = hidden_SBD * self.scale
        logits_SBV = self.output(hidden_SBD, weight=self.weight)[0]
        if bias_V is not None:
            logits_SBV = logits_SBV + bias_V
        real = max(0, self.vocab_size - self.vocab_start_index)
        # autograd does not see this: a softmax has no gradient at -inf, so the backward pass has nothing to mask
        logits_SBV.detach()[..., real:].fill_(-math.inf)
        return logits_SBV  # type: ignore[no-any-return]


class Positions(nn.Module):
    """Learned rows [S, D]. ZeRO 3 gathers a parameter for the module that holds it, so that module adds it."""

    def __init__(self, rows: int, width: int, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.tensor = tensor

    def forward(self, hidden_SBD: Tensor, first: int | Tensor, begin: Tensor | int = 0) -> Tensor:
        """Returns the sum with the rows from position `first` on (also int64 [1]), counted from where the text begins:
        that of a row, [B], or of each position, [S, B].
        """
        weight_SD = self.tensor.replicated(self.weight)
        if isinstance(first, int) and isinstance(begin, int):
            return hidden_SBD + weight_SD[first - begin : first - begin + hidden_SBD.shape[0]].unsqueeze(1)
        position_S1 = positions_from(first, hidden_SBD)
        return hidden_SBD + rows_at(weight_SD, (position_S1 - begin).clamp(min=0))


def positions_from(first: int | Tensor, x_SBD: Tensor) -> Tensor:
    """Returns the positions [S, 1] of states whose first one is `first`."""
    return (torch.arange(x_SBD.shape[0], device=x_SBD.device) + first).unsqueeze(1)


def _rows_at(weight_SD: Tensor, at_SB: Tensor) -> Tensor:
    """Returns [S, B, D]. Its gradient is summed in fp32: each document has a row 0, and bf16 loses sums of hundreds."""
    return weight_SD.float()[at_SB].to(weight_SD.dtype)


# compiled, it would add up the gradient in the order in which threads come
rows_at: Callable[[Tensor, Tensor], Tensor] = torch.compiler.disable(_rows_at)


class Segments(nn.Module):
    """Two learned rows [2, D], of the first and of the second text."""

    def __init__(self, rows: int, width: int, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.tensor = tensor

    def forward(self, hidden_SBD: Tensor, first: int | Tensor, second_B: Tensor) -> Tensor:
        """Returns the sum with each position's row; the second text begins at `second_B`."""
        is_second_SB1 = (positions_from(first, hidden_SBD) >= second_B).unsqueeze(2)
        first_D, second_D = self.tensor.replicated(self.weight)
        return hidden_SBD + torch.where(is_second_SB1, second_D, first_D)


class PositionEmbedding(nn.Module):
    """Adds the learned positions and segments, normalises and drops; kept apart from the tied module, whose copies are
    synchronised. Relative positions' tables begin their way here.
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

    def new_cache(self, columns: Columns) -> Columns:
        return columns

    def forward(self, states: States, cache: Columns | None = None) -> States:
        mapped = [self._mapped(x_SBD, states.facts_BF, stack, cache) for stack, x_SBD in enumerate(states.stacks)]
        return States.of(mapped, states.facts_BF, None if self.relative is None else self.relative())

    def _mapped(self, hidden_SBD: Tensor, facts_BF: Tensor, stack: int, cache: Columns | None) -> Tensor:
        first_position = self.tensor.first_position(hidden_SBD)
        first = first_position if cache is None else cache.first_new
        if self.positions is not None:
            begin: Tensor | int = 0 if cache is None or cache.first_B is None else cache.first_B
            if documents.are_apart(facts_BF):
                begin = self._begin(facts_BF, stack, first_position, hidden_SBD.shape[0])
            hidden_SBD = self.positions(hidden_SBD, first, begin)
        if self.segments is not None:
            hidden_SBD = self.segments(hidden_SBD, first, facts_BF[:, SECOND])
        if self.embedding_norm is not None:
            hidden_SBD = self.embedding_norm(hidden_SBD)
        if self.training:
            keys_B, site = facts_BF[:, KEY], EMBEDDING_SITES[stack]
            return dropout.dropout(hidden_SBD, keys_B, site, self.probability, first_position)
        return hidden_SBD

    def _begin(self, facts_BF: Tensor, stack: int, first: int, positions: int) -> Tensor:
        """Returns [S, B], where the documents of this rank's positions of a stack begin."""
        whole = positions * self.tensor.size if self.tensor.sequence else positions
        return documents.bounds(facts_BF, whole, stack)[:, 0, first : first + positions].T
