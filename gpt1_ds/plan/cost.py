"""Time of a step and bytes on the wire, from what a machine can do.

    step = (m - 1) x slowest stage + sum over stages      of forward + backward, m micro-batches (1F1B)
         + reduction of gradients + update + gathering of weights

A stage's passes are the sum of its kernels' times, or the host's time to launch them where that is longer (CUDA). The
host launches a micro-batch that is a CUDA graph as a whole; then no kernel is shorter than the smallest.
B bytes on n ranks take 2 (n - 1) / n x B of bandwidth to be reduced everywhere and half of it to be gathered or
scattered, as rings do, and 2 or 1 x log2 n latencies, as trees do (Thakur et al. 2005; libraries choose by size).

Gradients are reduced after the backward pass (of the last micro-batch; under ZeRO 2 and 3 of each), but for what
`communication.overlaps` names. There buckets that are complete are reduced while the pass (B seconds) computes others.
The largest bucket, a part f of all gradients, counts as the first and as the last one: of a reduction that takes R
seconds alone, these remain

    max(R - (1 - f) B, f R)      the link is busy from the first bucket on, or waits for the last one
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from gpt1_ds.architecture.count import training_flops_per_token
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import Config, policy
from gpt1_ds.config.parallel import BUCKET_ELEMENTS
from gpt1_ds.plan import cuda
from gpt1_ds.plan.communication import Communication, Reductions, overlaps
from gpt1_ds.plan.machine import Link, Machine
from gpt1_ds.plan.muon_update import MuonUpdate
from gpt1_ds.plan.stages import PERSISTENT, Stage, stages
from gpt1_ds.plan.whole_parameters import WholeParametersUpdate

# What the host starts: on a CPU in a block, forward and backward, and at both ends (on CUDA: plan/cuda.py); for each
# parameter tensor and micro-batch, to add up gradients, and in ZeRO 2's and 3's hooks
CPU_BLOCK, CPU_ENDS = 450, 40  # dropout masks take dozens of small calls
TENSOR_CALLS = {0: 1, 1: 4, 2: 10, 3: 40}


@dataclass(frozen=True)
class Cost:
    """Seconds of one step, and bytes that its busiest rank sends."""

    forward: float  # of one micro-batch on the slowest stage, communication inside it included
    backward: float
    pipeline: float  # of all micro-batches
    reduction: float  # of gradients, what of it follows the backward pass
    hidden: float  # of the reduction, what the last micro-batch's backward pass hides
    update: float  # the gathering of weights included
    bubble: float  # fraction of `pipeline` that a rank waits on average
    tensor: float  # seconds of the pipeline in which tensor-parallel ranks reduce
    tensor_bytes: float
    pipeline_bytes: float
    data_bytes: float
    graphs: bool  # micro-batches are launched as CUDA graphs
    tokens_per_second: float
    mfu: float  # fraction of the peak, FLOPs by PaLM's convention

    @property
    def step(self) -> float:
        return self.pipeline + self.reduction + self.update


def cost(config: Config, world: int, vocab_size: int, machine: Machine) -> Cost:
    """Returns the time of a step of `config` on `world` ranks of a machine."""
    return _Step(config, world, vocab_size, machine).cost()


def all_reduce(size: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has the sum of `size` bytes."""
    return 2 * gather(size, ranks, link)


def gather(size: float, ranks: int, link: Link) -> float:
    """Seconds until every rank has the `size` bytes of which each had a part; as long to scatter them."""
    return math.log2(ranks) * link.latency + (ranks - 1) / ranks * size / link.bandwidth


