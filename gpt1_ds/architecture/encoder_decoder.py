"""Two stacks: the encoder reads the source, the decoder the target and, by cross attention, the encoder's last states
(Vaswani et al. 2017; Raffel et al. 2020).

tokens -> positions -> encoder.0 ... encoder_norm -> decoder.0 ... decoder_norm -> head

The first layers embed both streams; the target's states travel through the encoder, the source's through the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt1_ds.architecture.block import Sizes, block, final_norm, positions
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import ModelConfig


def body(model: ModelConfig, lengths: tuple[int, ...]) -> Iterator[Layer]:
    """Everything between the tokens and the head."""
    source, target = lengths
    encoder, decoder = model.blocks
    fed = source + target
    yield positions(model)
    for depth in range(encoder):
        yield block(model, f"encoder.{depth}", depth, Sizes(source, fed, causal=False))
    yield final_norm(model, "encoder_norm")
    for depth in range(decoder):
        sizes = Sizes(target, fed, causal=True, memory=source)
        weights_of = f"encoder.{depth}" if model.shared else ""
        yield block(model, f"decoder.{depth}", encoder + depth, sizes, stack=1, weights_of=weights_of)
    yield final_norm(model, "decoder_norm", stack=1)
