"""`checkpoint.mirror`: a run's checkpoints and records in an object store, beside those in its run folder.

Rank 0 copies in a thread of its own while training continues. The run folder stays what counts: a copy that fails is
said and tried again, and the store is read only where it has a newer checkpoint than the folder, which another machine
or another disk may not have, and for one that is damaged in the folder.
"""

from __future__ import annotations

import contextlib
import math
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from gpt1_ds.checkpoint import folders, manifest, store
from gpt1_ds.checkpoint.manager import yield_to_training
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.checkpoint.verify import verify_sizes
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DamagedError, UserError, WorldError
from gpt1_ds.common.files import explain, published_folder, write_atomic
from gpt1_ds.common.remote import check_address
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.config.sections import CheckpointConfig
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.training import resume
from gpt1_ds.training.claim import begins_anew
from gpt1_ds.training.configuration import resolved

T = TypeVar("T")
KEY = "checkpoint.mirror"
TRIES, PAUSE = 3, 2.0  # of one copy; seconds before the next try, twice as many before the one after
POLL = 0.2  # seconds
LEAVING_SECONDS = 30.0  # that a job which hands over waits: its successor copies what is missing


def place_of(address: str, name: str) -> Store:
    """Returns the folder of the run of this name in the store at `address`."""
    return Store(f"{address.rstrip('/')}/{name}")


def copy_run(folder: Path, address: str) -> Store:
    """Copy all of a run that the store at `address` lacks, as training with this mirror does; returns the run's place
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
    """Bring the newest whole checkpoint and the records of the run at `address` into the new `folder`; returns the
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
        """Checkpoints that this rank is copying: they may not be deleted now."""
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
        """Set a damaged checkpoint aside and bring its copy into its place; None where no whole one comes."""
        return self._in_thread(lambda copies: copies.replace(folder, problem))

    def claim(self) -> None:
        """Write the configuration there, so that a place that cannot be written is known before the first step."""
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
        """What `action` gives on rank 0, on every rank, all of which show meanwhile that they live."""
        done = None if self._copies is None else ThreadPoolExecutor(1, "mirror").submit(action, self._copies)
        self._wait(lambda: done is not None and not done.done())
        return self.groups.on_rank_0(lambda: None if done is None else done.result())

    def _wait(self, is_waited_for: Callable[[], bool]) -> None:
        while self.groups.share(is_waited_for()):
            self.beat()
            time.sleep(POLL)


