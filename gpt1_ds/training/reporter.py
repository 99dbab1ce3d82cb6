"""What people see of a run: lines, on a terminal a progress bar below them, and the W&B mirror. Rank 0 only."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path

from gpt1_ds.common import log, progress
from gpt1_ds.common.units import count, duration
from gpt1_ds.tracking.mirror import Mirror
from gpt1_ds.tracking.record import EvalRecord, TaskRecord, TrainRecord


class Reporter:
    def __init__(self, mirror: Mirror | None) -> None:
        self.mirror = mirror
        self.steps = 0
        self._show: progress.Show = progress.show_nothing
        self._bar = contextlib.ExitStack()

    def begin(self, step: int, steps: int) -> None:
        self.steps = steps
        self._show = self._bar.enter_context(progress.bar(steps, step))

    def advance(self, step: int) -> None:
        """`step` is finished, whether it is logged or not."""
        self._show(step)

    def train(self, record: TrainRecord) -> None:
        norm = f"{record.grad_norm:.3f}" if record.applied else "not finite, update skipped"
        speed, left = f"{count(record.tokens_per_second)} tokens/s", (self.steps - record.step) * record.step_seconds
        log.say(
            f"step {record.step}/{self.steps}  loss {record.loss:.4f}  lr {record.learning_rate:.2e}  grad {norm}  "
            f"{speed}  {duration(left)} left"
        )
        self._show(record.step, f"loss {record.loss:.4f}  {speed}")
        if self.mirror is not None:
            self.mirror.log(asdict(record))

    def evaluation(self, record: EvalRecord | TaskRecord) -> None:
        if isinstance(record, TaskRecord):
            log.say(f"step {record.step}: {record}")
        else:
            log.say(
                f"step {record.step}: held-out loss {record.loss:.4f}  perplexity {record.perplexity:.2f}  "
                f"{record.bits_per_byte:.4f} bits per byte"
            )
        if self.mirror is not None:
            self.mirror.log(asdict(record))

    def saved(self, folder: Path) -> None:
        log.LOGGER.debug("saved %s", folder)

    def finish(self) -> None:
        self._bar.close()
        self._show = progress.show_nothing
