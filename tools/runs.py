"""Real runs, started from the warm fork server, stopped in the ways that runs are stopped."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config, load
from gpt1_ds.launcher import launch

TINY = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.global_batch=8"),
    *("train.micro_batch=2", "train.log_every=1", "train.eval_every=0", "train.eval_batches=1", "checkpoint.every=5"),
]


@dataclass
class Background:
    """A run in a thread of this process: its ranks are children that a test may signal."""

    overrides: list[str]
    ranks: int
    life: Callable[[list[str], int], int] = field(default_factory=lambda: pretrain)
    result: Any = None
    error: BaseException | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.run_dir = folder(self.overrides)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self.life(self.overrides, self.ranks)
        except BaseException as error:
            self.error = error

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.thread.is_alive() or condition(), f"the run ended early: {self.error}"
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.005)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: last_step(self.run_dir) >= step)

    def processes(self) -> list[Any]:
        children = multiprocessing.active_children()
        return sorted((p for p in children if p.name.startswith("rank-")), key=lambda p: int(p.name[5:]))

    def signal(self, number: int, ranks: list[int] | None = None) -> None:
        for process in self.processes():
            if ranks is None or int(process.name[5:]) in ranks:
                os.kill(process.pid, number)

    def join(self, seconds: float = 60) -> None:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the run did not end"


def configuration(overrides: list[str]) -> Config:
    return load([], [*TINY, *overrides])


def folder(overrides: list[str]) -> RunDir:
    config = configuration(overrides)
    return RunDir(Path(config.run.dir) / config.run.name)


def pretrain(overrides: list[str], ranks: int) -> int:
    """The product's own life of a run, on local ranks; its exit code."""
    return launch.launch("gpt1_ds.training.pretraining:pretrain", (configuration(overrides),), ranks)


def with_variables(environment: dict[str, str]) -> Callable[[list[str], int], int]:
    """Returns how a run lives whose ranks have these variables: their fork server may be older than them."""

    def life(overrides: list[str], ranks: int) -> int:
        return launch.launch("tools.runs:rank_with", (environment, configuration(overrides)), ranks)

    return life


def rank_with(environment: dict[str, str], config: Config) -> int:
    """Trains on this rank."""
    from gpt1_ds.training.pretraining import pretrain as pretrain_here

    os.environ.update(environment)
    return pretrain_here(config)


def losses(run_dir: RunDir) -> dict[int, float]:
    lines = [line for line in read_jsonl(run_dir.metrics) if line["kind"] == "train"]
    steps = [line["step"] for line in lines]
    assert len(steps) == len(set(steps)), "one line per step"
    return {line["step"]: line["loss"] for line in lines}


def weights(run_dir: RunDir) -> dict[str, str]:
    """Hashes of all master weights in the newest checkpoint."""
    return dict(manifest.read(find_checkpoint(run_dir.path))["parameters"])


def last_step(run_dir: RunDir) -> int:
    return max((line["step"] for line in read_jsonl(run_dir.metrics)), default=0)


def events(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_jsonl(run_dir.events) if event["event"] == kind]
