"""A study's runner: its cells, some at a time, from one fork server, until none is left.

Every cell is an ordinary run that goes on by itself, so the study needs no state of its own: a cell whose run folder
has DONE and eval.json is done, and running the study again does the others. This module itself never imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, LaunchError, UserError
from gpt1_ds.common.files import append, write_json
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.units import duration
from gpt1_ds.config import Config
from gpt1_ds.parallel import launch
from gpt1_ds.training.cells import Cell, Plan

FINETUNE = "gpt1_ds.training.finetune:finetune"
TRIES = 2  # of a cell that fails for a reason that may pass
POLL_SECONDS = 0.5  # between looks at the STOP file
LOCK_SECONDS = 5.0  # to wait for another process that runs this study
USER, HANDOVER = "user", "handover"


def run(plan: Plan, jobs: int, update: Callable[[], None], target: str = FINETUNE) -> int:
    """Run the cells that are not done; the program's exit code: 0 all done, 1 some failed, 75 to be continued.

    `update` is called at the beginning and after every cell; `target` is what a rank runs with a cell's configuration.
    Ctrl-C, SIGTERM and a file STOP in the study's folder let the running cells save and end.
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
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        self._before: dict[int, Any] = {number: signal.signal(number, self._note) for number in numbers}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
        self.waiting = deque(plan.waiting)
        self.tries: Counter[Cell] = Counter()
        self.failed: dict[Cell, str] = {}

    def run(self) -> int:
        total, left = len(self.plan.cells), len(self.waiting)
        self._say(f"{self.plan.folder}: {total} cells, {total - left} done, {left} to do, {self.jobs} at a time")
        self.folder.add_event("started", cells=total, done=total - left, jobs=self.jobs)
        self.update()
        with _bar(total) as show, ThreadPoolExecutor(self.jobs, thread_name_prefix="cell") as pool:
            try:
                self._run_all(pool, show)
            except BaseException:
                launch.signal_ranks(signal.SIGTERM)  # the pool waits for its threads
                raise
        return self._finish()

    def _run_all(self, pool: ThreadPoolExecutor, show: Callable[[int, str], None]) -> None:
        running: dict[Future[float], Cell] = {}
        while self.waiting or running:
            if self.stop.asked():
                self.waiting.clear()
                launch.signal_ranks(signal.SIGTERM)  # again and again: a cell may just have begun
            while self.waiting and len(running) < self.jobs:
                cell = self.waiting.popleft()
                running[pool.submit(self._run_cell, cell)] = cell
            done = len(self.plan.cells) - len(self.waiting) - len(running) - len(self.failed)
            show(done, "; ".join(map(str, running.values())))
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                self._settle(running.pop(future), future)

    def _run_cell(self, cell: Cell) -> float:
        """In a thread: seconds that the cell took now."""
        begin = time.monotonic()
        arguments = (self.target, cell.config, str(self.log_file))
        launch.start(f"{__name__}:run_cell", arguments, self.plan.study.nproc)
        return time.monotonic() - begin

    def _settle(self, cell: Cell, future: Future[float]) -> None:
        error = future.exception()
        if error is None and cell.done:
            if not self.plan.study.keep_checkpoints:
                shutil.rmtree(cell.run_dir.checkpoints, ignore_errors=True)
            self.folder.add_event("done", cell=self._name(cell), seconds=round(future.result(), 3))
            left = f"{len(self.plan.waiting)} of {len(self.plan.cells)} left"
            self._say(f"{cell}: {_score(cell)}  {duration(future.result())}  {left}")
        elif error is None or self.stop.reason:
            self._say(f"{cell}: stopped, to be continued")
        else:
            self._note_failure(cell, error)
        self.update()

    def _note_failure(self, cell: Cell, error: BaseException) -> None:
        self.tries[cell] += 1
        lasting = isinstance(error, UserError) and not isinstance(error, LaunchError)
        again = not lasting and self.tries[cell] < TRIES
        reason = str(error).rpartition("\n")[2]
        self.folder.add_event("failed", cell=self._name(cell), reason=reason, again=again)
        append(self.log_file, f"{cell}: {error}\n")
        log.say(f"{cell}: failed: {reason}{'; it is tried again later' if again else ''}")
        if again:
            self.waiting.append(cell)
        else:
            self.failed[cell] = reason

    def _finish(self) -> int:
        left = len(self.plan.waiting)
        self.folder.add_event("stopped", reason=self.stop.reason or "done", left=left, failed=len(self.failed))
        for cell, reason in self.failed.items():
            self._say(f"{cell}: failed: {reason}; its run folder is {cell.run_dir.path}")
        words = f"{left} cells are left; the same command goes on" if left else "all cells are done"
        self._say(f"{self.plan.folder}: {words}")
        if self.failed:
            return EXIT_FAILURE
        return EXIT_CONTINUE if left and self.stop.reason != USER else 0

    def _name(self, cell: Cell) -> str:
        return cell.run_dir.path.relative_to(self.plan.folder).as_posix()

    def _say(self, text: str) -> None:
        log.say(text)
        append(self.log_file, f"{text}\n")


def _score(cell: Cell) -> str:
    """The dev split's first metric, as a finished cell's eval.json has it."""
    entries = json.loads(cell.run_dir.evaluation.read_text())
    scores = [entry["metrics"] for entry in entries if entry["split"] == "dev"]
    return ", ".join(f"{name} {value:.4f}" for metrics in scores for name, value in list(metrics.items())[:1])


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int, str], None]]:
    """A function that shows how many cells are done and which ones run: a bar on a terminal, nothing in a log."""
    if not log.is_terminal():
        yield lambda done, running: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}  {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, running: bar.update(task, completed=done, description=running)
