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
    """A stage of a pipeline; an engine without one is one stage. Counts are elements on one of `tensor` ranks."""

    number: int
    layers: tuple[Layer, ...]
    tensor: int
    elsewhere: frozenset[str] = frozenset()  # names of parameters that other stages hold

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Stages of one shape differ in nothing but how many micro-batches they keep; the first keeps most."""
        return self.blocks, self.tokens, self.head, self.parameters

    @cached_property
    def body(self) -> tuple[Layer, ...]:
        """The blocks among the layers."""
        return tuple(layer for layer in self.layers if layer.depth is not None)

    @cached_property
    def blocks(self) -> int:
        return len(self.body)

    @cached_property
    def distinct(self) -> list[tuple[Layer, int]]:
        """One of the blocks that cost the same, and how many there are."""
        known: dict[object, tuple[Layer, int]] = {}
        for layer in self.body:
            key = layer.matrices, layer.costs
            known[key] = (layer, known[key][1] + 1 if key in known else 1)
        return list(known.values())

    @cached_property
    def tokens(self) -> bool:
        """Whether it looks tokens up."""
        return any(layer.kind == "tokens" for layer in self.layers)

    @cached_property
    def head(self) -> bool:
        """Whether it turns states back into logits."""
        return any(layer.kind == "head" for layer in self.layers)

    @cached_property
    def held(self) -> tuple[Parameter, ...]:
        """Its parameters; a tied one once."""
        return tuple({parameter.name: parameter for layer in self.layers for parameter in layer.parameters}.values())

    @cached_property
    def parameters(self) -> int:
        return sum(self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Returns the elements of each parameter."""
        return tuple(parameter.local_size(self.tensor) for parameter in self.held)

    @cached_property
    def replicated(self) -> int:
        """Returns the elements of parameters whose gradients are summed over stages: a tied matrix, blocks that two
        stacks share.
        """
        return sum(one.local_size(self.tensor) for one in self.held if one.name in self.elsewhere)

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """Sizes of the parameters that tensor-parallel ranks do not share."""
        return tuple(parameter.size for parameter in self.held if parameter.cut is None)

    @cached_property
    def large(self) -> int:
        """Returns the elements of the parameters that ZeRO 3 frees after a pass."""
        return sum(size for size in self.sizes if size > PERSISTENT)

    @cached_property
    def columns(self) -> int:
        """Returns the columns of the vocabulary, padding included; 0 where neither end is."""
        tables = [layer.parameters[0] for layer in self.layers if layer.kind in ("tokens", "head")]
        return tables[0].local_rows(self.tensor) if tables else 0

    @cached_property
    def embedding(self) -> int:
        """Returns the elements of the table or of the head's matrix; 0 where neither end is."""
        tables = [layer.parameters[0] for layer in self.layers if layer.kind in ("tokens", "head")]
        return tables[0].local_size(self.tensor) if tables else 0

    @cached_property
    def block(self) -> int:
        """Returns the elements of the largest block."""
        sizes = (sum(parameter.local_size(self.tensor) for parameter in layer.parameters) for layer in self.body)
        return max(sizes, default=0)

    @cached_property
    def largest(self) -> int:
        """Returns the elements of the blocks' largest matrix."""
        return max((size // self.tensor for layer in self.body for size in layer.matrices), default=0)


def stages(config: Config, vocab_size: int) -> tuple[Stage, ...]:
    """Every pipeline stage of a configuration."""
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
    parts = [whole.layers[start:stop] for start, stop in pairwise(pipeline_cuts(whole, pipeline))]
    names = [{one.name for layer in layers for one in layer.parameters} for layers in parts]
    return tuple(
        Stage(number, layers, tensor, frozenset().union(*names[:number], *names[number + 1 :]))
        for number, layers in enumerate(parts)
    )
