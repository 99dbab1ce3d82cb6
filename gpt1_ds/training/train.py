"""`gpt1_ds.train`: a run in this process, from a script or a notebook."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.common import stop_signals
from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import explain
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config
from gpt1_ds.config.layers import names_task
from gpt1_ds.config.values import as_overrides
from gpt1_ds.launcher import accelerator, launch, libraries
from gpt1_ds.tracking.wandb import as_trial
from gpt1_ds.training.checks import Start
from gpt1_ds.training.configuration import finetune_config, pretrain_config
from gpt1_ds.training.state import DONE, Outcome

Settings = str | Path | Mapping[str, Any] | Sequence[str | Path]
_RUNNING = threading.Lock()
_DONE: list[str] = []  # names of runs: ranks that a launcher started meet once


@dataclass(frozen=True)
class Ended:
    """How a run ended. It can be given where a path is taken, as in `gpt1_ds.load(ended)`."""

    path: Path  # of the run folder
    reason: str  # done; user: a file STOP asked; handover: a signal or a time limit asked, to be continued
    step: int  # the last one
    loss: float | None  # of the last logged training step, nats per token; None: none was logged, or it was not finite
    held_out_loss: float | None  # of the last evaluation; None for fine-tuning, whose scores are in eval.json

    @property
    def done(self) -> bool:
        """Returns whether nothing is left to train; else the same call continues."""
        return self.reason == DONE

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        return self.path / name


def train(config: Settings = (), **overrides: Any) -> Ended:
    """Pre-trains, or fine-tune where the configuration has a task, as the one rank that this process is (under torchrun
    one of theirs), until the run is done or asked to stop. Returns how it ended; the same call resumes there.

    `config` is a file or shipped preset, a list of them, or a mapping of keys; `overrides` are sections or keys:
    `train("pretrain/tiny_cpu", data={"path": "data/books"}, train={"steps": 100})`. Interrupting it once saves and
    stops, and so does SIGTERM. A process trains one run at a time, and as many as it likes one after the other (under
    torchrun one in all).

    Raises UserError where the program exits with 2, LaunchError for a second run at the same time and outside the main
    thread, TrainingError for a run that cannot continue.
    """
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError(
            "gpt1_ds.train: signals arrive in the main thread only; call it there, or use gpt1-ds pretrain"
        )
    if not _RUNNING.acquire(blocking=False):
        raise LaunchError("gpt1_ds.train: a run is under way in this process; wait for it, or start another process")
    try:
        return _train(*_words(config, overrides))
    except ConfigError as error:  # there is no command line here
        raise ConfigError(*(one.replace("command line: ", "gpt1_ds.train: ", 1) for one in error.problems)) from None
    except OSError as error:
        raise (explain(error) or error) from None
    finally:
        _RUNNING.release()


def _words(config: Settings, overrides: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns files and key=value overrides, as on the command line."""
    mapping = dict(config) if isinstance(config, Mapping) else {}
    files = [] if isinstance(config, Mapping) else [config] if isinstance(config, (str, Path)) else config
    if not isinstance(files, Sequence) or not all(isinstance(name, (str, Path)) for name in files):
        raise ConfigError(f"gpt1_ds.train: {config!r:.80} is no configuration; give a preset, a file or a mapping")
    ConfigError.raise_all(
        f"gpt1_ds.train: {key}={value!r:.80} is no section; write {key}={{'KEY': VALUE}}"
        for key, value in overrides.items()
        if "." not in key and not isinstance(value, Mapping)
    )
    return [str(name) for name in files], [*as_overrides(mapping), *as_overrides(dict(overrides))]


def _train(files: Sequence[str], arguments: Sequence[str]) -> Ended:
    config = as_trial((finetune_config if names_task(files, arguments) else pretrain_config)(files, arguments))
    world = launch.world(None)
    if world > 1 and _DONE:
        raise LaunchError(f"gpt1_ds.train: this process has run {_DONE[-1]}; under a launcher each run starts it anew")
    start = Start(accelerator.with_fitted_micro_batch(config, world), world)
    start.check()
    accelerator.prepare(start.config)
    start = start.with_corpus()
    if (step := start.finished_step()) is not None:
        start.say_finished(step)
        return _ended(start.run_dir, DONE, step)
    _DONE.append(config.run.name)
    with _as_before():
        outcome = _run(start.resolved if start.config.task is None else start.config)
    gc.collect()  # an engine is in circles of references; until they are found its weights are beside the next one's
    return _ended(start.run_dir, outcome.reason, outcome.step)


def _run(config: Config) -> Outcome:
    libraries.load()
    from gpt1_ds.training.finetuning import run_finetuning
    from gpt1_ds.training.pretraining import run_pretraining

    return (run_pretraining if config.task is None else run_finetuning)(config)


def _ended(run_dir: RunDir, reason: str, step: int) -> Ended:
    """Returns how a run ended, with the losses that metrics.jsonl has."""
    last = {line["kind"]: line.get("loss") for line in read_jsonl(run_dir.metrics)}
    return Ended(run_dir.path, reason, step, last.get("train"), last.get("eval"))


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """A run's signal handlers and access rights of new files are not those of the process that called, and neither is
    the hook for errors that nobody catches: torch sets its own, which writes the rank before every line.
    """
    handlers, rights, hook = stop_signals.current(), os.umask(0o077), sys.excepthook
    os.umask(rights)  # only setting it returns the one before
    try:
        yield
    finally:
        os.umask(rights)
        sys.excepthook = hook
        stop_signals.restore(handlers)
