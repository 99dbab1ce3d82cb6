"""Logs a run: in metrics.jsonl, in lines and a progress bar for people, and in trackers."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import count, duration
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.engine.device import peak_memory_gib, peak_tflops
from gpt1_ds.engine.session import Heap
from gpt1_ds.engine.watch import Watch
from gpt1_ds.tracking.record import EvalRecord, MetricsFile, TrainRecord
from gpt1_ds.tracking.sinks import Sink
from gpt1_ds.training.batches import StepBatch
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Record, Workload

FIRST_STEPS = 3  # of a process: libraries, kernels and caches begin with them, so that they measure nothing
INTERVALS = 10  # between logged steps: the time that is left is estimated from so many


class Stopwatch:
    """Times and counts steps between two `lap`s; what happens inside `pause` does not count."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._steps, self._tokens, self._clipped = 0, 0, 0
        self._paused, self._waited = 0.0, 0.0

    def step(self, tokens: int, clipped: bool) -> None:
        self._steps += 1
        self._tokens += tokens
        self._clipped += clipped

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._paused += time.perf_counter() - began

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - began

    def lap(self) -> dict[str, Any]:
        """Returns the interval's averages, as fields of a TrainRecord; starts the next interval."""
        seconds = max(time.perf_counter() - self._start - self._paused, 1e-9)
        steps = max(self._steps, 1)
        found = {"tokens_per_second": self._tokens / seconds, "step_seconds": seconds / steps}
        found |= {"data_wait_seconds": self._waited / steps, "clipped": self._clipped / steps}
        self.__init__()  # type: ignore[misc]
        return found


class TimeLeft:
    """Estimates when a run ends, from its last steps with their evaluations and saves; the first steps do not count."""

    def __init__(self, steps: int, sizes: BatchSizes | None = None) -> None:
        self._sizes = sizes or BatchSizes.constant(1)
        self.steps, self._counted = steps, 0
        self._marks: deque[tuple[int, float]] = deque(maxlen=INTERVALS)  # (step, when it ended)

    def count(self, step: int) -> None:
        """A step is finished."""
        self._counted += 1
        if self._counted == FIRST_STEPS:
            self._marks.append((step, time.perf_counter()))

    def seconds(self, step: int) -> float | None:
        """Returns the seconds from `step`, which has just ended, to the last step; None while nothing is known."""
        if not self._marks or step <= self._marks[0][0]:
            return None
        now, (first, began) = time.perf_counter(), self._marks[0]
        self._marks.append((step, now))
        end, here, start = map(self._sizes.position, (self.steps, step, first))
        return (end - here) * (now - began) / (here - start)


class StepLog:
    """All ranks call every method together; rank 0 writes, also to `sinks`. `clock` times the steps."""

    def __init__(self, workload: Workload, run_dir: RunDir, engine: Engine, sinks: Sequence[Sink]) -> None:
        self.steps, self.batch_sizes, self.sinks = workload.steps, workload.batch_sizes, sinks
        self.flops_per_token, self.engine, self.groups = workload.flops_per_token, engine, engine.groups
        self._learned, self._clip = workload.learned, workload.config.optimizer.clip or float("inf")
        self.metrics, self.watch = MetricsFile(run_dir.metrics), Watch(engine, workload.config, self.batch_sizes)
        self.clock, self._heap, self._left = Stopwatch(), Heap(), TimeLeft(self.steps, self.batch_sizes)
        self._peak_tflops = peak_tflops(engine.device, workload.config.train.precision)
        self._show: log.Show = log.show_nothing
        self._bar, self._part = contextlib.ExitStack(), workload.held_out_part
        # is called with each step until it has noted its first
        self.first_step: Callable[[int], None] = log.show_nothing

    def begin(self, step: int) -> None:
        """Shows a progress bar from `step` on."""
        if self.groups.rank == 0:
            self._show = self._bar.enter_context(log.bar(self.steps, step))

    def finish(self) -> None:
        self._bar.close()
        self._show = log.show_nothing
        self.metrics.finish()

    def count(self, step: int, tokens: int, grad_norm: float) -> None:
        """A step is finished, whether it is logged or not."""
        self.clock.step(tokens, grad_norm > self._clip)
        self._left.count(step)
        self._show(step)
        self.first_step(step)

    def train(self, state: TrainingState, result: StepResult, rate: float, mark: str, batch: StepBatch) -> None:
        """The step on `batch` that `state` comes after; `mark` is the batch's fingerprint on all ranks."""
        self.engine.progress("log")
        interval = self.clock.lap()
        tflops = interval["tokens_per_second"] * self.flops_per_token / self.groups.world / 1e12
        record = TrainRecord(
            step=state.step,
            tokens=state.tokens,
            predicted=batch.predicted,
            loss=result.loss,
            learning_rate=rate,
            grad_norm=result.grad_norm,
            applied=result.applied,
            **interval,
            model_tflops_per_rank=tflops,
            mfu=tflops / self._peak_tflops if self._peak_tflops else None,
            peak_memory_gib=peak_memory_gib(self.engine),
            batch_fingerprint=mark,
            loss_scale=result.loss_scale if self.engine.deepspeed.fp16_enabled() else None,
            **self._learned(self.engine, batch),
            **(self.watch.end(state.batch_number(state.step), result) if self.watch.level != "off" else {}),
        )
        self._heap.trim()
        if self.groups.rank == 0:
            self._add(record)
            self._say(record)

    def evaluation(self, records: Sequence[Record]) -> None:
        if self.groups.rank == 0:
            for record in records:
                self._add(record)
                part = f"  ({self._part})" if self._part and isinstance(record, EvalRecord) else ""
                log.say(f"step {record.step}: {record}{part}")

    def rewind(self, state: TrainingState) -> None:
        """Drops the lines of steps that will be repeated."""
        self._left = TimeLeft(self.steps, self.batch_sizes)
        self.groups.on_rank_0(lambda: self.metrics.rewind(state.step, state.evaluated))
        for sink in self.sinks:
            sink.rewind(state.step)

    def _add(self, record: TrainRecord | Record) -> None:
        self.metrics.add(record)
        for sink in self.sinks:
            sink.log(asdict(record))

    def _say(self, record: TrainRecord) -> None:
        update = f"grad {record.grad_norm:.3f}" if record.applied else "update skipped"
        speed, seconds = f"{count(record.tokens_per_second)} tokens/s", self._left.seconds(record.step)
        left = f"  {duration(seconds)} left" if seconds else ""
        right = "" if record.accuracy is None else f"accuracy {record.accuracy:.3f}  "
        log.say(
            f"step {record.step}/{self.steps}  loss {record.loss:.4f}  {right}lr {record.learning_rate:.2e}  {update}  "
            f"{speed}{left}"
        )
        self._show(record.step, f"loss {record.loss:.4f}  {speed}")
