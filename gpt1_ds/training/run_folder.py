"""The folder of a run while it runs: its lock and its logs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator
from typing import IO

from gpt1_ds.common import log
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.engine import shared_disk
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.training import claim
from gpt1_ds.training.configuration import resolved
from gpt1_ds.training.copies import Copies, place_of


@contextlib.contextmanager
def locked_run_dir(run_dir: RunDir, config: Config, groups: ProcessGroups) -> Iterator[None]:
    """The run folder, on a disk that all hosts share, created, locked by rank 0 and with a log file per rank. Raises
    UserError alike on all ranks.
    """
    with contextlib.ExitStack() as stack:
        groups.on_rank_0(lambda: run_dir.create(config.run.share, job="SLURM_JOB_ID" in os.environ))
        os.umask(0o077 if config.run.share == "private" else 0o007)

        def take() -> None:
            stack.enter_context(RunLock(run_dir.lock, config.guard.lock_timeout))
            if (address := config.checkpoint.mirror) is not None and claim.begins_anew(config):
                Copies(place_of(address, config.run.name), run_dir, config.checkpoint).refuse()
            claim.take(run_dir, resolved(config))

        groups.on_rank_0(take)
        shared_disk.require(groups, run_dir.path)
        stack.enter_context(_logged(run_dir, groups.rank))
        yield


@contextlib.contextmanager
def _logged(run_dir: RunDir, rank: int) -> Iterator[None]:
    """Everything a library prints goes to the rank's log; only our own lines reach the terminal, from rank 0."""
    with open(run_dir.rank_log(rank), "a", buffering=1, encoding="utf-8") as file:
        terminal = _terminal()
        log.setup(rank, run_dir.rank_log(rank), terminal)
        with _redirected(file):
            faulthandler.enable(file)
            try:
                yield
            except BaseException:
                log.LOGGER.debug("the run ends with an error", exc_info=True)
                raise
            finally:
                faulthandler.disable()
                log.teardown()


def _terminal() -> IO[str]:
    """Returns where people read: below the cell of a notebook, which takes the place of sys.stderr; else descriptor
    2.
    """
    if sys.stderr is not sys.__stderr__ and sys.stderr is not None:
        return sys.stderr
    return os.fdopen(os.dup(2), "w", buffering=1)


@contextlib.contextmanager
def _redirected(file: IO[str]) -> Iterator[None]:
    """C++ libraries write to the descriptor, so that is what is moved."""
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
