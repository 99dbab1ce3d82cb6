"""Memory of the ranks of each pipeline stage: at every instant of a step, and so at its peak.

What a rank holds and what a micro-batch saves is counted in rank_sizes.py. The peak is the largest of these instants,
not the sum of everything:

    start of the run               the model is made in fp32, then flattened
    end of the forward pass        all saved states of the micro-batches in flight, and what the loss works with
    gradients of the last block    the head's gradient, a block's new ones, and what its backward pass works with
    gradients of the first block   the same; states are gone, new gradients have piled up
    gradient of the embedding      the table's
    gradients to fp32              ZeRO 1 in bf16 and fp16: new gradients beside those that they are added to
    reduction of gradients         a bucket, and its copy
    update                         what the optimizer works with, or the gathering of weights
    capture of CUDA graphs         the memory of a pass twice
    evaluation                     the memory of a pass beside what CUDA graphs keep

It is what `torch.cuda.max_memory_allocated` counts; a CPU's heap may keep some of what was freed.

Estimated, because no GPU has measured it: CUDA graphs of micro-batches keep what a pass needs, all of them in one pool,
from capture to the end of the run. The pool is no larger than an ordinary pass, but stays while others need memory:
evaluation, and the passes of the other kinds of micro-batches (the first of a step, later ones, the last) that come
before those have graphs, too. Of a task's many lengths most have none: their passes need memory beside the pool. Static
inputs, 20 bytes a token, and the graphs themselves are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.architecture.blocking import ATTENTION_ROWS, ATTENTION_SCORES, LOSS_LOGITS
from gpt1_ds.config import Config, policy
from gpt1_ds.config.parallel import BUCKET_ELEMENTS
from gpt1_ds.plan.rank_sizes import RankSizes
from gpt1_ds.plan.stages import LIVE_LIMIT, stages

FLAT_LIMIT = 500_000_000  # elements that DeepSpeed's plain reduction copies together


@dataclass(frozen=True)
class RankMemory:
    """Bytes on each rank of one stage. `instants` name what is alive together; the largest is the peak."""

    stage: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int  # masters and moments
    buffers: int  # of communication, and what libraries take
    activations: int  # of all micro-batches in flight, and a chunk's logits
    logits: int  # of one chunk
    in_flight: int  # micro-batches
    host: int  # while the run starts
    host_for: str  # what that is
    instants: dict[str, int]

    @property
    def peak_at(self) -> str:
        return max(self.instants, key=lambda name: self.instants[name])

    @property
    def peak(self) -> int:
        return self.instants[self.peak_at]


def memory(config: Config, world: int, vocab_size: int, device: str = "cuda") -> list[RankMemory]:
    """Returns the memory of every stage's ranks, on `cuda` or `cpu`."""
    return [_rank_memory(RankSizes(config, world, stage, device)) for stage in stages(config, vocab_size)]


def peak(config: Config, world: int, vocab_size: int, device: str = "cuda") -> RankMemory:
    """Returns the memory of the ranks that need most."""
    first_of_shape = {stage.shape: stage for stage in reversed(stages(config, vocab_size))}
    ranks = [_rank_memory(RankSizes(config, world, stage, device)) for stage in first_of_shape.values()]
    return max(ranks, key=lambda rank: rank.peak)


def _rank_memory(rank: RankSizes) -> RankMemory:
    step = _Step(rank)
    made = step.made()
    proof = 12 * rank.parameters if step.graphs else 0  # gradients before a pass, after it and after its graph
    return RankMemory(
        stage=rank.stage.number,
        parameters=rank.parameters,
        weights=rank.weights,
        gradients=rank.gradients,
        optimizer=rank.optimizer,
        buffers=rank.buffers,
        activations=rank.in_flight * rank.activations + rank.logits,
        logits=rank.logits,
        in_flight=rank.in_flight,
        host=max(made, proof),
        host_for="gradients that prove CUDA graphs" if proof > made else "parameters in fp32",
        instants={name: round(size) for name, size in step.instants().items()},
    )


