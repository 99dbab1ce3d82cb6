"""What is logged of a run: metrics.jsonl, and what people see of it."""

from __future__ import annotations

from collections.abc import Sequence

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.engine.device import peak_memory_gib, peak_tflops
from gpt1_ds.tracking.record import MetricsFile, TrainRecord
from gpt1_ds.tracking.throughput import Stopwatch
from gpt1_ds.training.reporter import Reporter
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Record


class StepLog:
    """All ranks call every method together; rank 0 writes. `clock` times the steps."""

    def __init__(self, flops_per_token: int, run_dir: RunDir, engine: Engine, reporter: Reporter) -> None:
        self.flops_per_token = flops_per_token
        self.engine, self.grid, self.reporter = engine, engine.grid, reporter
        self.metrics = MetricsFile(run_dir.metrics)
        self.clock = Stopwatch()
        self._peak_tflops = peak_tflops(engine.device)

    def count(self, step: int, tokens: int) -> None:
        """A step is finished, whether it is logged or not."""
        self.clock.step(tokens)
        self.reporter.advance(step)

    def train(self, state: TrainingState, result: StepResult, learning_rate: float, fingerprint: str) -> None:
        """The step that `state` comes after."""
        self.engine.progress("log")
        speed = self.clock.lap()
        tflops = speed.tokens_per_second * self.flops_per_token / self.grid.world / 1e12
        record = TrainRecord(
            step=state.step,
            tokens=state.tokens,
            loss=result.loss,
            learning_rate=learning_rate,
            grad_norm=result.grad_norm,
            applied=result.applied,
            tokens_per_second=speed.tokens_per_second,
            step_seconds=speed.step_seconds,
            data_wait_seconds=speed.data_wait_seconds,
            model_tflops_per_rank=tflops,
            mfu=tflops / self._peak_tflops if self._peak_tflops else None,
            peak_memory_gib=peak_memory_gib(self.engine),
            batch_fingerprint=fingerprint,
            loss_scale=result.loss_scale if self.engine.deepspeed.fp16_enabled() else None,
        )
        if self.grid.rank == 0:
            self.metrics.add(record)
            self.reporter.train(record)

    def evaluation(self, records: Sequence[Record]) -> None:
        if self.grid.rank == 0:
            for record in records:
                self.metrics.add(record)
                self.reporter.evaluation(record)

    def rewind(self, state: TrainingState) -> None:
        """Drop the lines of steps that will be repeated."""
        self.grid.on_rank_0(lambda: self.metrics.rewind(state.step, state.evaluated))
