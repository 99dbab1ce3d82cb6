"""A run's copies in an object store, on one rank: to the store in a thread, and back from it.

The records (configuration, metrics, events, results) are copied before the checkpoints and once more after them. What
the store has is taken only where it is newer than the run folder, or where the run folder's is damaged.
"""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from gpt1_ds.checkpoint import folders, manifest, store
from gpt1_ds.checkpoint.manager import yield_to_training
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.checkpoint.verify import verify_sizes
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError, DamagedError, UserError, WorldError
from gpt1_ds.common.files import explain, published_folder, write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_recorded
from gpt1_ds.config.sections import CheckpointConfig
from gpt1_ds.training import resume

KEY = "checkpoint.mirror"
TRIES, PAUSE = 3, 2.0  # of one copy; seconds before the next try, twice as many before the one after


def place_of(address: str, name: str) -> Store:
    """Returns the folder of the run of this name in the store at `address`."""
    return Store(f"{address.rstrip('/')}/{name}")


class Copies:
    """The copies of one run at `place`, on rank 0. Only the thread that trains calls its public methods."""

    def __init__(self, place: Store, run_dir: RunDir, settings: CheckpointConfig) -> None:
        self.place, self.run_dir, self.settings = place, run_dir, settings
        self._said: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._under_way: list[Path] = []
        self._is_claimed = False

    # To the store

    @property
    def under_way(self) -> list[Path]:
        """Returns the checkpoints that are being copied: they may not be deleted now."""
        return self._under_way if self.is_busy else []

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def follow(self) -> None:
        """Says how the last copy ended; begins the next one, of all that is not there, unless one is under way."""
        self.report()
        if not self.is_busy:
            self._under_way = folders.steps_in(self.run_dir.checkpoints)[::-1]  # the newest one first
            self._thread = threading.Thread(target=self._copy_all, args=(self._under_way,), name="mirror", daemon=True)
            self._thread.start()

    def report(self) -> None:
        """Says, and notes in events.jsonl, what was copied since the last call, and what was not."""
        while not self._said.empty():
            kind, details = self._said.get()
            self.run_dir.add_event(kind, **details)
            if "error" in details:
                log.say(f"checkpoint of step {details['step']} was not copied: {details['error']}")

    def copy_once(self) -> None:
        """Copies all that is not there, in this thread. Raises UserError for the first that fails, and for a store that
        is ahead of the run folder: it would lose the lines of its newer steps and its best checkpoint.
        """
        newest_here, _ = resume.newest_whole(self.run_dir)
        step_here = -1 if newest_here is None else manifest.step_of(newest_here) or 0
        for newest in store.whole(self.place.names())[-1:]:
            if step_here < (manifest.step_of(Path(newest)) or 0):
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

    def claim(self) -> None:
        """Writes the configuration there, so that a place that cannot be written is known before the first step."""
        self.place.write(self.run_dir.config.name, self.run_dir.config.read_bytes())
        self._is_claimed = True

    def _copy_all(self, checkpoints: Sequence[Path]) -> None:
        """In the thread: the records come first, as a checkpoint there without the lines of its steps would lose them,
        and last, with what has happened since.
        """
        yield_to_training()
        step = manifest.step_of(checkpoints[0]) if checkpoints else 0
        try:
            _tried(self._check_place)
            _tried(self._copy_records)
            for folder in checkpoints:
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
        """Raises WorldError where what `claim` wrote is gone, since copies would fill the disk under a lost mount, and
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
        """Copies a checkpoint that is not there, and have it said how large it is and how long that took."""
        begin = time.monotonic()
        if _tried(partial(self._copy, folder)):
            size = sum(file["bytes"] for file in manifest.read(folder)["files"].values())
            details = {"to": str(self.place), "bytes": size, "seconds": round(time.monotonic() - begin, 3)}
            self._said.put(("copied", {"step": manifest.step_of(folder), **details}))

    def _copy(self, folder: Path) -> bool:
        """Copies a checkpoint. Returns whether it was not there."""
        return store.copy(folder, self.place.below(f"checkpoints/{folders.published_name(folder)}"))

    def _copy_records(self) -> None:
        """Writes the records as they are now over those there."""
        for path in self._records():
            if path.is_file():
                self.place.write(path.relative_to(self.run_dir.path).as_posix(), path.read_bytes())

    def _prune(self) -> None:
        """Deletes there what the run folder's rules delete here. The best one is that of the newest one there: a better
        one that is saved by now is not copied yet.
        """
        whole = store.whole(self.place.names())
        here = folders.steps_in(self.run_dir.checkpoints)
        copied = [folder for folder in here if folders.published_name(folder) in whole]
        wanted = {*whole[-self.settings.keep :], *map(_best_of, copied[-1:])}
        for name in whole:
            if name not in wanted and not folders.is_multiple(Path(name), self.settings):
                store.remove(self.place.below(f"checkpoints/{name}"))

    # From the store

    def check(self, config: Config) -> None:
        """Raises ConfigError where the store holds a run that this configuration does not continue. Without a whole
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

    def refuse(self) -> None:
        """Raises ConfigError where the store holds a checkpoint of a run: one that begins anew would mix with it."""
        if store.whole(self.place.names()):
            raise ConfigError(
                f"{KEY}: {self.place} holds a run of this name, and checkpoint.resume=never begins anew; choose "
                "another run.name, or delete what is there"
            )

    def bring_newest(self) -> None:
        """Brings the newest whole checkpoint of the store into the run folder with the records, unless one as new is
        whole there, and the best one, unless it is. Raises UserError for a store that cannot be reached or read, and
        where nothing whole is left in either place: a run from scratch would bury what is there.
        """
        names = self.place.names()
        whole = store.whole(names)
        brought = self._bring_newest(whole)
        self._bring_records(names if whole else (), is_ahead=bool(brought))
        if brought:
            self.run_dir.add_event("brought back", checkpoint=brought, source=str(self.place))
        self._bring_best(whole)

    def replace(self, folder: Path, problem: str) -> Path | None:
        """Sets a damaged checkpoint aside and brings its copy into its place. Returns None, and leaves it as it is,
        where there is no whole copy or the store cannot be read, which is said.
        """
        name = folders.published_name(folder)
        final = self.run_dir.checkpoints / name
        try:
            if name not in store.whole(self.place.names()):
                return None
            brought = self._bring(name, final.with_name(f".{name}.brought"))
        except UserError as error:
            log.say(f"{error.problems[0]}: no whole copy of {folder} comes from there")
            return None
        folders.set_aside(self.run_dir, folder, problem)
        brought.rename(final)
        self.run_dir.add_event("brought back", checkpoint=name, source=str(self.place))
        return final

    def _bring_newest(self, whole: Sequence[str]) -> str:
        """Brings the newest of the checkpoints that are `whole` there, if it is newer than those here; where it turns
        out damaged, an older one. Returns its name; empty for none.
        """
        newest_here, damaged = resume.newest_whole(self.run_dir)
        step_here = None if newest_here is None else manifest.step_of(newest_here)
        for name in reversed(whole):
            if step_here is not None and step_here >= (manifest.step_of(Path(name)) or 0):
                return ""
            for folder, problem in damaged.items():
                if folders.published_name(folder) == name:
                    folders.set_aside(self.run_dir, folder, problem)
            try:
                self._bring(name)
            except DamagedError as error:
                log.say(f"{error.problems[0]}; an older one is tried")
                continue
            write_atomic(self.run_dir.latest, f"{name}\n")
            return name
        if newest_here is None and whole:
            raise CheckpointError(
                f"{self.place}: holds damaged checkpoints alone; look at the lines above, and to begin anew delete "
                "what is there, or choose another run.name"
            )
        return ""

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

    def _bring_best(self, whole: Collection[str]) -> None:
        """The best checkpoint that the newest one here knows comes back unless it is whole, and `best` names it. The
        file of an older folder, or of one that has lost it, does not know.
        """
        newest_here, _ = resume.newest_whole(self.run_dir)
        if newest_here is None:
            return
        best = _best_of(newest_here)
        if best in whole and not self._is_whole(best):
            try:
                self._bring(best)
            except DamagedError as error:
                log.say(f"{error.problems[0]}; the best checkpoint stays lost")
        if not best or not (self.run_dir.checkpoints / best).is_dir():
            self.run_dir.best.unlink(missing_ok=True)
        elif not self.run_dir.best.is_file() or self.run_dir.best.read_bytes().strip() != best.encode():
            write_atomic(self.run_dir.best, f"{best}\n")

    def _is_whole(self, name: str) -> bool:
        """Returns whether a checkpoint is here, as far as sizes tell; one that is damaged is set aside."""
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

    def _bring(self, name: str, to: Path | None = None) -> Path:
        """Brings one checkpoint of the store into its place in the run folder, or `to` another. Returns the folder."""
        final = to or self.run_dir.checkpoints / name
        log.say(f"{name}: comes from {self.place}")
        with published_folder(final) as temporary:
            store.fetch(self.place.below(f"checkpoints/{name}"), temporary)
        return final

    def _records(self) -> list[Path]:
        run = self.run_dir
        return [run.config, run.environment, run.metrics, run.events, run.evaluation, run.best]


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
