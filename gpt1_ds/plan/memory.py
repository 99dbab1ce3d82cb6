"""Memory of each rank: what it holds all the time, what a micro-batch leaves behind, and the instant that needs most.

What is held differs by optimizer (read off DeepSpeed 0.19 and measured; bytes per parameter of the rank, d ranks share
data):

                          weights   masters   moments   gradients
    ZeRO 0, fp32             4          -         8        4
    ZeRO 1, fp32             4         4/d       8/d       4
    ZeRO 1, bf16             2         4/d       8/d       4, and 2 while a backward pass runs
    ZeRO 2                 4 or 2      4/d       8/d      4/d, and a bucket
    ZeRO 3             4/d or 2/d      4/d       8/d      4/d, a bucket, and the gathered weights of a pass

A block saves for its backward pass, in units of S x B x D of the model's type (t ranks share matrices; a dropout mask
has the type of what it multiplies):

    its input, the norms' inputs, the middle state, two masks            6
    q, k, v, attention's output, and twice the feed-forward width   (4 + 2 F / D) / t
    (with sequence parallelism all of it is cut over t; with recomputation only the input is kept)

The peak is the largest of a step's instants, not the sum of everything. It is what `torch.cuda.max_memory_allocated`
counts; a processor's heap may keep some of what was freed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.config import Config
from gpt1_ds.plan.count import chunk_tokens
from gpt1_ds.plan.shares import Share, shares

BUCKET = 25_000_000  # elements of a reduction or a gather (parallel/ds_config.py)
FLAT_LIMIT = 500_000_000  # elements that DeepSpeed's plain reduction copies together
LIVE_LIMIT = 1_000_000_000  # gathered elements that ZeRO 3 keeps (DeepSpeed's stage3_max_live_parameters)
ROWS = 128  # of attention's blocks
SCORES = {"cpu": 1 << 19, "cuda": 1 << 26}  # elements of attention's blocks (model/attention.py)
LOGITS = {"cpu": 1 << 18, "cuda": 1 << 26}  # and of the loss's (model/cross_entropy.py)
LIBRARIES = {"cpu": 56 << 20, "cuda": 0}  # what libraries take once a step has run, behind their import


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
    host: int  # while the run starts: parameters are made in fp32 on the host, each drawn at its full size
    instants: dict[str, int]

    @property
    def peak_at(self) -> str:
        return max(self.instants, key=lambda name: self.instants[name])

    @property
    def peak(self) -> int:
        return self.instants[self.peak_at]


def memory(config: Config, world: int, vocab_size: int, device: str = "cuda") -> list[RankMemory]:
    """Of every stage's ranks, on `cuda` or `cpu`."""
    return [_Rank(config, world, share, device).memory() for share in shares(config, vocab_size)]


def peak(config: Config, world: int, vocab_size: int, device: str = "cuda") -> RankMemory:
    """Of the ranks that need most."""
    kinds = {share.kind: share for share in reversed(shares(config, vocab_size))}
    return max((_Rank(config, world, share, device).memory() for share in kinds.values()), key=lambda rank: rank.peak)


