"""Saves of a run, and evaluations while it trains: measured, logged, judged, and the best one kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import folders
from gpt1_ds.checkpoint.manager import CheckpointManager, Contents
from gpt1_ds.checkpoint.replicas import Replicas
from gpt1_ds.common import log
from gpt1_ds.common.errors import TrainingError, UnsavedError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import to_carried_yaml, to_yaml
from gpt1_ds.data.tokenizers.base import read_files
from gpt1_ds.engine import master_weights
from gpt1_ds.engine.base import Engine
from gpt1_ds.monitoring.watchdog import SAVE
from gpt1_ds.tracking.record import EvalRecord
from gpt1_ds.training.batches import ends_alone
from gpt1_ds.training.mirror import Mirror
from gpt1_ds.training.provenance import provenance
from gpt1_ds.training.spike_policy import divergence
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Record, Workload


class Saver:
    """All ranks call every method together."""

    def __init__(self, workload: Workload, run_dir: RunDir, engine: Engine, mirror: Mirror | None) -> None:
        self.workload, self.run_dir, self.engine, self.groups = workload, run_dir, engine, engine.groups
        self.mirror, self.config = mirror, workload.config
        self.manager = CheckpointManager(run_dir, engine, self.config)
        self._replicas = Replicas(engine)
        self._saved_step = -1  # of the checkpoint that was last published, or read
        self.seconds: float | None = None  # that the last save took until it was published
        self._carried_yaml = to_carried_yaml(self.config)
        self._tokenizer = read_files(workload.tokenizer_folder)  # which may be another one at a later save
        self._config_hash = hashlib.sha256(to_yaml(self.config).encode()).hexdigest()

    def is_saved(self, state: TrainingState) -> bool:
        """Returns whether a checkpoint of this state was published, or read."""
        return self._saved_step == state.step

    @property
    def is_written(self) -> bool:
        """Returns whether this rank's part of a save under way is on disk."""
        return self.manager.is_written

    def save(self, state: TrainingState, background: bool = True, again: bool = False) -> None:
        """Saves this state, once (or `again`); in the background where configuration and memory allow."""
        self.engine.progress(SAVE)
        self.finish()  # one at a time
        if again or not self.is_saved(state):
            self.compare_replicas(state.step)
            contents = Contents(state.step, self._metadata(state), self._carried_yaml, self._tokenizer)
            self._started = time.monotonic()
            self.manager.start(contents, background)
        if not background:
            self.finish()

    def finish(self) -> None:
        """Publishes the save that is under way, if there is one; waits for whatever is still to be written."""
        self.engine.progress(SAVE)
        if (folder := self.manager.finish()) is None:
            return
        self.seconds = time.monotonic() - self._started
        self._saved_step = int(folder.name.removeprefix("step-"))
        if self.groups.rank == 0:
            folders.prune(self.run_dir, self.config.checkpoint, self.mirror.under_way if self.mirror else ())
            self.run_dir.add_event("saved", step=self._saved_step)
            if self.mirror is not None:
                self.mirror.follow()
            log.LOGGER.debug("saved %s", folder)

    def unsaved(self) -> TrainingError:
        """Returns why the last state is not saved."""
        why = self.manager.failure
        text = f"{self.run_dir.path}: its last state could not be saved: {why}; run the same command again"
        return UnsavedError(text) if why is not None and why.passes else TrainingError(text)

    def save_best(self, state: TrainingState) -> bool:
        """Saves a state that is the best so far, and names it so. Returns False where the disk did not take it."""
        self.save(state, background=False, again=True)  # one of this step that is there does not know that it is best
        try:
            return self.groups.on_rank_0(lambda: self._name_best(state))
        except UserError as error:  # a run outlives it, as it does a failed save
            log.say(f"checkpoint of step {state.step} was not named the best: {error}")
            return False

    def compare_replicas(self, step: int) -> None:
        """Raises TrainingError, after an event, when ranks differ in what they hold in common."""
        self.engine.progress("comparison of replicas")
        difference = self._replicas.compare()
        if difference is None:
            return
        if self.groups.rank == 0:
            details = {"parameter": difference.name, "what": difference.kind, "parameters": difference.parameters}
            self.run_dir.add_event("replicas differ", step=step, **details, ranks=difference.ranks)
        raise TrainingError(
            f"step {step}: {difference}; nothing of this state was saved. Run again to resume from the last "
            "checkpoint; if it happens again on the same node, its memory or its device is bad"
        )

    def was_read(self, state: TrainingState, folder: Path) -> None:
        """This state was read from a checkpoint: in the run's own folder it needs no save."""
        self.groups.on_rank_0(lambda: self._name_best(state))
        self._saved_step = state.step if folder.parent == self.run_dir.checkpoints else -1

    def _name_best(self, state: TrainingState) -> bool:
        if is_there := state.best is not None and (best := self.run_dir.checkpoint(state.best.step)).is_dir():
            write_atomic(self.run_dir.best, f"{best.name}\n")
        return is_there

    def _metadata(self, state: TrainingState) -> dict[str, Any]:
        layout, parallel, workload = self.groups.layout, self.config.parallel, self.workload
        return {
            **state.to_manifest(),
            "updates": master_weights.updates(self.engine),
            "layout": {**asdict(layout), "zero": parallel.zero, "pipelined": parallel.pipelined},
            "precision": self.config.train.precision,
            "seed": self.config.run.seed,
            "hashes": {
                **provenance(),
                "config": self._config_hash,
                "data": workload.data_hash,
                "tokenizer": workload.tokenizer_hash,
            },
            "loss_scaler": master_weights.loss_scaler(self.engine),
            **workload.facts(),
        }


Log = Callable[[Sequence[Record]], None]


class Evaluator:
    """All ranks call it together; where an evaluation can be better than another, it saves what is best so far."""

    def __init__(self, workload: Workload, engine: Engine, run_dir: RunDir, saver: Saver, log: Log) -> None:
        self.workload, self.engine, self.run_dir, self.saver, self.log = workload, engine, run_dir, saver, log
        self.seconds = 0.0  # that the last evaluation took

    def is_due(self, step: int) -> bool:
        return self.workload.is_evaluation_due(step)

    def evaluate(self, state: TrainingState) -> TrainingState:
        """Returns the state that knows of this evaluation. Raises TrainingError for a run that has diverged."""
        self.engine.progress("evaluation")
        began = time.monotonic()
        with ends_alone(self.run_dir, self.engine.groups, state.step):
            records = self.workload.evaluate(self.engine, state.step, state.tokens)
        self.seconds = time.monotonic() - began
        self.log(records)
        state = replace(state, evaluated=state.step)
        for record in records:
            if isinstance(record, EvalRecord):
                state = self._judged(state, record.loss)
        score = self.workload.score(records)
        better = None if score is None else state.as_best(score, self.workload.measure)
        return better if better is not None and self.saver.save_best(better) else state  # the end of a run reads it

    def _judged(self, state: TrainingState, loss: float) -> TrainingState:
        lowest = state.lowest_validation_loss
        problem = divergence(self.workload.config.guard, lowest, loss)
        if problem is None:
            return replace(state, lowest_validation_loss=min(lowest, loss))
        if self.engine.groups.rank == 0:
            self.run_dir.add_event("diverged", step=state.step, problem=problem)
        raise TrainingError(f"step {state.step}: {problem}; lower optimizer.lr, or warm up for longer")
