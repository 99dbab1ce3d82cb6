"""The runner of a sweep: its trials, some at a time, from one fork server, until none is left. Never imports torch."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

from gpt1_ds.common import log, stop_signals
from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, DataError, LaunchError, UserError, WorldError
from gpt1_ds.common.files import append, explain, write_json
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir, read_jsonl, restrict
from gpt1_ds.common.text import amount, duration
from gpt1_ds.config import Config
from gpt1_ds.launcher import accelerator, launch
from gpt1_ds.sweep.outcome import WAY_OUT
from gpt1_ds.sweep.trial import Sweep, Trial

POLL_SECONDS = 0.5  # between looks at the STOP file
LOCK_SECONDS = 5.0  # to wait for another process that runs this sweep
USER, HANDOVER = "user", "handover"


def run(sweep: Sweep, jobs: int, update: Callable[[], None] = lambda: None) -> int:
    """Runs the trials that are not done; the program's exit code: 0 all done, 1 some failed, 75 to be continued.

    `update` is called at the beginning and after every trial. Ctrl-C, SIGTERM, a lost terminal and a file STOP in the
    sweep's folder let the running trials save and end.
    """
    config = sweep.trials[0].config
    accelerator.prepare(config, sweep.study.nproc)
    make_folder(sweep)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads(jobs * sweep.study.nproc)))  # before the fork server starts
    with RunLock(sweep.folder / ".lock", LOCK_SECONDS):
        write_json(RunDir(sweep.folder).study, sweep.describe())
        runner = _Runner(sweep, jobs, update)
        before = stop_signals.listen(runner.note_signal)
        try:
            return runner.run()
        finally:
            stop_signals.restore(before)


def make_folder(sweep: Sweep) -> None:
    """The sweep's folder, for others to read as `run.share` says; so are all files that this process makes from now."""
    restrict(sweep.folder, sweep.trials[0].config.run.share)