class _Step:
    """The instants of a step on one rank. Sizes are bytes where nothing else is said."""

    def __init__(self, rank: RankSizes) -> None:
        self.rank, self.stage, self.config = rank, rank.stage, rank.config
        self.held = rank.weights + rank.optimizer + rank.buffers + rank.gradients_stay * rank.gradients
        self.gradients = 0.0 if rank.gradients_stay else float(rank.gradients)  # that come and go with a step
        self.graphs = rank.device == "cuda" and policy.has_graphs(self.config)

    def instants(self) -> dict[str, float]:
        """Returns the bytes that are alive at each instant, by its name."""
        instants = self._passes()
        instants["reduction of gradients"] = self._reducing()
        instants["update"] = self.held + self._updating()
        if self.graphs:
            pool = max(instants.values()) - self.held
            if self.rank.micro_batches > 1 or self.config.task is not None:
                instants["capture of CUDA graphs"] = self.held + 2 * pool
            instants["evaluation"] = self.held + pool + self._evaluating()
        return {"start of the run": self._building(), **instants}

    # Forward and backward passes

    def _passes(self) -> dict[str, float]:
        """Returns the instants of passes: the first backward pass of a step finds no gradients, later ones add to
        them.
        """
        rank, start = self.rank, self.held + self._gathered()
        instants = self._pass(start, rank.in_flight, adds=False)
        if rank.micro_batches > 1:  # the schedule keeps as many micro-batches in flight while there are as many left
            in_flight = min(rank.in_flight, max(1, rank.micro_batches - 1))
            later = self._pass(start + self.gradients, in_flight, adds=True)
            instants = {name: max(size, later[name]) for name, size in instants.items()}
        return instants

    def _gathered(self) -> float:
        """Returns the bytes of the weights that ZeRO 3 gathers for a pass and keeps until the backward pass is
        through.
        """
        if self.rank.zero < 3 or self.rank.data_ranks == 1:
            return 0.0
        return self.rank.type * min(self.rank.parameters, LIVE_LIMIT)

    def _pass(self, start: float, in_flight: int, adds: bool) -> dict[str, float]:
        """Returns the last forward and the first backward pass while `in_flight` micro-batches are alive; where it
        `adds`, there are gradients of the step.
        """
        rank = self.rank
        others = start + (in_flight - 1) * rank.activations
        waiting = rank.buckets.filled if adds and rank.zero == 1 else 0  # until the step's reduction
        instants = {"end of the forward pass": others + rank.activations + self._loss() + waiting}
        return instants | self._backward(others + rank.buckets.filled, adds)

    def _loss(self) -> float:
        """Returns what the loss works with, its gradients included; after a gather on a CPU also what gloo copies."""
        rank, size = self.rank, 0.0
        if self.stage.has_head:
            size = rank.embedding + rank.state + rank.logits + 4 * LOSS_LOGITS[rank.device]
        if rank.zero == 3 and rank.data_ranks > 1 and rank.device == "cpu":
            size += round(0.75 * min(BUCKET_ELEMENTS, rank.parameters) * rank.type)
        return size

    def _backward(self, before: float, adds: bool) -> dict[str, float]:
        """Through the blocks, last to first. New gradients pile up where there are none to be added to."""
        rank, stage = self.rank, self.stage
        piling = (rank.mixed or not adds) and rank.zero < 2
        head = rank.embedding if stage.has_head else 0
        recomputed = max((rank.needed_by_backward(block) - rank.saved(block) for block in stage.body), default=0.0)
        work = max(4 * rank.state / rank.tensor, self._attention())
        transient = work + stage.largest_matrix * rank.type + recomputed
        saved = sum(map(rank.saved, stage.layers))
        instants = {"gradients of the last block": before + saved + head + transient}
        piled = rank.type * max(0, stage.blocks - 1) * stage.largest_block if piling else 0
        saved = sum(map(rank.saved, stage.body[:1])) + rank.saved_at_ends
        instants["gradients of the first block"] = before + saved + head + transient + piled
        piled = rank.type * stage.blocks * stage.largest_block if piling else 0
        table = rank.embedding if stage.has_table else 0
        instants["gradient of the embedding"] = before + head + table + piled + 2 * rank.hidden
        if rank.mixed and rank.zero == 1:  # added in fp32, for which torch copies the tensor that is added
            copy = 4 * max(stage.largest_matrix, stage.embedding) if adds else 0
            instants["gradients to fp32"] = before + rank.type * rank.parameters + copy
        return instants

    def _attention(self) -> float:
        """Returns exact attention's backward pass on one block of probabilities: four fp32 copies, two in the model's
        type.
        """
        model, rank = self.config.model, self.rank
        if model.attention == "fused":
            return 0.0
        rows = min(ATTENTION_ROWS, model.context)
        scores = self.config.train.micro_batch * model.heads // rank.tensor * rows * model.context
        return min(scores, ATTENTION_SCORES[rank.device]) * (16 + 2 * rank.type)

    # After the passes

    def _reducing(self) -> float:
        """Returns what is alive while gradients are reduced over the data-parallel ranks."""
        rank, stage = self.rank, self.stage
        if rank.zero >= 2:  # a bucket is full while blocks are still to come; it is copied to be reduced
            undone = max(0, stage.blocks - BUCKET_ELEMENTS // max(1, stage.largest_block))
            saved = undone * sum(map(rank.saved, stage.body[:1])) + rank.saved_at_ends + rank.embedding * stage.has_head
            existing = self.gradients if rank.micro_batches > 1 or rank.mixed else 0.0  # in bf16 the partition is first
            gathered = self._gathered() * undone / max(1, stage.blocks)
            buckets = rank.buckets.filled + rank.buckets.copied * self._full_bucket()
            return self.held + existing + saved + gathered + buckets
        if rank.device == "cuda":  # the largest bucket, or a gradient that is larger
            message = min(rank.parameters, max(BUCKET_ELEMENTS, stage.embedding))
            return self.held + self.gradients + rank.buckets.filled + rank.buckets.copied * message
        if rank.zero == 1 and not rank.mixed:
            return self.held + self.gradients + 4 * min(BUCKET_ELEMENTS, rank.parameters)
        flat = rank.data_ranks > 1 and rank.parameters < FLAT_LIMIT
        return self.held + self.gradients + (4 * rank.parameters if flat else 0)

    def _full_bucket(self) -> int:
        """Returns the number of elements of a bucket that the next matrix does not fit in any more."""
        blocks, rest = divmod(min(BUCKET_ELEMENTS, self.rank.parameters), max(1, self.stage.largest_block))
        blocks, largest = min(blocks, self.stage.blocks), max(1, self.stage.largest_matrix)
        return max(largest, blocks * self.stage.largest_block + rest // largest * largest)

    def _updating(self) -> float:
        """Returns gradients and what the optimizer works with, or on a CPU the weights that are gathered."""
        rank, in_fp32 = self.rank, self.rank.partition(4 * self.rank.parameters)
        gathers = rank.device == "cpu" and rank.data_ranks > 1 and rank.zero in (1, 2)
        gathering = rank.type * rank.parameters if gathers else 0
        gradients = in_fp32
        if rank.zero in (1, 2):
            gradients = 0 if rank.gradients_stay else 2 * in_fp32
        watched = 0 if self.config.train.watch == "off" else in_fp32  # masters before the update
        return max(gathering, gradients + watched + rank.muon.workspace + rank.whole.workspace)

    # Before and between steps

    def _evaluating(self) -> float:
        """Returns what one block or a chunk of logits takes where nothing is kept for a backward pass."""
        rank = self.rank
        block = max(map(rank.needed_by_backward, self.stage.body), default=0.0)
        return rank.hidden + max(block, self.stage.has_head * (rank.logits + 4 * LOSS_LOGITS[rank.device]))

    def made(self) -> int:
        """Returns the bytes of the parameters as they are made: in fp32, each drawn at its full size."""
        return 4 * self.rank.parameters + 4 * self.rank.tensor * max(self.stage.largest_matrix, self.stage.embedding)

    def _building(self) -> float:
        """Returns the bytes while the model is made in fp32 and flattened, which on a CPU is the memory that trains."""
        rank = self.rank
        if rank.device != "cpu":
            return 0.0
        if rank.zero == 0:
            return self.made()
        if rank.mixed:
            return rank.parameters * (10 if rank.zero == 1 else 4 + 4 / rank.data_ranks)
        return rank.parameters * (8 + 4 / rank.data_ranks if rank.zero < 3 else 4 + 8 / rank.data_ranks)
