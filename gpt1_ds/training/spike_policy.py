"""Which steps are not to be trusted: a loss or gradient that is not finite, or far above what was usual lately; and
what follows: such a step is left out, the run goes back before it, or ends.

"Usual" is the median of the last `guard.window` steps and "far" is measured in robust standard deviations (1.4826 x the
median absolute deviation; Iglewicz and Hoaglin 1993), of the loss and of the logarithm of the gradient norm. The window
is a part of the training state, so a resumed run judges as the uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common import log
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.config.sections import FEWEST_STEPS, GuardConfig
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.training.state import TrainingState

NORM_NOT_FINITE = "the gradients are not finite"
LEAST = (0.02, 0.1)  # standard deviation of loss (nats) and of log gradient norm: a flat curve is no trap

Window = tuple[tuple[float, float], ...]  # (loss, log gradient norm) of good steps


def spike(settings: GuardConfig, window: Window, loss: float, norm: float) -> str | None:
    """Returns what is wrong with a step of this loss and gradient norm, or None."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        return "the loss is not finite" if not math.isfinite(loss) else NORM_NOT_FINITE
    if not settings.z or len(window) < FEWEST_STEPS:
        return None
    for name, value, past, least in zip(
        ("loss", "gradient norm"), _values(loss, norm), zip(*window, strict=True), LEAST, strict=True
    ):
        usual = median(past)
        z = (value - usual) / max(least, 1.4826 * median(abs(x - usual) for x in past))
        if z > settings.z:
            shown = loss if name == "loss" else norm
            return f"the {name} is {shown:.4g}, {z:.1f} robust standard deviations above the usual (guard.z)"
    return None


def extended(settings: GuardConfig, window: Window, loss: float, norm: float) -> Window:
    """Returns the window after a good step."""
    return (*window, _values(loss, norm))[-settings.window :] if settings.z else window


def divergence(settings: GuardConfig, lowest: float, loss: float) -> str | None:
    """Returns why a run whose lowest validation loss was `lowest` has diverged with this one, or None."""
    if math.isfinite(loss) and not (settings.rise and loss > lowest + settings.rise):
        return None
    if not math.isfinite(loss):
        return "the held-out loss is not finite"
    return f"held-out loss {loss:.4g} is more than guard.rise={settings.rise:g} above its best, {lowest:.4g}"


def _values(loss: float, norm: float) -> tuple[float, float]:
    return loss, math.log(max(norm, 1e-30))


SKIPS_ALLOWED = {"guard": 5, "fp16": 30}  # bad steps in a row; fp16 searches its loss scale that way

ShapeOf = Callable[[int], BatchShape]  # of a batch by its number
Sources = Callable[[int, Sequence[int]], list[dict[str, Any]]]  # (batch number, rows) -> where their text comes from


class SpikePolicy:
    """guard.on_spike. All ranks call `answer` together."""

    def __init__(self, config: Config, engine: Engine, run_dir: RunDir, shape_of: ShapeOf, sources: Sources) -> None:
        self.settings, self.precision = config.guard, config.train.precision
        self.engine, self.run_dir, self.shape_of, self.sources = engine, run_dir, shape_of, sources
        self._state = TrainingState()
        self._spike: str | None = None  # why the present step's update was left out
        self._in_a_row = 0  # bad steps
        self._furthest = 0  # step that a rollback came back from
        if self.settings.on_spike == "skip":  # also of a loss that is not finite where the gradients are
            engine.filter_updates(self._rejects)

    def begin_step(self, state: TrainingState) -> None:
        """The next step follows `state`."""
        self._state, self._spike = state, None

    def problem(self, result: StepResult) -> str | None:
        """Returns why the step cannot be trusted, as far as this rank can see."""
        return self._spike or spike(self.settings, self._state.window, result.loss, result.grad_norm)

    def accept(self, step: int) -> None:
        """A good step ends a row of bad ones, unless it repeats what was before a rollback: that proves nothing."""
        if step > self._furthest:
            self._in_a_row = 0

    def answer(self, step: int, problem: str | None) -> bool:
        """Records a step that some rank does not trust, and counts it. Returns whether to go back before it. Raises
        TrainingError where it ends the run.
        """
        # the first that any rank sees: ranks that went on with reasons of their own would not meet below
        problem = next(filter(None, self.engine.groups.gather(problem)), "a rank found a spike")
        action = self.settings.on_spike
        searching = self.precision == "fp16" and problem == NORM_NOT_FINITE  # for its loss scale
        self._in_a_row += 1
        if not searching or self._in_a_row > SKIPS_ALLOWED["fp16"]:
            self._record(step, problem)
        too_many = self._in_a_row > SKIPS_ALLOWED["fp16" if searching else "guard"]
        if too_many and action != "raise" and self.engine.groups.rank == 0:  # else the spike's event says so
            self.run_dir.add_event("diverged", step=step, problem=f"{problem} ({self._in_a_row} steps in a row)")
        if too_many or (action == "raise" and not searching):
            raise TrainingError(self._explanation(step, problem))
        if action == "rollback" and not searching:
            self._furthest = max(self._furthest, step)
            return True
        return False

    def _rejects(self, loss: float, norm: float) -> bool:
        self._spike = spike(self.settings, self._state.window, loss, norm)
        return self._spike is not None

    def _record(self, step: int, problem: str) -> None:
        """An event with the micro-batches whose loss was not finite, by rank, and the documents of their rows (of the
        whole batch where no loss says which).
        """
        number, action = self._state.batch_number(step), self.settings.on_spike
        bad, shape = self._bad_micro_batches(), self.shape_of(number)
        here = shape.rows()
        rows = [int(row) for place in bad for row in here[place]]
        gathered = self.engine.groups.gather((bad, rows))
        if self.engine.groups.rank:
            return
        ranks = {str(rank): numbers for rank, (numbers, _) in enumerate(gathered) if numbers}
        suspects = sorted({row for _, rows in gathered for row in rows}) or range(shape.global_batch)
        documents = self.sources(number, list(suspects))
        details = {"action": action, "problem": problem, "batch": number, "micro_batches_of_ranks": ranks}
        self.run_dir.add_event("spike", step=step, **details, rows=documents)
        if action != "raise":
            log.say(f"step {step}: {problem}; {action} (events.jsonl names the documents)")

    def _explanation(self, step: int, problem: str) -> str:
        ranks = [rank for rank, bad in enumerate(self.engine.groups.gather(bool(self._bad_micro_batches()))) if bad]
        where = f" on rank {', '.join(map(str, ranks))}" if ranks else ""
        again = f" ({self._in_a_row} steps in a row)" if self._in_a_row > 1 else ""
        saved = "the last checkpoint is intact" if steps_in(self.run_dir.checkpoints) else "nothing was saved yet"
        return (
            f"step {step}{where}: {problem}{again}; {saved}. {self.run_dir.events} names the "
            "documents of the batch; look at them, lower optimizer.lr, or set guard.on_spike=skip or rollback"
        )

    def _bad_micro_batches(self) -> list[int]:
        return [number for number, loss in enumerate(self.engine.micro_losses) if not math.isfinite(float(loss))]