def threads(ranks: int) -> int:
    """Returns the number of this machine's cores for each of `ranks` ranks."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def run_trial(target: str, config: Config, log_file: str, devices: str | None = None) -> int:
    """Runs `target(config)` on a rank, on the GPUs `devices`, with what it would print added to `log_file`."""
    if devices is not None:  # CUDA reads it when it is first used, which is later
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    with open(log_file, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    module, _, name = target.partition(":")
    return int(getattr(importlib.import_module(module), name)(config))


class _Runner:
    """`stop` is why the sweep ends early, or nothing."""

    def __init__(self, sweep: Sweep, jobs: int, update: Callable[[], None]) -> None:
        self.sweep, self.jobs, self.update, self._is_late = sweep, jobs, update, False
        self.folder = RunDir(sweep.folder)
        self.stop, self._interrupts = "", 0
        self.log_file = sweep.folder / "study.log"
        self.waiting = deque(sweep.left)
        self.tries: Counter[Trial] = Counter()
        self.failed: dict[Trial, str] = {}
        self.started: dict[Trial, float] = {}  # of what runs now
        shares = accelerator.shares(sweep.trials[0].config, sweep.study.nproc, jobs)
        self.devices: SimpleQueue[str | None] = SimpleQueue()  # of the jobs that do not run now
        for number in range(jobs):
            self.devices.put(shares[number] if shares else None)
        self.spent = sum(event.get("seconds", 0.0) for event in read_jsonl(self.folder.events))

    def note_signal(self, number: int, _: Any) -> None:
        """A second Ctrl-C ends the trials without saving."""
        if not self.stop:
            again = "; Ctrl-C again ends them without saving" if log.is_terminal() else ""
            log.say_from_handler(f"asked to stop: the running cells save and end, which can take a step each{again}")
        self.stop = HANDOVER
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            launch.signal_ranks(signal.SIGKILL)

    def run(self) -> int:
        total, waiting = len(self.sweep.trials), len(self.waiting)
        self._say(f"{self.sweep.totals}, {self.jobs} at a time")
        self.folder.add_event("started", cells=total, done=total - waiting, jobs=self.jobs)
        self.update()
        if self.waiting:
            launch.server()  # from the main thread: one that begins in another does not ignore a lost terminal
        threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="trial")
        with log.bar(total, total - waiting) as show, threads as pool:
            try:
                self._run_all(pool, show)
            except BaseException:
                launch.signal_ranks(signal.SIGTERM)  # the pool waits for its threads
                raise
        return self._finish()

    def _run_all(self, pool: ThreadPoolExecutor, show: log.Show) -> None:
        running: dict[Future[None], Trial] = {}
        while self.waiting or running:
            now = time.monotonic()
            times = {trial: now - self.started[trial] for trial in running.values()}
            if reason := self.sweep.watch(times, self.spent + sum(times.values())):  # takes time: a signal may come
                self.stop = self.stop or reason
            if self.folder.stop.exists():
                self.folder.stop.unlink(missing_ok=True)
                self.stop = USER
            if self.stop:
                self.waiting.clear()
                launch.signal_ranks(signal.SIGTERM)  # again and again: a trial may just have started
            while len(running) < self.jobs and (trial := self._next(bool(running))) is not None:
                self.started[trial] = time.monotonic()
                running[pool.submit(self._run_trial, trial)] = trial
            done = len(self.sweep.trials) - len(self.waiting) - len(running) - len(self.failed)
            show(done, "; ".join(map(str, running.values())))
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                self._settle(running.pop(future), future)

    def _next(self, others_run: bool) -> Trial | None:
        """Returns the first trial that can begin. What waits for a run that will not come is given up."""
        ready = next((trial for trial in self.waiting if trial.ready), None)
        if ready is not None:
            self.waiting.remove(ready)
        elif self.waiting and not others_run:
            for trial in self.waiting:
                if trial.done:
                    self._say(f"{trial}: {trial.result}")
                else:
                    self.failed[trial] = f"{trial.trunk} has not left the checkpoint that it begins from"
            self.waiting.clear()
        return ready

    def _run_trial(self, trial: Trial) -> None:
        """In a thread."""
        devices = self.devices.get()
        try:
            arguments = (self.sweep.target, trial.config, str(self.log_file), devices)
            launch.start(f"{__name__}:run_trial", arguments, self.sweep.study.nproc)
        finally:
            self.devices.put(devices)

    def _settle(self, trial: Trial, future: Future[None]) -> None:
        error = future.exception()
        seconds = time.monotonic() - self.started.pop(trial)
        self.spent += seconds
        if trial.done:
            self.sweep.remove_checkpoints()
            self.folder.add_event("done", cell=self._name(trial), seconds=round(seconds, 3))
            to_do = f"{len(self.sweep.left)} of {len(self.sweep.trials)} left"
            self._say(f"{trial}: {trial.result}  {duration(seconds)}  {to_do}")
        elif error is None and trial.run_dir.done.exists():  # another start says so again
            self._note_failure(trial, DataError(f"it is done, and its folder lacks the result; {WAY_OUT}"), seconds)
        elif error is None or self.stop:
            self.folder.add_event("interrupted", cell=self._name(trial), seconds=round(seconds, 3))
            self._say(f"{trial}: stopped, to be continued")
        else:
            self._note_failure(trial, error, seconds)
        self._try_update()

    def _try_update(self) -> None:
        """What a full disk does not take is written after the next trial, or at the end: the others run."""
        try:
            self.update()
            self._is_late = False
        except OSError as error:
            if not isinstance(explained := explain(error), WorldError):
                raise
            log.say(f"{explained}; it is written again after the next cell")
            self._is_late = True

    def _note_failure(self, trial: Trial, error: BaseException, seconds: float) -> None:
        self.tries[trial] += 1
        lasting = isinstance(error, UserError) and not isinstance(error, LaunchError)
        again = not (lasting or trial.divergence) and self.tries[trial] < self.sweep.study.tries
        reason = str(error).rpartition("\n")[2]
        self.folder.add_event("failed", cell=self._name(trial), reason=reason, again=again, seconds=round(seconds, 3))
        self._note(f"{trial}: {error}")
        log.say(f"{trial}: failed: {reason}{'; it is tried again later' if again else ''}")
        if again:
            self.waiting.append(trial)
        else:
            self.failed[trial] = reason

    def _finish(self) -> int:
        waiting, ends = len(self.sweep.left), self.sweep.early_ends
        self.folder.add_event("stopped", reason=self.stop or "done", left=waiting, failed=len(self.failed))
        for trial, reason in self.failed.items():
            self._say(f"{trial}: failed: {reason}; its run folder is {trial.run_dir.path}")
        end = (
            f"{amount(waiting, 'cell')} left{ends}; the same command resumes"
            if waiting
            else f"all cells are done{ends}"
        )
        if self.stop not in ("", USER, HANDOVER):
            end = f"{self.stop}; {end}"
        self._say(f"{self.sweep.folder}: {end}")
        if self._is_late:
            self.update()
        if self.failed:
            return EXIT_FAILURE
        return EXIT_CONTINUE if waiting and self.stop != USER else 0

    def _name(self, trial: Trial) -> str:
        return trial.run_dir.path.relative_to(self.sweep.folder).as_posix()

    def _say(self, text: str) -> None:
        log.say(text)
        self._note(text)

    def _note(self, text: str) -> None:
        """Adds it to study.log. A full disk costs the line, not the trials that run."""
        with contextlib.suppress(OSError):
            append(self.log_file, f"{text}\n")
