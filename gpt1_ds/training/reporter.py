"""What people see of a run: a progress bar on a terminal, plain lines elsewhere, and the W&B mirror. Rank 0 only."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.common.units import count, duration
from gpt1_ds.tracking.mirror import Mirror
from gpt1_ds.tracking.record import EvalRecord, TaskRecord, TrainRecord


class Reporter:
    def __init__(self, mirror: Mirror | None) -> None:
        self.mirror = mirror
        self.steps = 0
        self._bar: Any = None

    def begin(self, step: int, steps: int) -> None:
        self.steps = steps
        if log.is_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(file=log.terminal())
            columns = (
                BarColumn(),
                TextColumn("{task.completed}/{task.total}  {task.description}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.start()
            self._bar.add_task("", completed=step, total=steps)

    def train(self, record: TrainRecord) -> None:
        norm = f"{record.grad_norm:.3f}" if record.applied else "not finite, update skipped"
        text = (
            f"loss {record.loss:.4f}  lr {record.learning_rate:.2e}  grad {norm}  "
            f"{count(record.tokens_per_second)} tokens/s"
        )
        if self._bar is not None and record.applied:
            self._bar.update(self._bar.task_ids[0], completed=record.step, description=text)
        else:
            left = duration((self.steps - record.step) * record.step_seconds)
            log.say(f"step {record.step}/{self.steps}  {text}  {left} left")
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
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
