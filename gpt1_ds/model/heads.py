"""Both ends of the model: token and position embeddings, and the tied head that turns states back into logits.

Shapes: S positions, B rows, D width, V vocabulary rows on this rank (padded), K keys of dropout, one int64 per row.
"""

from __future__ import annotations

import math

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn

from gpt1_ds.config import ModelConfig
from gpt1_ds.model import dropout, names
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.plan.count import padded_vocabulary

EMBEDDING_SITE = 0


class TokenEmbedding(tensor_parallel.VocabParallelEmbedding):
    """Token rows, used twice: looked up on the first stage, multiplied with on the last (tied, no bias)."""

    def __init__(self, model: ModelConfig, vocab_size: int, tensor: TensorParallel) -> None:
        rows = padded_vocabulary(vocab_size, model.vocab_multiple, tensor.size)
        super().__init__(rows, model.width, init_method=nn.init.zeros_, config=tensor.config, tp_group=tensor.group)
        names.label(self, "tokens", tensor, vocab_size)
        self.tensor = tensor
        self.vocab_size = vocab_size
        self.output = tensor_parallel.ColumnParallelLinear(
            model.width,
            rows,
            config=tensor.config,
            init_method=nn.init.zeros_,
            bias=False,
            skip_weight_param_allocation=True,
            tp_group=tensor.group,
        )

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(token ids [S, B], keys) -> (embeddings [S, B, D], keys); S is cut over the ranks if they cut sequences."""
        tokens_SB, keys_B = inputs
        embedded_SBD = super().forward(tokens_SB)
        if self.tensor.sequence:
            embedded_SBD = tensor_parallel.scatter_to_sequence_parallel_region(embedded_SBD, group=self.tensor.group)
        return embedded_SBD, keys_B

    def projection(self, hidden_SBD: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss makes logits of: (states of all positions [S, B, D], the weights [V, D])."""
        if self.tensor.sequence:
            hidden_SBD = tensor_parallel.gather_from_sequence_parallel_region(hidden_SBD, group=self.tensor.group)
        else:
            hidden_SBD = tensor_parallel.copy_to_tensor_model_parallel_region(hidden_SBD, group=self.tensor.group)
        # a view, because DeepSpeed prepares a backward pass when a gradient comes to an output that has a history
        return hidden_SBD, self.weight.view_as(self.weight)

    def logits(self, hidden_SBD: Tensor) -> Tensor:
        """[S, B, V]: this rank's columns; those of pad rows are -inf, so that padding never wins or learns."""
        logits_SBV = self.output(hidden_SBD, weight=self.weight)[0]
        real = max(0, self.vocab_size - self.vocab_start_index)
        # behind autograd's back: a softmax has no gradient at -inf, so there is nothing to mask on the way back
        logits_SBV.detach()[..., real:].fill_(-math.inf)
        return logits_SBV  # type: ignore[no-any-return]


class PositionEmbedding(nn.Module):
    """Adds the learned positions and drops; kept apart from the tied module, whose copies are synchronised."""

    def __init__(self, model: ModelConfig, tensor: TensorParallel) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(model.context, model.width))
        self.tensor = tensor
        self.probability = model.embedding_dropout
        names.label(self, "positions", tensor)

    def forward(self, inputs: tuple[Tensor, Tensor], first_position: int = 0) -> tuple[Tensor, Tensor]:
        hidden_SBD, keys_B = inputs
        if self.tensor.sequence:
            first_position = self.tensor.rank * hidden_SBD.shape[0]
        weight_SD = self.tensor.replicated(self.weight)[first_position : first_position + hidden_SBD.shape[0]]
        hidden_SBD = hidden_SBD + weight_SD.unsqueeze(1)
        if self.training:
            hidden_SBD = dropout.dropout(hidden_SBD, keys_B, EMBEDDING_SITE, self.probability, first_position)
        return hidden_SBD, keys_B