class _Step:
    """Seconds of the parts of a step, on the ranks of one stage."""

    def __init__(self, config: Config, world: int, vocab_size: int, machine: Machine) -> None:
        parallel, train, model = config.parallel, config.train, config.model
        self.config, self.model, self.world, self.vocab_size, self.machine = config, model, world, vocab_size, machine
        self.tensor, self.pipeline, self.stages = parallel.tensor, parallel.pipeline, stages(config, vocab_size)
        self.communication = wires = Communication(config, world)
        self.data, self.micro_batches, self.tokens = wires.data, wires.micro_batches, wires.tokens
        self.type, self.gradient = wires.type, wires.gradient
        self.cuda = machine.device == "cuda"
        self.compiled = self.cuda and policy.is_compiled(config)
        self.graphs = self.cuda and policy.has_graphs(config)
        self.kernels = list(zip(cuda.block_kernels(config), cuda.end_kernels(config), strict=True)) if self.cuda else []
        self.speeds = machine.speeds_with(train.precision, min(world, machine.ranks_per_node if self.cuda else world))
        # inside of each group; rank order is (pipeline, data, tensor), tensor fastest (engine/process_groups.py)
        self.tensor_link = machine.link(self.tensor)
        self.data_link = machine.link(self.tensor * self.data, self.tensor)
        self.in_stage_link = machine.link(self.tensor * self.data)
        self.pipeline_link = machine.link(world, self.tensor * self.data)

    def cost(self) -> Cost:
        of_shape = {stage.shape: stage for stage in self.stages}
        passes_of_shape = {shape: self._passes(stage) for shape, stage in of_shape.items()}
        passes = [passes_of_shape[stage.shape] for stage in self.stages]
        slowest = max(passes, key=sum)
        pipeline = (self.micro_batches - 1) * sum(slowest) + sum(map(sum, passes))
        working = self.micro_batches * sum(map(sum, passes)) / self.pipeline
        largest = max(self.stages, key=lambda stage: stage.parameters)
        reduction, hidden = self._reduction(passes_of_shape)
        update = self._update(largest)
        step = pipeline + reduction + update
        tokens = self.config.train.global_batch * self.config.row.fed / step
        peak = self.machine.peak_tflops.get(self.config.train.precision, 0) * 1e12 * self.world
        if not self.cuda:  # a node's peak, however many ranks share it
            peak /= min(self.world, self.machine.ranks_per_node)
        sent = [self.communication.sent(stage) for stage in of_shape.values()]
        return Cost(
            forward=slowest[0],
            backward=slowest[1],
            pipeline=pipeline,
            reduction=reduction,
            hidden=hidden,
            update=update,
            bubble=1 - working / pipeline,
            tensor=self.micro_batches * max(sum(self._tensor(stage)) for stage in of_shape.values()),
            tensor_bytes=max(one.tensor for one in sent),
            pipeline_bytes=max(one.pipeline for one in sent),
            data_bytes=max(one.data for one in sent),
            graphs=self.graphs,
            tokens_per_second=tokens,
            mfu=tokens * training_flops_per_token(self.config, self.vocab_size) / peak if peak else 0.0,
        )

    # One micro-batch on one stage

    def _passes(self, stage: Stage) -> tuple[float, float]:
        """Returns the seconds of (forward, backward)."""
        forward = backward = 0.0
        for layer, count in stage.distinct_blocks:
            block_forward, block_backward = self._block(layer)
            forward += count * block_forward
            backward += count * block_backward
        if self.config.train.recompute == "block":
            backward += forward
        ends = self._ends(stage)
        forward, backward = forward + ends / 3, backward + ends * 2 / 3
        launch_forward, launch_backward = self._launching(stage)
        together = max if self.cuda else operator.add  # a GPU computes what was launched before
        forward, backward = together(forward, launch_forward), together(backward, launch_backward)
        between, (reduce_forward, reduce_backward) = self._between(stage), self._tensor(stage)
        forward, backward = forward + between + reduce_forward, backward + between + reduce_backward
        if self.config.parallel.zero == 3:
            forward += self._gathering(stage.freed)
            backward += self._gathering(self.communication.gathered_again(stage))
        backward += self._accumulation(stage)
        if self.config.parallel.zero >= 2:
            backward += self._remaining(backward, stage)
        return forward, backward

    def _launching(self, stage: Stage) -> tuple[float, float]:
        """Returns the seconds that the host needs to launch (forward, backward)."""
        tensors = sum(len(layer.parameters) for layer in stage.body)
        launch, calls = self.speeds.launch, tensors * TENSOR_CALLS[self.config.parallel.zero]
        if not self.cuda:
            host = (stage.blocks * CPU_BLOCK + CPU_ENDS + calls) * launch
            return host / 3, host * 2 / 3
        forward, backward = (stage.blocks * of_block + of_ends for of_block, of_ends in self.kernels)
        if not self.graphs:
            return forward * launch, (backward + calls) * launch
        # it runs ahead of the device, from step to step; each gradient is added up by one kernel of the graph
        host = (cuda.REPLAY + cuda.STEP / self.micro_batches) * launch
        device = forward * cuda.KERNEL, (backward + tensors) * cuda.KERNEL
        return max(host / 3, device[0]), max(host * 2 / 3, device[1])

    def _block(self, layer: Layer) -> tuple[float, float]:
        """Returns the seconds of (forward, backward) of one block, without communication."""
        speeds, tokens, tensor = self.speeds, self.tokens, self.tensor
        seen = layer.costs.products / 2 / sum(layer.matrices)  # of both stacks' tokens a matrix sees its own stack's
        products = sum(speeds.product(2 * seen * tokens * matrix / tensor) for matrix in layer.matrices)
        scores = tokens * layer.costs.scores / tensor * (layer.costs.head_dim / 64) ** 0.5
        score_forward, score_backward = speeds.exact if self.model.attention == "exact" else speeds.fused
        passes = self.simple_passes(layer)
        forward = products + scores / score_forward + passes / 3
        backward = 2 * products + scores / score_backward + passes * 2 / 3
        return forward, backward

    def simple_passes(self, layer: Layer) -> float:
        """Returns the seconds of what a block computes besides products and scores, forward and backward together."""
        speeds, tokens, tensor, work = self.speeds, self.tokens, self.tensor, layer.costs.elementwise
        cut = tensor if self.config.parallel.sequence else 1
        passes = tokens * work.activation / tensor / speeds.gelu + tokens * work.norm / cut / speeds.norm
        masks = tokens * work.dropout / cut / speeds.dropout
        moved = 3 * tokens * self.type * work.moved / tensor / speeds.stream
        if self.cuda:  # a norm that follows makes the mask itself
            masks *= 0.0 if layer.norm == "post" else 0.5
            moved *= cuda.MOVED
        if self.compiled:
            moved *= cuda.COMPILED_MOVED
            masks *= cuda.COMPILED_MASK_TENSORS * self.type / (cuda.MASK_BYTES + cuda.MASK_TENSORS * self.type)
        return passes + masks + moved

    def _ends(self, stage: Stage) -> float:
        """Returns the seconds of the embedding, the head and the loss, forward and backward."""
        model, speeds = self.model, self.speeds
        seconds = 0.0
        if stage.has_table:
            rows = self.tokens * model.width
            masks = rows / speeds.dropout * (model.embedding_dropout > 0)
            seconds += masks + 8 * rows * self.type / speeds.stream
            seconds += 4 * stage.embedding * self.type / speeds.memory  # its gradient, and the tied head's added to it
        if stage.has_head:
            predicted = self.tokens * self.config.row.predicted / self.config.row.fed
            logits = predicted * stage.local_vocabulary
            seconds += 3 * speeds.product(2 * logits * model.width) + logits / speeds.loss
        return seconds

    def _tensor(self, stage: Stage) -> tuple[float, float]:
        """Returns the seconds of reductions over the tensor-parallel ranks, (forward, backward)."""

        def seconds(reductions: Reductions) -> float:
            return sum(count * all_reduce(size, self.tensor, self.tensor_link) for count, size in reductions)

        forward, backward = map(seconds, self.communication.reductions(stage))
        return forward, backward

    def _gathering(self, elements: int) -> float:
        """Returns the seconds in which ZeRO 3 gathers weights for a pass, a bucket at a time."""
        if elements == 0:
            return 0.0
        further = elements // BUCKET_ELEMENTS * math.log2(self.data) * self.data_link.latency
        return gather(self.type * elements, self.data, self.data_link) + further

    def _between(self, stage: Stage) -> float:
        """Returns the seconds of receiving from the stage before, each way."""
        if self.pipeline == 1:
            return 0.0
        link, sides = self.pipeline_link, (stage.number > 0) + (stage.number < self.pipeline - 1)
        return sides * (link.latency + self.communication.between_stages / link.bandwidth) / 2

    def _accumulation(self, stage: Stage) -> float:
        """Returns the seconds to add one micro-batch's gradients to the step's."""
        # gradients are written, read and added in fp32; products forward and backward have read the weights
        seconds = stage.parameters * (2 * self.type + 8 + 2 * self.type) / self.speeds.memory
        if self.config.parallel.zero >= 2:
            seconds += 16 * stage.parameters / self.speeds.memory  # into the bucket, its copy, onto the partition
        return seconds

    # Once a step

    def _reduction(self, passes: dict[tuple[object, ...], tuple[float, float]]) -> tuple[float, float]:
        """Returns the seconds of the reduction of gradients, (after the passes, under the last of them), on the stage
        with most parameters.
        """
        if self.config.parallel.zero >= 2:
            return 0.0, 0.0
        stage = max(self.stages, key=lambda one: one.parameters)
        tied = 0.0
        if self.pipeline > 1:  # both copies of what two stages hold
            tied = all_reduce(4 * max(part.replicated for part in self.stages), 2, self.pipeline_link)
        copies = 8 * stage.parameters / self.speeds.memory * (self.data > 1)
        remaining = self._remaining(passes[stage.shape][1], stage)
        return remaining + tied + copies, self._over_data_ranks(stage) - remaining

    def _remaining(self, backward: float, stage: Stage) -> float:
        """Returns the seconds that the reduction over the data-parallel ranks takes after a backward pass."""
        alone = self._over_data_ranks(stage)
        if not overlaps(self.machine.device) or self.config.train.deepspeed_patches != "fast":
            return alone
        largest = min(1.0, max(stage.embedding, BUCKET_ELEMENTS) / stage.parameters)  # bucket, a part of all: f above
        return max(alone - (1 - largest) * backward, largest * alone)

    def _over_data_ranks(self, stage: Stage) -> float:
        """Returns the seconds to reduce a stage's gradients, a bucket at a time; ZeRO 3 scatters their sums."""
        size, further = self.gradient * stage.parameters, stage.parameters // BUCKET_ELEMENTS
        ways = 1 if self.config.parallel.zero == 3 else 2
        latencies = further * math.log2(self.data) * self.data_link.latency
        return ways * (gather(size, self.data, self.data_link) + latencies)

    def _update(self, stage: Stage) -> float:
        """Returns the seconds of the optimizer's update of a stage, and of gathering the weights that it wrote."""
        zero, parameters = self.config.parallel.zero, stage.parameters
        own = parameters / self.data if zero else parameters
        flat = 4 * parameters / self.speeds.memory if self.type == 4 and zero else 0.0
        gathering = gather(self.type * parameters, self.data, self.data_link) if zero in (1, 2) else 0.0
        if zero == 3:  # what is not freed after a pass, one parameter at a time
            small = [size for size in stage.sizes if size <= PERSISTENT]
            gathering = sum(gather(self.type * size, self.data, self.data_link) for size in small)
        passes = WholeParametersUpdate(self.config, self.world, stage).passes
        return passes * own / self.speeds.update + flat + gathering + self._orthogonalising()

    def _orthogonalising(self) -> float:
        """Returns the seconds on the stage with most matrices; Muon computes in fp32."""
        if self.config.optimizer.name != "muon":
            return 0.0
        precision = "fp32" if "fp32" in self.machine.speeds else self.config.train.precision
        speeds = self.machine.speeds_with(precision, self.speeds.ranks)
        of_shape = {stage.shape: stage for stage in self.stages}
        updates = [MuonUpdate(self.config, self.world, stage) for stage in of_shape.values()]
        return max(update.seconds(speeds, self.in_stage_link) for update in updates)