class _Rank:
    """The arithmetic of one stage. Lengths are elements where a name says so, else bytes."""

    def __init__(self, config: Config, world: int, share: Share, device: str) -> None:
        parallel, train, model = config.parallel, config.train, config.model
        self.config, self.share, self.device = config, share, device
        self.tensor, self.zero, self.pipelined = parallel.tensor, parallel.zero, parallel.pipelined
        self.data = world // (parallel.tensor * parallel.pipeline)
        self.micro_batches = train.global_batch // (train.micro_batch * self.data)
        self.type = 4 if train.precision == "fp32" else 2
        self.mixed = self.type == 2
        self.state = train.micro_batch * model.context * model.width * self.type  # one S x B x D tensor
        self.hidden = self.state // (self.tensor if parallel.sequence else 1)  # as it lies between blocks
        self.parameters = share.parameters
        self.matrix = share.embedding * self.type
        row = share.columns * self.type
        self.logits = share.head * row * chunk_tokens(train.micro_batch * model.context, max(1, row), device)
        self.in_flight = min(parallel.pipeline - share.stage, self.micro_batches)

    def memory(self) -> RankMemory:
        instants = {"start of the run": self._building(), **self._step()}
        return RankMemory(
            stage=self.share.stage,
            parameters=self.parameters,
            weights=self._weights(),
            gradients=self._gradients(),
            optimizer=self._optimizer(),
            buffers=self._buffers(),
            activations=self.in_flight * self._activations() + self.logits,
            logits=self.logits,
            in_flight=self.in_flight,
            host=4 * self.parameters + self._drawn(),
            instants={name: round(size) for name, size in instants.items()},
        )

    # What is held from step to step

    def _cut(self, size: float) -> float:
        """Bytes of this rank's part of what ZeRO cuts over the data-parallel ranks."""
        return size / self.data if self.zero else size

    def _weights(self) -> int:
        size = self.parameters * self.type
        return size // self.data if self.zero == 3 else size

    def _optimizer(self) -> int:
        return round(self._cut(self.parameters * (8 if self.zero == 0 else 12)))

    def _gradients(self) -> int:
        """Once all of a step's are there."""
        return 4 * self.parameters // (self.data if self.zero >= 2 else 1)

    def _gradients_stay(self) -> bool:
        """Whether their memory is held between steps, too."""
        return self.zero == 3 or (self.zero == 1 and self.mixed)

    def _buffers(self) -> int:
        bucket = 4 * (min(BUCKET, self.parameters) if self.device == "cpu" else BUCKET)
        return LIBRARIES[self.device] + self._received() + (bucket if self.zero == 3 else 0)

    def _received(self) -> int:
        """What a pipeline keeps of its last micro-batches: inputs and their gradients, on the last stage states."""
        if not self.pipelined:
            return 0
        kept = max(2, self.in_flight) if self.micro_batches > 1 else 1
        inputs = 0 if self.share.tokens else (kept + 1) * self.hidden
        return inputs + (kept * self.hidden if self.share.head else 0)

    def _held(self) -> float:
        return (
            self._weights() + self._optimizer() + self._buffers() + (self._gradients() if self._gradients_stay() else 0)
        )

    # What a micro-batch leaves behind

    def _block(self) -> float:
        """Saved by one block that is not recomputed."""
        model = self.config.model
        masks = 2 * (model.residual_dropout > 0)
        copies = 4 + (model.attention == "fused") + 2 * model.ffn_width / model.width
        return (4 + masks) * self.hidden + copies * self.state / self.tensor

    def _ends(self) -> int:
        """Saved before the first block and behind the last."""
        mask = self.share.tokens and self.config.model.embedding_dropout > 0
        return (mask + self.share.head) * self.hidden

    def _kept_block(self) -> float:
        return self.hidden if self.config.train.recompute == "block" else self._block()

    def _activations(self) -> int:
        return round(self.share.blocks * self._kept_block() + self._ends())

    # A step's instants

    def _step(self) -> dict[str, float]:
        """The first backward pass of a step finds no gradients, later ones add to those of the passes before."""
        stays = self._gradients_stay()
        held, gradients = self._held(), 0.0 if stays else float(self._gradients())
        start, flight = held + self._gathered(), self.in_flight
        instants = self._pass(start, flight, False)
        if self.micro_batches > 1:  # the schedule keeps `flight` micro-batches in flight while there are as many left
            later = self._pass(start + gradients, min(flight, max(1, self.micro_batches - 1)), True)
            instants = {name: max(size, later[name]) for name, size in instants.items()}
        instants["reduction of gradients"] = self._reducing(held, gradients)
        instants["update"] = held + self._updating()
        return instants

    def _pass(self, start: float, flight: int, existing: bool) -> dict[str, float]:
        """The last forward and the first backward pass with `flight` micro-batches alive."""
        others = start + (flight - 1) * self._activations()
        instants = {"end of the forward pass": others + self._activations() + self._workspace()}
        return instants | self._backward(others, existing)

    def _backward(self, before: float, existing: bool) -> dict[str, float]:
        """Through the blocks, last to first. New gradients pile up where there are none to be added to."""
        share = self.share
        new = 4 if not self.mixed else 2
        piling = (self.mixed or not existing) and self.zero < 2
        again = self._block() - self.hidden if self.config.train.recompute == "block" else 0
        head = self.matrix if share.head else 0
        passing = max(4 * self.state / self.tensor, self._attending())
        transient = passing + share.largest * new + again
        saved = self._kept_block() * share.blocks + self._ends()
        instants = {"gradients of the last block": before + saved + head + transient}
        piled = new * (share.blocks - 1) * share.block if piling else 0
        saved = self._kept_block() + self._ends()
        instants["gradients of the first block"] = before + saved + head + transient + piled
        piled = new * share.blocks * share.block if piling else 0
        looked_up = self.matrix if share.tokens else 0
        instants["gradient of the embedding"] = before + head + looked_up + piled + 2 * self.hidden
        if self.mixed and self.zero == 1:  # added in fp32, for which torch copies the tensor that is added
            largest = max(share.largest, share.embedding if share.tokens or share.head else 0)
            instants["gradients to fp32"] = before + new * self.parameters + (4 * largest if existing else 0)
        return instants

    def _attending(self) -> float:
        """Exact attention's backward pass on one block of probabilities: four fp32 copies, two in the model's type."""
        model, train = self.config.model, self.config.train
        if model.attention == "fused":
            return 0.0
        scores = train.micro_batch * model.heads // self.tensor * min(ROWS, model.context) * model.context
        return min(scores, SCORES[self.device]) * (16 + 2 * self.type)

    def _gathered(self) -> float:
        """Weights that ZeRO 3 gathers for a pass and keeps until the backward pass is through."""
        if self.zero < 3 or self.data == 1:
            return 0.0
        return self.type * min(self.parameters, LIVE_LIMIT)

    def _workspace(self) -> float:
        """Of the loss, whose gradients come with it; behind a gather on a processor, what gloo copies."""
        size = 0.0
        if self.share.head:
            size = self.matrix + self.state + self.logits + 4 * LOGITS[self.device]
        if self.zero == 3 and self.data > 1 and self.device == "cpu":
            size += round(0.75 * min(BUCKET, self.parameters) * self.type)
        return size

    def _reducing(self, held: float, gradients: float) -> float:
        bucket = 4 * min(BUCKET, self.parameters)
        if self.zero >= 2:
            # a bucket is full while blocks are still to come; it is copied to be reduced. ZeRO 3 holds it all the time
            undone = max(0, self.share.blocks - BUCKET // max(1, self.share.block))
            saved = undone * self._kept_block() + self._ends() + self.matrix * self.share.head
            found = gradients if self.micro_batches > 1 or self.mixed else 0.0  # in bf16 the partition comes first
            waiting = self._gathered() * undone / max(1, self.share.blocks)
            return held + found + saved + 2 * self._filled() + waiting
        if self.zero == 1 and not self.mixed:
            return held + gradients + bucket
        return held + gradients + (4 * self.parameters if self.data > 1 and self.parameters < FLAT_LIMIT else 0)

    def _filled(self) -> int:
        """Bytes of a bucket that the next matrix does not fit in any more."""
        blocks, rest = divmod(min(BUCKET, self.parameters), max(1, self.share.block))
        blocks, largest = min(blocks, self.share.blocks), max(1, self.share.largest)
        return 4 * max(largest, blocks * self.share.block + rest // largest * largest)

    def _updating(self) -> float:
        gathering = self.type * self.parameters if self.device == "cpu" and self.data > 1 and self.zero in (1, 2) else 0
        gradients = 4 * self.parameters
        if self.zero == 0:
            return gradients
        if self.zero == 3:
            return self._cut(gradients)
        return max(gathering, 0 if self._gradients_stay() else 2 * self._cut(gradients))

    def _drawn(self) -> int:
        """Of the largest parameter."""
        share = self.share
        return 4 * self.tensor * max(share.largest, share.embedding if share.tokens or share.head else 0)

    def _building(self) -> float:
        """The model is made in fp32, then flattened; on a processor that is the memory that trains."""
        if self.device != "cpu":
            return 0.0
        if self.zero == 0:
            return 4 * self.parameters + self._drawn()
        if self.mixed:
            return self.parameters * (10 if self.zero == 1 else 4 + 4 / self.data)
        return self.parameters * (8 + 4 / self.data if self.zero < 3 else 4 + 8 / self.data)
