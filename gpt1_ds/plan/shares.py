"""What one rank of each pipeline stage holds: its blocks, its ends of the model, and its part of their parameters.

Matrices are cut over the tensor-parallel ranks with the biases of their outputs; positions, norms and the biases behind
a reduction are whole on every rank. The tied embedding lies on the first and on the last stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.plan.count import padded_vocabulary, stage_flops
from gpt1_ds.plan.layout import balance

ENDS = 2  # entries of the stage list before the first block: tokens and positions


@dataclass(frozen=True)
class Share:
    """One stage's. Counts are parameters on one rank."""

    stage: int
    blocks: int
    tokens: bool  # looks tokens up
    head: bool  # turns states back into logits
    columns: int  # of the vocabulary on one rank, padding included
    embedding: int  # of the tied matrix
    positions: int
    block: int  # of one block
    largest: int  # of one block's largest matrix

    @property
    def kind(self) -> tuple[int, bool, bool, int]:
        """Stages of one kind differ in nothing but how many micro-batches they keep; the first keeps most."""
        return self.blocks, self.tokens, self.head, self.positions

    @property
    def parameters(self) -> int:
        return (self.tokens or self.head) * self.embedding + self.positions + self.blocks * self.block


def shares(config: Config, vocab_size: int) -> tuple[Share, ...]:
    """Of every pipeline stage; the dense assembly is one stage."""
    return _shares(config.model, vocab_size, config.parallel.tensor, config.parallel.pipeline)


@lru_cache(maxsize=1024)
def _shares(model: ModelConfig, vocab_size: int, tensor: int, pipeline: int) -> tuple[Share, ...]:
    cuts = balance(stage_flops(model, vocab_size), pipeline)
    columns = padded_vocabulary(vocab_size, model.vocab_multiple, tensor) // tensor
    matrices = block_matrices(model)
    biases = 3 * model.width + model.ffn_width
    block = (sum(matrices) + biases) // tensor + 6 * model.width  # two norms, two biases behind a reduction
    return tuple(
        Share(
            stage=stage,
            blocks=max(0, min(stop, ENDS + model.layers) - max(start, ENDS)),
            tokens=start == 0,
            head=stop > ENDS + model.layers,
            columns=columns,
            embedding=columns * model.width,
            positions=model.context * model.width if start < ENDS <= stop else 0,
            block=block,
            largest=max(matrices) // tensor,
        )
        for stage, (start, stop) in enumerate(pairwise(cuts))
    )


def block_matrices(model: ModelConfig) -> tuple[int, ...]:
    """Elements of qkv, out, up and down."""
    width, ffn = model.width, model.ffn_width
    return 3 * width * width, width * width, width * ffn, ffn * width
