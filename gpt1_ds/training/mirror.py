"""`checkpoint.mirror`: a run's checkpoints and records in an object store, beside those in its run folder.

Rank 0 copies in a thread of its own while training continues. The run folder stays what counts: a copy that fails is
said and tried again, and the store is read only where it has a newer checkpoint than the folder, which another machine
or another disk may not have, and for one that is damaged in the folder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gpt1_ds.checkpoint import folders, store
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.common.files import published_folder, write_atomic
from gpt1_ds.common.remote import check_address
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.config.sections import CheckpointConfig
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.training.claim import begins_anew
from gpt1_ds.training.configuration import resolved
from gpt1_ds.training.copies import KEY, Copies, place_of

T = TypeVar("T")
POLL = 0.2  # seconds
LEAVING_SECONDS = 30.0  # that a job which hands over waits: its successor copies what is missing


def copy_run(folder: Path, address: str) -> Store:
    """Copies all of a run that the store at `address` lacks, as training with this mirror does; returns the run's place
    there. Raises UserError.
    """
    run_dir = RunDir(folder)
    if not run_dir.config.is_file():
        raise CheckpointError(f"{folder}: has no {run_dir.config.name}; name a run folder, like runs/NAME")
    check_address(address, "--to", ConfigError)
    config, path = load_recorded(run_dir.config), folder.resolve()
    recorded = Path(config.run.name)  # a sweep's trial is called SWEEP/TRIAL
    name = config.run.name if path.parts[-len(recorded.parts) :] == recorded.parts else path.name
    store.check_apart(f"{address}/{name}", folder, "--to")
    copies = Copies(place_of(address, name), run_dir, config.checkpoint)
    copies.check(config)
    copies.copy_once()
    return copies.place


def fetch_run(address: str, folder: Path) -> str:
    """Brings the newest whole checkpoint and the records of the run at `address` into the new `folder`; returns the
    checkpoint's name. Raises UserError.
    """
    check_address(address, "ADDRESS", ConfigError)
    place = Store(address)
    if not store.whole(place.names()):
        raise CheckpointError(f"{place}: holds no whole checkpoint; name a run there, like s3://BUCKET/FOLDER/NAME")
    with published_folder(folder) as temporary:
        temporary.chmod(0o700)
        run_dir = RunDir(temporary)
        run_dir.create()
        Copies(place, run_dir, CheckpointConfig()).bring_newest()
        write_atomic(run_dir.config, place.read(run_dir.config.name))
        return folders.steps_in(run_dir.checkpoints)[-1].name


class Mirror:
    """The mirror of a run. All ranks call every method together, but for `follow` and `under_way`."""

    def __init__(self, config: Config, run_dir: RunDir, groups: ProcessGroups, beat: Callable[[], None]) -> None:
        self.config, self.groups, self.beat = config, groups, beat
        address = config.checkpoint.mirror
        assert address is not None, "the caller has looked"
        check_address(address, KEY, ConfigError)
        place = groups.agree(lambda: place_of(address, config.run.name) if groups.rank == 0 else None)
        self._copies = None if place is None else Copies(place, run_dir, config.checkpoint)

    @property
    def under_way(self) -> Sequence[Path]:
        """Returns the checkpoints that this rank is copying: they may not be deleted now."""
        return () if self._copies is None else self._copies.under_way

    def follow(self) -> None:
        """On rank 0: copy what is not there yet, in the background."""
        if self._copies is not None:
            self._copies.follow()

    def prepare(self) -> None:
        """What the store has and the run folder has not comes back. Raises UserError."""

        def bring_back(copies: Copies) -> None:
            if not begins_anew(self.config):  # else the store was asked before
                copies.check(resolved(self.config))
                copies.bring_newest()

        self._in_thread(bring_back)

    def replace(self, folder: Path, problem: str) -> Path | None:
        """Sets a damaged checkpoint aside and brings its copy into its place; None where no whole one comes."""
        return self._in_thread(lambda copies: copies.replace(folder, problem))

    def claim(self) -> None:
        """Writes the configuration there, so that a place that cannot be written is known before the first step."""
        self.groups.on_rank_0(lambda: None if self._copies is None else self._copies.claim())

    def finish(self, stays: bool) -> None:
        """The last checkpoint and the records are copied, too. With `stays` it takes as long as it needs."""
        copies, limit = self._copies, time.monotonic() + (math.inf if stays else LEAVING_SECONDS)

        def is_waited_for() -> bool:
            return copies is not None and copies.is_busy and time.monotonic() < limit

        self._wait(is_waited_for)
        self.follow()  # with what has come since
        self._wait(is_waited_for)
        if copies is not None:
            copies.report()
            folders.prune(copies.run_dir, copies.settings, copies.under_way)  # what was spared for its copy

    def _in_thread(self, action: Callable[[Copies], T]) -> T | None:
        """Returns what `action` gives on rank 0, on every rank, all of which show meanwhile that they live."""
        done = None if self._copies is None else ThreadPoolExecutor(1, "mirror").submit(action, self._copies)
        self._wait(lambda: done is not None and not done.done())
        return self.groups.on_rank_0(lambda: None if done is None else done.result())

    def _wait(self, is_waited_for: Callable[[], bool]) -> None:
        while self.groups.share(is_waited_for()):
            self.beat()
            time.sleep(POLL)
