"""Memory of each rank: what it holds all the time, what a micro-batch leaves behind, and what an update takes.

What is held differs by optimizer (read off DeepSpeed 0.19 and measured; bytes per parameter of the rank, d ranks share
data):

                          weights   masters   moments   gradients
    ZeRO 0, fp32             4          -         8        4
    ZeRO 1, fp32             4         4/d       8/d       4
    ZeRO 1, bf16             2         4/d       8/d       4, and 2 while a backward pass runs
    ZeRO 2                 4 or 2      4/d       8/d      4/d, and a bucket
    ZeRO 3             4/d or 2/d      4/d       8/d      4/d, a bucket, and the gathered weights of a pass

Other optimizers than AdamW keep other moments and need working memory (muon_update.py, whole_parameters.py).

Gradients need buckets to be reduced over data-parallel ranks, by DeepSpeed 0.19.8 and engine/deepspeed/overlap.py. On
CUDA:

                          buckets of a backward pass              while one is reduced
    ZeRO 0                -                                       a copy, which stays as the gradients
    ZeRO 1, bf16          slices of the fp32 gradients            -
    ZeRO 1, fp32, fp16    two in fp32, until a step is reduced    a copy, and one in the type that is sent
    ZeRO 2                two in the model's type                 the same
    ZeRO 3                one, held all the time, and its copy    gradients that its stream has yet to read

Two of them take turns: one is filled while the other is reduced. A single rank has one. On a CPU nothing overlaps, and
what is not written takes no memory.

What a layer saves for its backward pass stands in architecture/ (in the model's type; a dropout mask has the type of
what it multiplies). With sequence parallelism all of it is cut over the tensor-parallel ranks, with recomputation only
a block's input is kept.

The peak is the largest of a step's instants, not the sum of everything. It is what `torch.cuda.max_memory_allocated`
counts; a CPU's heap may keep some of what was freed.

Estimated, because no GPU has measured it: CUDA graphs of micro-batches keep what a pass needs, all of them in one pool,
from capture to the end of the run. The pool is no larger than an ordinary pass, but stays while others need memory:
evaluation, and the passes of the other kinds of micro-batches (the first of a step, later ones, the last) that come
before those have graphs, too. Of a task's many lengths most have none: their passes need memory beside the pool. Static
inputs, 20 bytes a token, and the graphs themselves are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.architecture.blocking import ATTENTION_ROWS, ATTENTION_SCORES, LOSS_LOGITS, chunk_tokens
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.config import Config, policy
from gpt1_ds.config.parallel import BUCKET_ELEMENTS
from gpt1_ds.plan.muon_update import MuonUpdate
from gpt1_ds.plan.stages import Stage, stages
from gpt1_ds.plan.whole_parameters import WholeParametersUpdate


@dataclass(frozen=True)
class Buckets:
    """Bytes."""

    held: int  # from step to step
    filled: int  # by a backward pass, from its first gradient on
    copied: int  # of each element that is reduced


def buckets(config: Config, data: int, parameters: int, device: str) -> Buckets:
    """Returns what a rank with `parameters` elements needs, one of `data` that share data, on `cuda` or `cpu`."""
    zero, precision = config.parallel.zero, config.train.precision
    sent = 2 if precision == "fp16" else 4
    if device == "cpu":
        return Buckets(held=4 * min(BUCKET_ELEMENTS, parameters) * (zero == 3), filled=0, copied=8 * (zero >= 2))
    if zero == 0 or (zero == 1 and precision == "bf16"):
        return Buckets(held=0, filled=0, copied=4 * (zero == 0 and data > 1))
    if zero == 3:
        return Buckets(held=sent * BUCKET_ELEMENTS, filled=sent * BUCKET_ELEMENTS, copied=4)
    element = 4 if zero == 1 or precision == "fp32" else 2
    turns = 2 if data > 1 else 1
    return Buckets(held=0, filled=turns * element * BUCKET_ELEMENTS, copied=element + sent * (sent != element))


FLAT_LIMIT = 500_000_000  # elements that DeepSpeed's plain reduction copies together
LIVE_LIMIT = 1_000_000_000  # gathered elements that ZeRO 3 keeps (DeepSpeed's stage3_max_live_parameters)
LIBRARIES = {"cpu": 56 << 20, "cuda": 0}  # what libraries take once a step has run, after their import


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
    return [_Rank(config, world, stage, device).memory() for stage in stages(config, vocab_size)]


def peak(config: Config, world: int, vocab_size: int, device: str = "cuda") -> RankMemory:
    """Returns the memory of the ranks that need most."""
    shapes = {stage.shape: stage for stage in reversed(stages(config, vocab_size))}
    return max((_Rank(config, world, stage, device).memory() for stage in shapes.values()), key=lambda rank: rank.peak)


class _Rank:
    """The arithmetic of one stage. Lengths are elements where a name says so, else bytes."""

    def __init__(self, config: Config, world: int, stage: Stage, device: str) -> None:
        parallel, train, model = config.parallel, config.train, config.model
        self.config, self.stage, self.device = config, stage, device
        self.tensor, self.zero, self.pipelined = parallel.tensor, parallel.zero, parallel.pipelined
        self.data = world // (parallel.tensor * parallel.pipeline)
        self.micro_batches = train.global_batch // (train.micro_batch * self.data)
        self.type = 4 if train.precision == "fp32" else 2
        self.mixed = self.type == 2
        self.gradients_stay = self.zero == 3 or (self.zero == 1 and self.mixed)  # their memory is held between steps
        self.state = train.micro_batch * config.row.fed * model.width * self.type  # all S x B x D states
        self.hidden = self.state // (self.tensor if parallel.sequence else 1)  # as it lies between blocks
        self.parameters = stage.parameters
        self.matrix = stage.embedding * self.type
        row = stage.columns * self.type
        predicted = config.row.predicted
        self.logits = stage.head * row * chunk_tokens(train.micro_batch * predicted, max(1, row), device)
        self.in_flight = min(parallel.pipeline - stage.number, self.micro_batches)
        self.muon, self.whole = MuonUpdate(config, world, stage), WholeParametersUpdate(config, world, stage)
        self.buckets = buckets(config, self.data, self.parameters, device)
        self.graphs = device == "cuda" and policy.has_graphs(config)

    def memory(self) -> RankMemory:
        instants = {"start of the run": self._building(), **self._step()}
        return RankMemory(
            stage=self.stage.number,
            parameters=self.parameters,
            weights=self._weights(),
            gradients=self._gradients(),
            optimizer=self._optimizer(),
            buffers=self._buffers(),
            activations=self.in_flight * self._activations() + self.logits,
            logits=self.logits,
            in_flight=self.in_flight,
            host=max(self._made(), self._proof()),
            host_for="gradients that prove CUDA graphs" if self._proof() > self._made() else "parameters in fp32",
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
        adamw = self._cut(self.parameters * (8 if self.zero == 0 else 12))
        return round(adamw - 4 * self.muon.local_elements - self.whole.spared)

    def _gradients(self) -> int:
        """Once all of a step's are there."""
        return 4 * self.parameters // (self.data if self.zero >= 2 else 1)

    def _buffers(self) -> int:
        return LIBRARIES[self.device] + self._received() + self.buckets.held

    def _received(self) -> int:
        """What a pipeline keeps of its last micro-batches: inputs and their gradients, on the last stage states."""
        if not self.pipelined:
            return 0
        kept = max(2, self.in_flight) if self.micro_batches > 1 else 1
        inputs = 0 if self.stage.tokens else (kept + 1) * self.hidden
        return inputs + (kept * self.hidden if self.stage.head else 0)

    # What a micro-batch leaves behind

    def _saved(self, layer: Layer) -> float:
        """By one layer that is not recomputed."""
        return layer.costs.saved * self.hidden + layer.costs.saved_cut * self.state / self.tensor

    def _kept(self, layer: Layer) -> float:
        again = layer.depth is not None and self.config.train.recompute == "block"
        return self.hidden * layer.costs.part if again else self._saved(layer)

    def _ends(self) -> float:
        """Saved before the first block and after the last."""
        return sum(self._kept(layer) for layer in self.stage.layers if layer.depth is None)

    def _activations(self) -> int:
        return round(sum(map(self._kept, self.stage.layers)))

    # A step's instants

    def _step(self) -> dict[str, float]:
        """The first backward pass of a step finds no gradients, later ones add to those of the passes before."""
        held = self._weights() + self._optimizer() + self._buffers() + self.gradients_stay * self._gradients()
        gradients = 0.0 if self.gradients_stay else float(self._gradients())
        start, flight = held + self._gathered(), self.in_flight
        instants = self._pass(start, flight, False)
        if self.micro_batches > 1:  # the schedule keeps `flight` micro-batches in flight while there are as many left
            later = self._pass(start + gradients, min(flight, max(1, self.micro_batches - 1)), True)
            instants = {name: max(size, later[name]) for name, size in instants.items()}
        instants["reduction of gradients"] = self._reducing(held, gradients)
        instants["update"] = held + self._updating()
        if self.graphs:
            pool = max(instants.values()) - held
            if self.micro_batches > 1 or self.config.task is not None:
                instants["capture of CUDA graphs"] = held + 2 * pool
            instants["evaluation"] = held + pool + self._evaluating()
        return instants

    def _pass(self, start: float, flight: int, existing: bool) -> dict[str, float]:
        """The last forward and the first backward pass with `flight` micro-batches alive."""
        others = start + (flight - 1) * self._activations()
        waiting = self.buckets.filled if existing and self.zero == 1 else 0  # until the step's reduction
        instants = {"end of the forward pass": others + self._activations() + self._workspace() + waiting}
        return instants | self._backward(others + self.buckets.filled, existing)

    def _backward(self, before: float, existing: bool) -> dict[str, float]:
        """Through the blocks, last to first. New gradients pile up where there are none to be added to."""
        stage = self.stage
        new = 4 if not self.mixed else 2
        piling = (self.mixed or not existing) and self.zero < 2
        again = max((self._saved(layer) - self._kept(layer) for layer in stage.body), default=0.0)
        head = self.matrix if stage.head else 0
        passing = max(4 * self.state / self.tensor, self._attending())
        transient = passing + stage.largest * new + again
        saved = sum(map(self._kept, stage.layers))
        instants = {"gradients of the last block": before + saved + head + transient}
        piled = new * max(0, stage.blocks - 1) * stage.block if piling else 0
        saved = sum(map(self._kept, stage.body[:1])) + self._ends()
        instants["gradients of the first block"] = before + saved + head + transient + piled
        piled = new * stage.blocks * stage.block if piling else 0
        looked_up = self.matrix if stage.tokens else 0
        instants["gradient of the embedding"] = before + head + looked_up + piled + 2 * self.hidden
        if self.mixed and self.zero == 1:  # added in fp32, for which torch copies the tensor that is added
            largest = max(stage.largest, stage.embedding if stage.tokens or stage.head else 0)
            instants["gradients to fp32"] = before + new * self.parameters + (4 * largest if existing else 0)
        return instants

    def _attending(self) -> float:
        """Exact attention's backward pass on one block of probabilities: four fp32 copies, two in the model's type."""
        model, train = self.config.model, self.config.train
        if model.attention == "fused":
            return 0.0
        scores = train.micro_batch * model.heads // self.tensor * min(ATTENTION_ROWS, model.context) * model.context
        return min(scores, ATTENTION_SCORES[self.device]) * (16 + 2 * self.type)

    def _gathered(self) -> float:
        """Weights that ZeRO 3 gathers for a pass and keeps until the backward pass is through."""
        if self.zero < 3 or self.data == 1:
            return 0.0
        return self.type * min(self.parameters, LIVE_LIMIT)

    def _workspace(self) -> float:
        """Returns the working memory of the loss, whose gradients come with it; after a gather on a CPU, what gloo
        copies.
        """
        size = 0.0
        if self.stage.head:
            size = self.matrix + self.state + self.logits + 4 * LOSS_LOGITS[self.device]
        if self.zero == 3 and self.data > 1 and self.device == "cpu":
            size += round(0.75 * min(BUCKET_ELEMENTS, self.parameters) * self.type)
        return size

    def _evaluating(self) -> float:
        """What one block or a chunk of logits takes where nothing is kept for a backward pass."""
        block = max(map(self._saved, self.stage.body), default=0.0)
        return self.hidden + max(block, self.stage.head * (self.logits + 4 * LOSS_LOGITS[self.device]))

    def _reducing(self, held: float, gradients: float) -> float:
        if self.zero >= 2:
            # a bucket is full while blocks are still to come; it is copied to be reduced
            undone = max(0, self.stage.blocks - BUCKET_ELEMENTS // max(1, self.stage.block))
            saved = undone * sum(map(self._kept, self.stage.body[:1])) + self._ends() + self.matrix * self.stage.head
            found = gradients if self.micro_batches > 1 or self.mixed else 0.0  # in bf16 the partition comes first
            waiting = self._gathered() * undone / max(1, self.stage.blocks)
            return held + found + saved + waiting + self.buckets.filled + self.buckets.copied * self._full()
        if self.device == "cuda":  # the largest bucket, or a gradient that is larger
            message = min(self.parameters, max(BUCKET_ELEMENTS, self.stage.embedding))
            return held + gradients + self.buckets.filled + self.buckets.copied * message
        if self.zero == 1 and not self.mixed:
            return held + gradients + 4 * min(BUCKET_ELEMENTS, self.parameters)
        return held + gradients + (4 * self.parameters if self.data > 1 and self.parameters < FLAT_LIMIT else 0)

    def _full(self) -> int:
        """Elements of a bucket that the next matrix does not fit in any more."""
        blocks, rest = divmod(min(BUCKET_ELEMENTS, self.parameters), max(1, self.stage.block))
        blocks, largest = min(blocks, self.stage.blocks), max(1, self.stage.largest)
        return max(largest, blocks * self.stage.block + rest // largest * largest)

    def _updating(self) -> float:
        gathering = self.type * self.parameters if self.device == "cpu" and self.data > 1 and self.zero in (1, 2) else 0
        gradients = self._cut(4 * self.parameters)
        if self.zero in (1, 2):
            gradients = 0 if self.gradients_stay else 2 * gradients
        watched = 0 if self.config.train.watch == "off" else self._cut(4 * self.parameters)  # masters before the update
        return max(gathering, gradients + watched + self.muon.workspace + self.whole.workspace)

    def _made(self) -> int:
        """On the host: parameters in fp32, each drawn at its full size."""
        return 4 * self.parameters + self._drawn()

    def _proof(self) -> int:
        """On the host: gradients before a pass, after it and after its graph."""
        return 12 * self.parameters if self.graphs else 0

    def _drawn(self) -> int:
        """Returns the bytes of the largest parameter while it is drawn."""
        stage = self.stage
        return 4 * self.tensor * max(stage.largest, stage.embedding if stage.tokens or stage.head else 0)

    def _building(self) -> float:
        """The model is made in fp32, then flattened; on a CPU that is the memory that trains."""
        if self.device != "cpu":
            return 0.0
        if self.zero == 0:
            return self._made()
        if self.mixed:
            return self.parameters * (10 if self.zero == 1 else 4 + 4 / self.data)
        return self.parameters * (8 + 4 / self.data if self.zero < 3 else 4 + 8 / self.data)
