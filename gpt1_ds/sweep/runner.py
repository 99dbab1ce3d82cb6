"""A study's runner: its cells, some at a time, from one fork server, until none is left.

Every cell is an ordinary run that goes on by itself, so the study needs no state of its own: what a cell's run folder
holds says whether it is done, and running the study again does the others. This module itself never imports torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from gpt1_ds.common import log, progress, stop_signals
from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, LaunchError, UserError
from gpt1_ds.common.files import append, write_json
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.common.units import duration
from gpt1_ds.config import Config
from gpt1_ds.parallel import launch

POLL_SECONDS = 0.5  # between looks at the STOP file
LOCK_SECONDS = 5.0  # to wait for another process that runs this study
USER, HANDOVER = "user", "handover"


class Cell(Protocol):
    """One run of a study; hashed by identity."""

    @property
    def config(self) -> Config: ...

    @property
    def run_dir(self) -> RunDir: ...

    @property
    def done(self) -> bool:
        """Nothing is left to do for it."""

    @property
    def ready(self) -> bool:
        """What it begins from is there."""

    @property
    def result(self) -> str:
        """Of a cell that is done, in a few words."""


class Settings(Protocol):
    @property
    def nproc(self) -> int: ...

    @property
    def tries(self) -> int: ...


class Plan(Protocol):
    @property
    def study(self) -> Settings: ...

    @property
    def cells(self) -> Sequence[Cell]: ...

    @property
    def folder(self) -> Path: ...

    def describe(self) -> dict[str, Any]:
        """What study.json says."""

    def watch(self, running: Mapping[Any, float], spent: float) -> str:
        """Called every POLL_SECONDS with the running cells and the seconds that each took, and the seconds that all
        cells took so far; why the study must stop now, or nothing.
        """

    def tidy(self) -> None:
        """Remove what no cell needs any more."""


def run(plan: Plan, jobs: int, update: Callable[[], None], target: str) -> int:
    """Run the cells that are not done; the program's exit code: 0 all done, 1 some failed, 75 to be continued.

    `update` is called at the beginning and after every cell; `target` is what a rank runs with a cell's configuration.
    Ctrl-C, SIGTERM, a lost terminal and a file STOP in the study's folder let the running cells save and end.
    """
    config = plan.cells[0].config
    os.umask(0o077 if config.run.share == "private" else 0o007)
    plan.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads(jobs * plan.study.nproc)))  # before the fork server starts
    with RunLock(plan.folder / ".lock", LOCK_SECONDS):
        write_json(plan.folder / "study.json", plan.describe())
        runner = _Runner(plan, jobs, update, target)
        with runner.stop:
            return runner.run()


def left(plan: Plan) -> list[Cell]:
    """The cells that are not done."""
    return [cell for cell in plan.cells if not cell.done]


def threads(ranks: int) -> int:
    """Cores of this machine for each of `ranks` ranks."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def run_cell(target: str, config: Config, log_file: str) -> int:
    """On a rank: `target(config)`, with what it would print added to `log_file`."""
    with open(log_file, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    module, _, name = target.partition(":")
    return int(getattr(importlib.import_module(module), name)(config))


class _Stop:
    """What ends a study early; a second Ctrl-C ends its cells without saving."""

    def __init__(self, file: Path) -> None:
        self.file, self.reason, self._interrupts = file, "", 0

    def __enter__(self) -> None:
        self._before = stop_signals.listen(self._note)

    def __exit__(self, *_: object) -> None:
        stop_signals.restore(self._before)

    def _note(self, number: int, _: Any) -> None:
        self.reason = HANDOVER
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            launch.signal_ranks(signal.SIGKILL)

    def asked(self) -> bool:
        if self.file.exists():
            self.file.unlink(missing_ok=True)
            self.reason = USER
        return bool(self.reason)


class _Runner:
    def __init__(self, plan: Plan, jobs: int, update: Callable[[], None], target: str) -> None:
        self.plan, self.jobs, self.update, self.target = plan, jobs, update, target
        self.folder = RunDir(plan.folder)
        self.stop = _Stop(self.folder.stop)
        self.log_file = plan.folder / "study.log"
        self.waiting = deque(left(plan))
        self.tries: Counter[Cell] = Counter()
        self.failed: dict[Cell, str] = {}
        self.begun: dict[Cell, float] = {}  # of what runs now
        self.spent = sum(event.get("seconds", 0.0) for event in read_jsonl(self.folder.events))

    def run(self) -> int:
        total, waiting = len(self.plan.cells), len(self.waiting)
        self._say(f"{self.plan.folder}: {total} cells, {total - waiting} done, {waiting} to do, {self.jobs} at a time")
        self.folder.add_event("started", cells=total, done=total - waiting, jobs=self.jobs)
        self.update()
        threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="cell")
        with progress.bar(total, total - waiting) as show, threads as pool:
            try:
                self._run_all(pool, show)
            except BaseException:
                launch.signal_ranks(signal.SIGTERM)  # the pool waits for its threads
                raise
        return self._finish()

    def _run_all(self, pool: ThreadPoolExecutor, show: progress.Show) -> None:
        running: dict[Future[None], Cell] = {}
        while self.waiting or running:
            now = time.monotonic()
            times = {cell: now - self.begun[cell] for cell in running.values()}
            self.stop.reason = self.stop.reason or self.plan.watch(times, self.spent + sum(times.values()))
            if self.stop.asked():
                self.waiting.clear()
                launch.signal_ranks(signal.SIGTERM)  # again and again: a cell may just have begun
            while len(running) < self.jobs and (cell := self._next(bool(running))) is not None:
                self.begun[cell] = time.monotonic()
                running[pool.submit(self._run_cell, cell)] = cell
            done = len(self.plan.cells) - len(self.waiting) - len(running) - len(self.failed)
            show(done, "; ".join(map(str, running.values())))
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                self._settle(running.pop(future), future)

    def _next(self, others_run: bool) -> Cell | None:
        """The first cell that can begin. What waits for a run that will not come is given up."""
        ready = next((cell for cell in self.waiting if cell.ready), None)
        if ready is not None:
            self.waiting.remove(ready)
        elif self.waiting and not others_run:
            self.failed |= dict.fromkeys(self.waiting, "the run that it begins from did not get there")
            self.waiting.clear()
        return ready

    def _run_cell(self, cell: Cell) -> None:
        """In a thread."""
        arguments = (self.target, cell.config, str(self.log_file))
        launch.start(f"{__name__}:run_cell", arguments, self.plan.study.nproc)

    def _settle(self, cell: Cell, future: Future[None]) -> None:
        error = future.exception()
        seconds = time.monotonic() - self.begun.pop(cell)
        self.spent += seconds
        if cell.done:
            self.plan.tidy()
            self.folder.add_event("done", cell=self._name(cell), seconds=round(seconds, 3))
            to_do = f"{len(left(self.plan))} of {len(self.plan.cells)} left"
            self._say(f"{cell}: {cell.result}  {duration(seconds)}  {to_do}")
        elif error is None or self.stop.reason:
            self.folder.add_event("interrupted", cell=self._name(cell), seconds=round(seconds, 3))
            self._say(f"{cell}: stopped, to be continued")
        else:
            self._note_failure(cell, error, seconds)
        self.update()

    def _note_failure(self, cell: Cell, error: BaseException, seconds: float) -> None:
        self.tries[cell] += 1
        lasting = isinstance(error, UserError) and not isinstance(error, LaunchError)
        again = not lasting and self.tries[cell] < self.plan.study.tries
        reason = str(error).rpartition("\n")[2]
        self.folder.add_event("failed", cell=self._name(cell), reason=reason, again=again, seconds=round(seconds, 3))
        append(self.log_file, f"{cell}: {error}\n")
        log.say(f"{cell}: failed: {reason}{'; it is tried again later' if again else ''}")
        if again:
            self.waiting.append(cell)
        else:
            self.failed[cell] = reason

    def _finish(self) -> int:
        waiting = len(left(self.plan))
        self.folder.add_event("stopped", reason=self.stop.reason or "done", left=waiting, failed=len(self.failed))
        for cell, reason in self.failed.items():
            self._say(f"{cell}: failed: {reason}; its run folder is {cell.run_dir.path}")
        words = f"{waiting} cells are left; the same command goes on" if waiting else "all cells are done"
        if self.stop.reason not in ("", USER, HANDOVER):
            words = f"{self.stop.reason}; {words}"
        self._say(f"{self.plan.folder}: {words}")
        if self.failed:
            return EXIT_FAILURE
        return EXIT_CONTINUE if waiting and self.stop.reason != USER else 0

    def _name(self, cell: Cell) -> str:
        return cell.run_dir.path.relative_to(self.plan.folder).as_posix()

    def _say(self, text: str) -> None:
        log.say(text)
        append(self.log_file, f"{text}\n")