class Copies:
    """The copies of one run, on rank 0. Only the thread that trains calls its methods."""

    def __init__(self, place: Store, run_dir: RunDir, settings: CheckpointConfig) -> None:
        self.place, self.run_dir, self.settings = place, run_dir, settings
        self._said: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way: list[Path] = []
        self._is_claimed = False

    @property
    def under_way(self) -> list[Path]:
        """Checkpoints that are being copied: they may not be deleted now."""
        return self._under_way if self.is_busy else []

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def follow(self) -> None:
        """Say how the last copy ended; begin the next one, of all that is not there, unless one is under way."""
        self.report()
        if not self.is_busy:
            self._under_way = folders.steps_in(self.run_dir.checkpoints)[::-1]  # the newest one first
            self._thread = threading.Thread(target=self._copy_all, args=(self._under_way,), name="mirror", daemon=True)
            self._thread.start()

    def report(self) -> None:
        """Say, and note in events.jsonl, what was copied since the last call, and what was not."""
        while not self._said.empty():
            kind, details = self._said.get()
            self.run_dir.add_event(kind, **details)
            if "error" in details:
                log.say(f"checkpoint of step {details['step']} was not copied: {details['error']}")

    def copy_once(self) -> None:
        """Copy all that is not there, in this thread. Raises UserError for the first that fails, and for a store that
        is ahead of the run folder: it would lose the lines of its newer steps and its best checkpoint.
        """
        here, _ = resume.newest_whole(self.run_dir)
        for newest in store.whole(self.place.names())[-1:]:
            if here is None or (manifest.step_of(here) or 0) < (manifest.step_of(Path(newest)) or 0):
                way_out = f"gpt1-ds checkpoint fetch {quote(str(self.place))} --out NEW_FOLDER"
                raise CheckpointError(
                    f"{self.place}: holds {newest}, which is newer than what is whole in {self.run_dir.path}; bring it "
                    f"back with {way_out}, or copy to another address"
                )
        for folder in folders.steps_in(self.run_dir.checkpoints)[::-1]:
            if self._copy(folder):
                log.say(f"{folder}: copied to {self.place}")
        self._copy_records()
        self._prune()

    def check(self, config: Config) -> None:
        """Raise ConfigError where the store holds a run that this configuration does not continue. Without a whole
        checkpoint there is nothing to continue, as in a run folder.
        """
        recorded, names = self.run_dir.config.name, self.place.names()
        if recorded not in names or not store.whole(names):
            return
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / recorded
            copy.write_bytes(self.place.read(recorded))
            changed = resume.changes(load_recorded(copy), config)
        resume.check(str(self.place), changed, config.checkpoint.grows_at_resume)

    def bring_newest(self) -> None:
        """Bring the newest whole checkpoint of the store into the run folder with the records, unless one as new is
        whole there, and the best one, unless it is. Raises UserError for a store that cannot be reached or read, and
        where nothing whole is left in either place: a run from scratch would bury what is there.
        """
        names = self.place.names()
        found = store.whole(names)
        came = self._bring_newest(found)
        self._bring_records(names if found else (), is_ahead=bool(came))
        if came:
            self.run_dir.add_event("brought back", checkpoint=came, source=str(self.place))
        self._bring_best(found)

    def _bring_newest(self, found: Sequence[str]) -> str:
        """Returns the name of the checkpoint that came; empty for none."""
        here, damaged = resume.newest_whole(self.run_dir)
        newest = None if here is None else manifest.step_of(here)
        for name in reversed(found):
            if newest is not None and newest >= (manifest.step_of(Path(name)) or 0):
                return ""
            for folder in [one for one in damaged if folders.published_name(one) == name]:
                folders.set_aside(self.run_dir, folder, damaged[folder])
            try:
                self._bring(name)
            except DamagedError as error:
                log.say(f"{error.problems[0]}; an older one is tried")
                continue
            write_atomic(self.run_dir.latest, f"{name}\n")
            return name
        if here is None and found:
            raise CheckpointError(
                f"{self.place}: holds damaged checkpoints alone; look at the lines above, and to begin anew delete "
                "what is there, or choose another run.name"
            )
        return ""

    def replace(self, folder: Path, problem: str) -> Path | None:
        """Set a damaged checkpoint aside and bring its copy into its place. Returns None, and leaves it as it is, where
        there is no whole copy or the store cannot be read, which is said.
        """
        name = folders.published_name(folder)
        final = self.run_dir.checkpoints / name
        try:
            if name not in store.whole(self.place.names()):
                return None
            came = self._bring(name, final.with_name(f".{name}.brought"))
        except UserError as error:
            log.say(f"{error.problems[0]}: no whole copy of {folder} comes from there")
            return None
        folders.set_aside(self.run_dir, folder, problem)
        came.rename(final)
        self.run_dir.add_event("brought back", checkpoint=name, source=str(self.place))
        return final

    def refuse(self) -> None:
        """Raise ConfigError where the store holds a checkpoint of a run: one that begins anew would mix with it."""
        if store.whole(self.place.names()):
            raise ConfigError(
                f"{KEY}: {self.place} holds a run of this name, and checkpoint.resume=never begins anew; choose "
                "another run.name, or delete what is there"
            )

    def claim(self) -> None:
        """Write the configuration there, so that a place that cannot be written is known before the first step."""
        self.place.write(self.run_dir.config.name, self.run_dir.config.read_bytes())
        self._is_claimed = True

    def _copy_all(self, found: Sequence[Path]) -> None:
        """In the thread: the records come first, as a checkpoint there without the lines of its steps would lose them,
        and last, with what has happened since.
        """
        yield_to_training()
        step = manifest.step_of(found[0]) if found else 0
        try:
            _tried(self._check_place)
            _tried(self._copy_records)
            for folder in found:
                step = manifest.step_of(folder)
                with contextlib.suppress(FileNotFoundError):  # a later save of this step took its place
                    self._copy_one(folder)
            _tried(self._copy_records)
            _tried(self._prune)
        except OSError as error:
            self._said.put(("copy failed", {"step": step, "error": str(explain(error) or error)}))
        except UserError as error:
            self._said.put(("copy failed", {"step": step, "error": str(error)}))

    def _check_place(self) -> None:
        """Raise WorldError where what `claim` wrote is gone, since copies would fill the disk under a lost mount, and
        ConfigError where another run has claimed the place since, with whose checkpoints these would mix.
        """
        name = self.run_dir.config.name
        if name in self.place.names():
            if self.place.read(name) != self.run_dir.config.read_bytes():
                raise ConfigError(
                    f"{self.place}: another run of this name, with other keys, copies there now, too; choose another "
                    "run.name for one of them"
                )
        elif self._is_claimed:
            raise WorldError(
                f"{self.place}: what this run wrote there is gone; mount the disk again, or stop the run and start it "
                "again to copy to an empty place"
            )

    def _copy_one(self, folder: Path) -> None:
        begin = time.monotonic()
        if _tried(partial(self._copy, folder)):
            size = sum(file["bytes"] for file in manifest.read(folder)["files"].values())
            copied = {"to": str(self.place), "bytes": size, "seconds": round(time.monotonic() - begin, 3)}
            self._said.put(("copied", {"step": manifest.step_of(folder), **copied}))

    def _copy(self, folder: Path) -> bool:
        return store.copy(folder, self.place.below(f"checkpoints/{folders.published_name(folder)}"))

    def _records(self) -> list[Path]:
        run = self.run_dir
        return [run.config, run.environment, run.metrics, run.events, run.evaluation, run.best]

    def _copy_records(self) -> None:
        for path in self._records():
            if path.is_file():
                self.place.write(path.relative_to(self.run_dir.path).as_posix(), path.read_bytes())

    def _prune(self) -> None:
        """Delete there what the run folder's rules delete here. The best one is that of the newest one there: a better
        one that is saved by now is not copied yet.
        """
        found = store.whole(self.place.names())
        copied = [one for one in folders.steps_in(self.run_dir.checkpoints) if folders.published_name(one) in found]
        kept = {*found[-self.settings.keep :], *map(_best_of, copied[-1:])}
        for name in found:
            if name not in kept and not folders.is_multiple(Path(name), self.settings):
                store.remove(self.place.below(f"checkpoints/{name}"))

    def _bring(self, name: str, to: Path | None = None) -> Path:
        """Bring one checkpoint of the store into its place in the run folder, or `to` another. Returns the folder."""
        final = to or self.run_dir.checkpoints / name
        log.say(f"{name}: comes from {self.place}")
        with published_folder(final) as temporary:
            store.fetch(self.place.below(f"checkpoints/{name}"), temporary)
        return final

    def _bring_best(self, found: Collection[str]) -> None:
        """The best checkpoint that the newest one here knows comes back unless it is whole, and `best` names it. The
        file of an older folder, or of one that has lost it, does not know.
        """
        here, _ = resume.newest_whole(self.run_dir)
        if here is None:
            return
        best = _best_of(here)
        if best in found and not self._is_whole(best):
            try:
                self._bring(best)
            except DamagedError as error:
                log.say(f"{error.problems[0]}; the best checkpoint stays lost")
        if not best or not (self.run_dir.checkpoints / best).is_dir():
            self.run_dir.best.unlink(missing_ok=True)
        elif not self.run_dir.best.is_file() or self.run_dir.best.read_bytes().strip() != best.encode():
            write_atomic(self.run_dir.best, f"{best}\n")

    def _is_whole(self, name: str) -> bool:
        """Whether a checkpoint is here, as far as sizes tell; one that is damaged is set aside."""
        folder = self.run_dir.checkpoints / name
        if not folder.is_dir():
            return False
        try:
            verify_sizes(folder, manifest.read(folder))
        except manifest.NewerFormatError:
            raise
        except CheckpointError as error:
            folders.set_aside(self.run_dir, folder, str(error))
            return False
        return True

    def _bring_records(self, names: Collection[str], is_ahead: bool) -> None:
        """The records of the run, where the folder has none, and shorter ones of what is only added to; of a store that
        `is_ahead` all that are longer.
        """
        for path in self._records():
            name = path.relative_to(self.run_dir.path).as_posix()
            if name not in names or path in (self.run_dir.config, self.run_dir.best):
                continue
            if not path.is_file() or is_ahead or path.suffix == ".jsonl":
                content = self.place.read(name)
                if not path.is_file() or path.stat().st_size < len(content):
                    write_atomic(path, content)


def _best_of(folder: Path) -> str:
    """Returns the name of the best checkpoint that a run had when it saved the one in `folder`; empty for none."""
    best = manifest.read(folder).get("best")
    return f"step-{int(best['step']):08d}" if best else ""


def _tried(action: Callable[[], Any]) -> Any:
    """Returns what `action` gives, tried again where what it raises may pass."""
    for number in range(1, TRIES + 1):
        try:
            return action()
        except UserError as error:
            if not error.passes or number == TRIES:
                raise
            time.sleep(PAUSE * number)
    raise AssertionError("the last try returns or raises")
