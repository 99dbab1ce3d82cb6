"""What one rank of each pipeline stage holds: its layers, and its part of their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from gpt1_ds.architecture.architecture import pretrained_architecture
from gpt1_ds.architecture.count import pipeline_cuts
from gpt1_ds.architecture.head import HeadSpec, pretraining_head
from gpt1_ds.architecture.layer import Layer, Parameter
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.config.objective import RowLengths

LIVE_LIMIT = 1_000_000_000  # gathered elements that ZeRO 3 keeps (DeepSpeed's stage3_max_live_parameters)
PERSISTENT = 100_000  # elements of a parameter that ZeRO 3 keeps whole (DeepSpeed's stage3_param_persistence_threshold)


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline; an engine without one is one stage. Sizes are elements on one of `tensor` ranks, padding
    included.
    """

    number: int
    layers: tuple[Layer, ...]
    tensor: int
    on_other_stages: frozenset[str] = frozenset()  # names of parameters that other stages hold

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Stages of one shape differ in nothing but how many micro-batches they keep; the first keeps most."""
        return self.blocks, self.has_table, self.has_head, self.parameters

    @cached_property
    def body(self) -> tuple[Layer, ...]:
        """Returns the blocks among the layers."""
        return tuple(layer for layer in self.layers if layer.depth is not None)

    @cached_property
    def blocks(self) -> int:
        return len(self.body)

    @cached_property
    def distinct_blocks(self) -> list[tuple[Layer, int]]:
        """Returns one of each sort of blocks that cost the same, and how many there are of it."""
        sorts: dict[object, tuple[Layer, int]] = {}
        for layer in self.body:
            key = layer.matrices, layer.costs
            first, count = sorts.get(key, (layer, 0))
            sorts[key] = (first, count + 1)
        return list(sorts.values())

    @cached_property
    def has_table(self) -> bool:
        """Returns whether it looks tokens up."""
        return any(layer.kind == "tokens" for layer in self.layers)

    @cached_property
    def has_head(self) -> bool:
        """Returns whether it turns states back into logits."""
        return any(layer.kind == "head" for layer in self.layers)

    @cached_property
    def tensors(self) -> tuple[Parameter, ...]:
        """Returns its parameters; a tied one once."""
        return tuple({parameter.name: parameter for layer in self.layers for parameter in layer.parameters}.values())

    @cached_property
    def parameters(self) -> int:
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Returns the size of each parameter."""
        return tuple(parameter.local_size(self.tensor) for parameter in self.tensors)

    @cached_property
    def replicated(self) -> int:
        """Returns the size of all parameters whose gradients are summed over stages: a tied matrix, blocks that two
        stacks share.
        """
        return sum(one.local_size(self.tensor) for one in self.tensors if one.name in self.on_other_stages)

    @cached_property
    def uncut(self) -> tuple[int, ...]:
        """Returns the size of each parameter that is not cut over the tensor-parallel ranks."""
        return tuple(parameter.size for parameter in self.tensors if parameter.cut is None)

    @cached_property
    def freed(self) -> int:
        """Returns the size of all parameters that ZeRO 3 frees after a pass."""
        return sum(size for size in self.sizes if size > PERSISTENT)

    @cached_property
    def _vocabulary_matrix(self) -> Parameter | None:
        """Returns the table or the head's matrix; None where the stage has neither end."""
        matrices = (layer.parameters[0] for layer in self.layers if layer.kind in ("tokens", "head"))
        return next(matrices, None)

    @cached_property
    def local_vocabulary(self) -> int:
        """Returns this rank's ids of the vocabulary; 0 where the stage has neither end."""
        return self._vocabulary_matrix.local_rows(self.tensor) if self._vocabulary_matrix else 0

    @cached_property
    def embedding(self) -> int:
        """Returns the size of the table or of the head's matrix; 0 where the stage has neither end."""
        return self._vocabulary_matrix.local_size(self.tensor) if self._vocabulary_matrix else 0

    @cached_property
    def largest_block(self) -> int:
        """Returns the size of the largest block."""
        sizes = (sum(parameter.local_size(self.tensor) for parameter in layer.parameters) for layer in self.body)
        return max(sizes, default=0)

    @cached_property
    def largest_matrix(self) -> int:
        """Returns the size of the blocks' largest matrix."""
        return max((size // self.tensor for layer in self.body for size in layer.matrices), default=0)


def stages(config: Config, vocab_size: int) -> tuple[Stage, ...]:
    """Returns every pipeline stage of a configuration."""
    return _stages(
        config.model,
        vocab_size,
        config.parallel.tensor,
        config.parallel.pipeline,
        pretraining_head(config),
        config.row,
    )


@lru_cache(maxsize=1024)
def _stages(
    model: ModelConfig, vocab_size: int, tensor: int, pipeline: int, head: HeadSpec | None, row: RowLengths
) -> tuple[Stage, ...]:
    whole = pretrained_architecture(model, vocab_size, head, row)
    layers = [whole.layers[start:stop] for start, stop in pairwise(pipeline_cuts(whole, pipeline))]
    names = [{parameter.name for layer in own for parameter in layer.parameters} for own in layers]
    return tuple(
        Stage(number, own, tensor, on_other_stages=frozenset().union(*names[:number], *names[number + 1 :]))
        for number, own in enumerate(layers)
    )
