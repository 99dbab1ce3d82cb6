"""What a rank sends in a step, by the process group that carries it; tests/fakecuda compares the bytes.

    tensor      an all-reduce of a micro-batch's states after each sub-layer of a block, in each of its passes (Shoeybi
                et al. 2019), one of the embedded tokens, one of the head's gradient, one of the gradient that each
                cross attention has for the encoder's states, three numbers of the loss for each predicted token.
                Sequence parallelism gathers and scatters instead, gathers once more in the backward pass (Korthikanti
                et al. 2022), and adds up the gradients of parameters that are not cut.
    pipeline    a micro-batch's states and facts to the next stage, their gradient back; the gradients of
                what several stages hold: a tied embedding, blocks that two stacks share
    data        gradients, and the weights that ZeRO gathers; parts of matrices and sums of an optimizer, to a stage

An all-reduce of B bytes among n ranks sends 2 (n - 1) / n x B, as rings do, a gather or a scatter half of it. Left out:
a step's scalars (loss, norm, flags) and the padding of what is cut into equal parts, together less than 1 KB; and the
tables of relative positions, 1 or 2 KB that go from stage to stage with the states of every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.architecture.facts import COLUMNS
from gpt1_ds.config import Config
from gpt1_ds.plan.muon_update import MuonUpdate
from gpt1_ds.plan.stages import LIVE_LIMIT, Stage
from gpt1_ds.plan.whole_parameters import WholeParametersUpdate

LOSS_NUMBERS = 3  # fp32, of each token: the largest log-sum-exp of a rank, the sum over ranks, the label's logit
NUMBER = 8  # bytes of one of a sequence's facts

Reductions = list[tuple[float, float]]  # (all-reduces, bytes of each); a gather or a scatter is half an all-reduce


@dataclass(frozen=True)
class Sent:
    """Bytes that one rank sends in a step, by group."""

    tensor: float
    pipeline: float
    data: float


def overlaps(device: str) -> bool:
    """Returns whether gradients are reduced over the data-parallel ranks under a backward pass: each bucket begins as
    soon as it is complete, in every engine (engine/deepspeed/overlap.py, engine/deepspeed/zero.py).
    """
    return device == "cuda"


class Communication:
    """Counts what `world` ranks of a configuration send. States are in the model's type, [S, B, D] of a micro-batch."""

    def __init__(self, config: Config, world: int) -> None:
        train, self.parallel = config.train, config.parallel
        self.config, self.world = config, world
        self.tensor, self.stages = self.parallel.tensor, self.parallel.pipeline
        self.data = world // (self.tensor * self.stages)
        self.micro_batches = train.global_batch // (train.micro_batch * self.data)
        self.rows = train.micro_batch
        self.tokens = self.rows * config.row.fed  # of a micro-batch
        self.type = 4 if train.precision == "fp32" else 2
        self.gradient = 2 if train.precision == "fp16" else 4  # bytes of an element that is reduced over the data ranks
        self.state = self.tokens * config.model.width * self.type
        self.recompute = train.recompute == "block"

    def sent(self, stage: Stage) -> Sent:
        """Returns the bytes that a rank of `stage` sends."""
        ring = 2 * (self.tensor - 1) / self.tensor
        tensor = sum(count * size for way in self.reductions(stage) for count, size in way)
        rules = MuonUpdate(self.config, self.world, stage), WholeParametersUpdate(self.config, self.world, stage)
        data = self._to_data_ranks(stage) + sum(rule.sent for rule in rules)
        return Sent(self.micro_batches * ring * tensor, self._to_other_stages(stage), data)

    def reductions(self, stage: Stage) -> tuple[Reductions, Reductions]:
        """Returns the reductions over tensor-parallel ranks for one micro-batch, in its (forward, backward) passes."""
        sequence, state, row = self.parallel.sequence, self.state, self.config.row
        memory, last = (state * positions / row.fed for positions in (row.stacks[0], row.stacks[-1]))
        halves = 0.5 if sequence else 0.0
        crossing = [layer for layer in stage.body if layer.has("cross.q.weight")]
        passes = sum((3 if layer in crossing else 2) * layer.costs.part for layer in stage.body)
        forward: Reductions = [(passes, state), (halves * len(crossing), memory)]
        backward: Reductions = [
            (passes * (1 + halves + self.recompute), state),
            (len(crossing) * (1 + halves * self.recompute), memory),
        ]
        if stage.has_table:
            forward.append((1, state))
            backward.append((halves, state))
        if stage.has_head:
            forward += [(halves, last), (LOSS_NUMBERS, 4 * self.rows * row.predicted)]
            backward.append((1 - halves, last))
        if sequence:
            backward += [(1, self.type * size) for size in stage.uncut]
        return forward, backward

    @property
    def between_stages(self) -> float:
        """Returns the bytes of a micro-batch's states that one rank passes on."""
        return self.state / (self.tensor if self.parallel.sequence else 1)

    @property
    def facts(self) -> int:
        """Returns the bytes of a sequence's facts; of documents that do not see one another, also their bounds."""
        if self.config.task is not None or not self.config.data.apart:
            return NUMBER * COLUMNS
        first, *second = self.config.row.stacks
        return NUMBER * (COLUMNS + 2 * first + 4 * sum(second))

    def gathered_again(self, stage: Stage) -> int:
        """Returns the number of elements that ZeRO 3 frees after the forward pass and gathers for the backward pass: no
        more stay than it may hold, less than a matrix fewer.
        """
        return max(0, stage.freed - LIVE_LIMIT)

    def _to_other_stages(self, stage: Stage) -> float:
        if self.stages == 1:
            return 0.0
        onward = (self.between_stages + self.facts * self.rows) * (stage.number < self.stages - 1)
        back = self.between_stages * (stage.number > 0)
        return self.micro_batches * (onward + back) + 4 * stage.replicated

    def _to_data_ranks(self, stage: Stage) -> float:
        zero, often, held = self.parallel.zero, self.micro_batches, stage.parameters
        if zero == 3:
            weights = often * (stage.freed + self.gathered_again(stage)) + stage.parameters - stage.freed
            size = often * self.gradient * held + self.type * weights
        else:
            size = 2 * self.gradient * held * (often if zero == 2 else 1) + self.type * held * (zero > 0)
        return (self.data - 1) / self.data * size
