"""Where a run begins: at its newest good checkpoint, at the one its configuration names, or with fresh weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.checkpoint.restore import restore, restore_newest, verify_checkpoint
from gpt1_ds.common.errors import CheckpointError, TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import draw_weights
from gpt1_ds.training.resume import check_data, check_moments, check_steps_left, check_tokenizer, named_checkpoint
from gpt1_ds.training.saver import Saver
from gpt1_ds.training.state import TrainingState
from gpt1_ds.training.workload import Workload


class Restorer:
    """All ranks call every method together. It reports to `saver` what was read."""

    def __init__(self, workload: Workload, run_dir: RunDir, engine: Engine, saver: Saver) -> None:
        self.workload, self.run_dir, self.engine, self.saver = workload, run_dir, engine, saver
        self.config = workload.config
        assert self.config.model.vocab_size is not None, "a workload fills it in"
        self._replace = None if saver.mirror is None else saver.mirror.replace
        self.lowest = math.log(self.config.model.vocab_size)  # validation loss of a run that has measured none

    def newest(self) -> tuple[Path, TrainingState] | None:
        """Returns the newest good checkpoint of the run folder and its state, loaded; None when the folder holds none.
        The mirror's copy takes the place of one that is damaged.
        """
        found = restore_newest(self.engine, self.config, self.run_dir, self._replace)
        return None if found is None else (found[0], self._state(*found))

    def load_best(self, state: TrainingState) -> None:
        """Loads the weights of the best checkpoint into an engine that has those of `state`; the mirror's copy takes
        its place where they are damaged. Raises CheckpointError, and TrainingError where it is gone.
        """
        if state.best is None or state.best.step == state.step:
            return
        folder, last = self.run_dir.checkpoint(state.best.step), self.run_dir.checkpoint(state.step)
        way_out = f"put it back and run again to score it, or score the last one: gpt1-ds evaluate {quote(str(last))}"
        if not self.engine.groups.on_rank_0(folder.is_dir):
            raise TrainingError(f"{folder}: the best checkpoint is gone; {way_out}")
        try:
            restore(self.engine, self.config, folder, weights_only=True)
        except CheckpointError as error:
            if self._replace is None or (whole := self._replace(folder, str(error))) is None:
                raise CheckpointError(f"{error}: the best checkpoint is damaged; {way_out}") from None
            restore(self.engine, self.config, whole, weights_only=True)

    def first(self) -> tuple[TrainingState, str]:
        """Returns the state that the run begins with, whose weights are then loaded, and where they come from."""
        found = self.newest()
        if found is not None:
            return found[1], f"from step {found[1].step} of {found[0].name}"
        fresh = TrainingState(lowest_validation_loss=self.lowest)
        if (wanted := named_checkpoint(self.config)) is None:
            draw_weights(self.engine, self.config.run.seed)
            return fresh, "from scratch"
        key, source = wanted
        resumes = key == "checkpoint.resume"
        folder = self.engine.groups.on_rank_0(lambda: find_checkpoint(Path(source), newest=resumes))
        verify_checkpoint(self.engine, folder, self.run_dir.path)
        if not resumes:
            self.workload.transfer(self.engine, folder, self._load_weights)
            return fresh, f"from the weights of {folder}"
        check_moments(self.config, folder, manifest.read(folder))
        facts = restore(self.engine, self.config, folder)
        state = replace(self._state(folder, facts), best=None)  # its best checkpoint lies in the other run's folder
        check_steps_left(self.config, folder, facts, self.workload.steps)
        return state, f"from step {state.step} of {folder.name}"

    def _load_weights(self, folder: Path) -> None:
        """The weights of a checkpoint alone: the optimizer starts afresh."""
        facts = manifest.read(folder)
        check_tokenizer(self.config, folder, facts, self.workload.tokenizer_hash, self.workload.tokenizer_folder)
        restore(self.engine, self.config, folder, weights_only=True)

    def _state(self, folder: Path, facts: dict[str, Any]) -> TrainingState:
        check_data(self.config, folder, facts, self.workload.data_hash)
        state = TrainingState.from_manifest(facts, self.lowest)
        if state.best is not None and state.best.measure != self.workload.measure:  # a run may choose another, or none
            state = replace(state, best=None)
            self.engine.groups.on_rank_0(lambda: self.run_dir.best.unlink(missing_ok=True))
        self.saver.was_read(state, folder)
        return state
