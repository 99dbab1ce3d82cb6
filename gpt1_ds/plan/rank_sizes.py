"""What one rank of a stage holds from step to step, and what a micro-batch saves for its backward pass.

What is held differs by optimizer (read off DeepSpeed 0.19 and measured; bytes per parameter of the rank, d ranks share
data):

                          weights   masters   moments   gradients
    ZeRO 0, fp32             4          -         8        4
    ZeRO 1, fp32             4         4/d       8/d       4
    ZeRO 1, bf16             2         4/d       8/d       4, and 2 while a backward pass runs
    ZeRO 2                 4 or 2      4/d       8/d      4/d, and a bucket
    ZeRO 3             4/d or 2/d      4/d       8/d      4/d, a bucket, and the gathered weights of a pass

Other optimizers than AdamW keep other moments (muon_update.py, whole_parameters.py).

What a layer saves for its backward pass stands in architecture/ (in the model's type; a dropout mask has the type of
what it multiplies). With sequence parallelism all of it is cut over the tensor-parallel ranks, with recomputation only
a block's input is kept.
"""

from __future__ import annotations

from functools import cached_property

from gpt1_ds.architecture.blocking import chunk_tokens
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import Config
from gpt1_ds.plan.buckets import buckets
from gpt1_ds.plan.muon_update import MuonUpdate
from gpt1_ds.plan.stages import Stage
from gpt1_ds.plan.whole_parameters import WholeParametersUpdate

LIBRARIES = {"cpu": 56 << 20, "cuda": 0}  # what libraries take once a step has run, after their import


class RankSizes:
    """One rank of `stage` on `cuda` or `cpu`. Sizes are bytes where nothing else is said."""

    def __init__(self, config: Config, world: int, stage: Stage, device: str) -> None:
        parallel, train = config.parallel, config.train
        self.config, self.stage, self.device = config, stage, device
        self.tensor, self.zero, self.parameters = parallel.tensor, parallel.zero, stage.parameters
        self.data_ranks = world // (parallel.tensor * parallel.pipeline)
        self.micro_batches = train.global_batch // (train.micro_batch * self.data_ranks)  # of a step
        self.in_flight = min(parallel.pipeline - stage.number, self.micro_batches)  # micro-batches
        self.mixed = train.precision != "fp32"  # weights have 2 bytes, and masters
        self.type = 2 if self.mixed else 4  # of one element in the model's type
        self.gradients_stay = self.zero == 3 or (self.zero == 1 and self.mixed)  # their memory is held between steps
        self.state = train.micro_batch * config.row.fed * config.model.width * self.type  # S x B x D, of a micro-batch
        self.hidden = self.state // (self.tensor if parallel.sequence else 1)  # the same, as it lies between blocks
        self.embedding = stage.embedding * self.type  # the table, or the head's matrix
        logits = stage.local_vocabulary * self.type  # of a token
        tokens = chunk_tokens(train.micro_batch * config.row.predicted, max(1, logits), device)
        self.logits = stage.has_head * logits * tokens  # of one chunk
        self.buckets = buckets(config, self.data_ranks, self.parameters, device)
        self.muon, self.whole = MuonUpdate(config, world, stage), WholeParametersUpdate(config, world, stage)

    # From step to step

    def partition(self, size: float) -> float:
        """Returns this rank's part of `size` bytes that ZeRO cuts over the data-parallel ranks."""
        return size / self.data_ranks if self.zero else size

    @cached_property
    def weights(self) -> int:
        size = self.parameters * self.type
        return size // self.data_ranks if self.zero == 3 else size

    @cached_property
    def optimizer(self) -> int:
        """Masters and moments."""
        adamw = self.partition(self.parameters * (8 if self.zero == 0 else 12))
        return round(adamw - 4 * self.muon.local_elements - self.whole.spared)

    @cached_property
    def gradients(self) -> int:
        """Returns the fp32 gradients, once all of a step are there."""
        return 4 * self.parameters // (self.data_ranks if self.zero >= 2 else 1)

    @cached_property
    def buffers(self) -> int:
        return LIBRARIES[self.device] + self._received() + self.buckets.held

    def _received(self) -> int:
        """Returns what a pipeline keeps of its last micro-batches: inputs, their gradients, the last stage's states."""
        if not self.config.parallel.pipelined:
            return 0
        slots = max(2, self.in_flight) if self.micro_batches > 1 else 1
        inputs = 0 if self.stage.has_table else (slots + 1) * self.hidden
        return inputs + (slots * self.hidden if self.stage.has_head else 0)

    # From a micro-batch's forward pass to its backward pass

    def needed_by_backward(self, layer: Layer) -> float:
        """Returns all that the backward pass of a layer reads, recomputed or not."""
        return layer.costs.saved * self.hidden + layer.costs.saved_cut * self.state / self.tensor

    def saved(self, layer: Layer) -> float:
        """Returns what the forward pass of a layer keeps; of a block that is recomputed, that is its input."""
        if layer.depth is not None and self.config.train.recompute == "block":
            return self.hidden * layer.costs.part
        return self.needed_by_backward(layer)

    @cached_property
    def saved_at_ends(self) -> float:
        """Returns what the layers before the first block and after the last one save."""
        return sum(self.saved(layer) for layer in self.stage.layers if layer.depth is None)

    @cached_property
    def activations(self) -> int:
        """Returns what all layers save, for one micro-batch."""
        return round(sum(map(self.saved, self.stage.layers)))
