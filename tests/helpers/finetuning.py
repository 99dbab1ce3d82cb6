"""Real fine-tuning runs on small tasks (tools/small_tasks.py)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config
from gpt1_ds.launcher import launch
from gpt1_ds.training.configuration import finetune_config

TRAINING = [
    *("train.global_batch=8", "train.micro_batch=2", "train.log_every=1", "checkpoint.every=0", "run.seed=3"),
    *("optimizer.name=adam2018", "optimizer.lr=2e-3", "schedule.kind=linear", "schedule.warmup_fraction=0.002"),
]
LAYOUTS = {
    "one": (1, []),
    "tp2": (2, ["parallel.tensor=2"]),
    "tp2-sequence": (2, ["parallel.tensor=2", "parallel.sequence=true"]),
    "pp2": (2, ["parallel.pipeline=2", "train.micro_batch=1"]),
    "zero2": (2, ["parallel.zero=2"]),
    "zero3": (2, ["parallel.zero=3", "train.micro_batch=4"]),
    "whole": (1, ["train.micro_batch=8"]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2", "train.recompute=block"]),
}


def configuration(arguments: list[str]) -> Config:
    """The configuration of `finetune` with these overrides."""
    return finetune_config([], [*TRAINING, *arguments])


def finetune(arguments: list[str], ranks: int = 1) -> int:
    """The product's own life of a run, on local ranks; its exit code."""
    config = configuration(arguments)
    whole, cut = "gpt1_ds.training.finetuning:finetune", "tests.helpers.finetuning:cut_sequences"
    return launch.launch(cut if config.parallel.sequence else whole, (config,), ranks)


def cut_sequences(config: Config) -> int:
    """Runs on every rank: fine-tuning with parallel.sequence, which the program refuses without CUDA."""
    from gpt1_ds.engine import session
    from gpt1_ds.training.finetuning import finetune
    from tools.layouts import sequence_parallel_on_cpu

    session.device_problems = lambda *_: iter(())
    with sequence_parallel_on_cpu():
        return finetune(config)


def folder(arguments: list[str]) -> RunDir:
    config = configuration(arguments)
    return RunDir(Path(config.run.dir) / config.run.name)


def lines(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    """`train` or `task` lines of metrics.jsonl, of every step once."""
    found = [line for line in read_jsonl(run_dir.metrics) if line["kind"] == kind]
    assert len({line["step"] for line in found}) == len(found), "one line per step"
    return found


def scores(run_dir: RunDir) -> list[tuple[Any, ...]]:
    """Of every evaluation on dev: (step, loss, metrics)."""
    return [(line["step"], line["loss"], line["metrics"]) for line in lines(run_dir, "task")]


def best(run_dir: RunDir) -> Path:
    """The checkpoint that scored best, verified."""
    path = run_dir.checkpoints / run_dir.best.read_text().strip()
    verify_files(path, manifest.read(path))
    return path


def end_at(config: Config, moment: str, step: int) -> int:
    """Runs on every rank: a life that ends like by kill -9 at a moment of an epoch's end, when `step` is reached.

    `naming`: the best checkpoint is published but not yet named. `evaluation`: a stop is asked for and its checkpoint
    is there, the scores are not.
    """
    from gpt1_ds.training.batches import Batches
    from gpt1_ds.training.finetuning import finetune
    from gpt1_ds.training.saver import Evaluator, Saver

    place: Any = {"naming": Saver, "evaluation": Evaluator}[moment]
    name = {"naming": "_name_best", "evaluation": "evaluate"}[moment]
    real, following = getattr(place, name), Batches.next

    def ended(self: Any, state: Any) -> Any:
        if state.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, state)

    def asked(self: Any, state: Any) -> Any:
        if state.step + 1 == step and moment == "evaluation":
            self.run_dir.stop.touch()
        return following(self, state)

    setattr(place, name, ended)
    Batches.next = asked  # type: ignore[method-assign]
    return finetune(config)


PARTS = ("task_loss", "language_loss", "accuracy", "clipped")


def assert_same_parts(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Two runs' `train` lines tell the same of what is learned."""
    for mine, theirs in zip(first, second, strict=True):
        assert [mine[key] is None for key in PARTS] == [theirs[key] is None for key in PARTS]
        assert all(mine[key] is None or abs(mine[key] - theirs[key]) < 1e-5 * max(1, mine[key]) for key in PARTS)


def assert_alike(one: Path, other: Path, steps: int, scores_apart: float) -> None:
    """Two run folders have the same batches, losses, gradient norms and scores."""
    first, second = (lines(RunDir(folder), "train") for folder in (one, other))
    assert len(first) == steps
    for mine, theirs in zip(first, second, strict=True):
        assert (mine["batch_fingerprint"], mine["tokens"]) == (theirs["batch_fingerprint"], theirs["tokens"])
        assert abs(mine["loss"] - theirs["loss"]) < 1e-5 * max(1, mine["loss"])
        assert abs(mine["grad_norm"] / theirs["grad_norm"] - 1) < 1e-4
    assert_same_parts(first, second)
    for (step, loss, found), (other_step, other_loss, others) in zip(
        *(scores(RunDir(folder)) for folder in (one, other)), strict=True
    ):
        assert step == other_step
        assert abs(loss - other_loss) < 1e-5 * max(1, loss)
        assert found == pytest.approx(others, abs=scores_apart)
