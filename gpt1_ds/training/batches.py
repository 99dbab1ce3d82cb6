"""The batches of a run in their order, each read, and copied to the device, while the step before it is computed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_USAGE, DataError
from gpt1_ds.common.files import write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.engine.base import Arriving, Engine, MicroBatch
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher import launch
from gpt1_ds.training.state import TrainingState


@dataclass(frozen=True)
class StepBatch:
    """This rank's part of one global batch. `tokens` are the whole batch's, as are those that are `predicted` where
    not all are; each row's part of the fingerprint is counted by one rank.
    """

    micro_batches: list[MicroBatch]
    fingerprint: int
    tokens: int
    predicted: int | None = None


Sent = tuple[StepBatch, Arriving]


class Batches:
    """`read(number, step)` gives batch `number` (1 is the first) for the update of `step`, which dropout depends on."""

    def __init__(self, read: Callable[[int, int], StepBatch], run_dir: RunDir, engine: Engine) -> None:
        self.read, self.run_dir, self.engine = read, run_dir, engine
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._ahead: tuple[tuple[int, int], Future[Sent]] | None = None  # (batch number, step), batch

    def next(self, state: TrainingState) -> StepBatch:
        """Returns the batch of the step after `state`; the one after that is read meanwhile."""
        wanted = (state.batch_number(state.step + 1), state.step + 1)
        if self._ahead is None or self._ahead[0] != wanted:
            self._ahead = (wanted, self._loader.submit(self._send, *wanted))
        with ends_alone(self.run_dir, self.engine.groups, state.step):
            batch, arriving = self._ahead[1].result()
        following = (state.batch_number(state.step + 2), state.step + 2)
        self._ahead = (following, self._loader.submit(self._send, *following))
        return replace(batch, micro_batches=arriving())

    def _send(self, number: int, step: int) -> Sent:
        batch = self.read(number, step)
        return batch, self.engine.send(batch.micro_batches)


@contextlib.contextmanager
def ends_alone(run_dir: RunDir, groups: ProcessGroups, step: int) -> Iterator[None]:
    """What one rank alone finds wrong with the data ends the run: the others wait for it and cannot agree."""
    try:
        yield
    except DataError as error:
        if groups.world == 1:
            raise
        run_dir.add_event("bad data", step=step, rank=groups.rank, problem=str(error))
        if job := os.environ.get("SLURM_JOB_ID", ""):
            write_json(run_dir.outcome(job), {"code": EXIT_USAGE, "reason": str(error), "step": step})
        if not launch.tell(error):
            log.alarm(str(error))
        os._exit(EXIT_USAGE)
