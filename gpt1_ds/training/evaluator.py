"""Evaluations while a run trains: measured, logged, judged, and the best one kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.base import Engine
from gpt1_ds.tracking.record import EvalRecord
from gpt1_ds.training.batches import ends_alone
from gpt1_ds.training.saver import Saver
from gpt1_ds.training.spike_policy import divergence
from gpt1_ds.training.state import Best, TrainingState
from gpt1_ds.training.workload import Record, Workload

Log = Callable[[Sequence[Record]], None]


class Evaluator:
    """All ranks call it together; where an evaluation can be better than another, it saves what is best so far."""

    def __init__(self, workload: Workload, engine: Engine, run_dir: RunDir, saver: Saver, log: Log) -> None:
        self.workload, self.engine, self.run_dir, self.saver, self.log = workload, engine, run_dir, saver, log

    def is_due(self, step: int) -> bool:
        return self.workload.is_evaluation_due(step)

    def evaluate(self, state: TrainingState) -> TrainingState:
        """The state that knows of this evaluation. Raises TrainingError for a run that has diverged."""
        self.engine.progress("evaluation")
        with ends_alone(self.run_dir, self.engine.groups, state.step):
            records = self.workload.evaluate(self.engine, state.step, state.tokens)
        self.log(records)
        state = replace(state, evaluated=state.step)
        for record in records:
            if isinstance(record, EvalRecord):
                state = self._judged(state, record.loss)
        score = self.workload.score(records)
        if score is not None and (state.best is None or score > state.best.score):
            best = replace(state, best=Best(state.step, score))
            state = best if self.saver.save_best(best) else state  # in the end a run looks for its best on the disk
        return state

    def _judged(self, state: TrainingState, loss: float) -> TrainingState:
        lowest = state.lowest_validation_loss
        problem = divergence(self.workload.config.guard, lowest, loss)
        if problem is None:
            return replace(state, lowest_validation_loss=min(lowest, loss))
        if self.engine.groups.rank == 0:
            self.run_dir.add_event("diverged", step=state.step, problem=problem)
        raise TrainingError(f"step {state.step}: {problem}; lower optimizer.lr, or warm up for longer")
