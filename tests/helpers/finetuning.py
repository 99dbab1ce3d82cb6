"""Tiny tasks that can be learned, written as tables, and real fine-tuning runs on them."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config
from gpt1_ds.config.task import GENERATION, TOKEN_KINDS
from gpt1_ds.launcher import launch
from gpt1_ds.training.configuration import finetune_config

TEXT = "the module returns a list of names when an object is called with two arguments and raises no error"
WORDS = TEXT.split()
COLUMNS = {
    "single": "{text: a, label: x}",
    "pair": "{text: a, text2: b, label: x}",
    "similarity": "{text: a, text2: b, label: x}",
    "regression": "{text: a, text2: b, label: x}",
    "choice": "{text: a, label: x, choices: [c]}",
    "question": "{text: a, text2: b, label: x, choices: [c]}",
}
KIND = {"single": "classification", "pair": "classification", "question": "choice"}  # of those named otherwise
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


def make_task(folder: Path, shape: str, train: int = 48, dev: int = 20) -> list[str]:
    """Files of a task of this shape, the same every time; the words that configure it."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(shape)
    for split, count in (("train", train), ("dev", dev)):
        rows = [_row(shape, draw, number) for number in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kind, _, loss = shape.partition("-")
    kind = KIND.get(kind, kind)
    if loss:
        return _make_sentences(folder, loss)
    if kind in (*TOKEN_KINDS, GENERATION):  # whose columns have names of their own
        return ["task.name=table", f"task.path={folder}", f"task.kind={kind}"]
    return ["task.name=table", f"task.path={folder}", f"task.kind={kind}", f"task.columns={COLUMNS[shape]}"]


def _make_sentences(folder: Path, loss: str) -> list[str]:
    """What scores the vectors lies beside the training file."""
    scored = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    (folder / "sts").mkdir(exist_ok=True)
    lines = ["sentence1\tsentence2\tscore", *(f"{row['a']} .\t{row['b']} .\t{row['score']}" for row in scored)]
    (folder / "sts" / "dev.tsv").write_text("\n".join(lines) + "\n")
    (folder / "dev.jsonl").unlink()
    words = ["task.name=table", f"task.path={folder}", "task.kind=sentences", f"task.loss={loss}"]
    return [*words, f"task.columns={COLUMNS['pair']}", f"task.sts={folder / 'sts'}"]


def _row(shape: str, draw: random.Random, number: int) -> dict[str, Any]:
    """One example; what it is shows in its words."""

    def text() -> list[str]:
        return draw.choices(WORDS, k=draw.randint(2, 7))

    if shape == "tagging":
        words = draw.choices(WORDS, k=draw.randint(3, 9))
        return {"tokens": words, "tags": [f"B-{word[0]}" if word[0] in "lna" else "O" for word in words]}
    if shape == "generation":
        words = text()
        return {"source": " ".join(words), "target": " ".join(words[-3:])}
    if shape == "span":
        return _question(draw, number)
    row: dict[str, Any] = {"a": " ".join(text()), "b": " ".join(text())}
    if shape == "regression":
        common = draw.randint(0, 4)
        row["b"] = " ".join([*draw.choices(row["a"].split(), k=common), *draw.choices(["file", "path"], k=4 - common)])
        return {**row, "x": round(common * 1.2 + 0.1, 2)}
    if shape in ("choice", "question"):
        right = number % 3
        return {**row, "x": right, "c": [" ".join(text()[:3]) + (" file" if n == right else "") for n in range(3)]}
    if shape.startswith("sentences"):
        number, kind = divmod(number, 3)  # three texts for one
        row["a"] = " ".join(random.Random(number).choices(WORDS, k=5))
        row["score"] = (5.0, 2.5, 0.5)[kind]
        row["b"] = " ".join([*row["a"].split()[: 5 - 2 * kind], *draw.choices(["file", "path"], k=1 + kind)])
        label = ("entailment", "neutral", "contradiction")[kind]
        return {**row, "x": row["score"] if shape == "sentences-cosine" else label}
    label = number % 2
    row["b" if shape != "single" and number % 4 > 1 else "a"] += " file path" if label else " value"
    return {**row, "x": ("no", "yes")[label]}


def _question(draw: random.Random, number: int) -> dict[str, Any]:
    """The answer follows the word that is asked for; now and then there is none."""
    words = draw.choices([word for word in WORDS if word != "error"], k=draw.randint(30, 60))
    answers, starts = [], []
    if number % 4:
        at = draw.randrange(len(words) - 1)
        words[at] = "error"
        answers, starts = [words[at + 1]], [len(" ".join(words[: at + 1])) + 1]
    return {"question": "which error", "context": " ".join(words), "answers": answers, "starts": starts}


def configuration(words: list[str]) -> Config:
    """The configuration of `finetune` with these overrides."""
    return finetune_config([], [*TRAINING, *words])


def finetune(words: list[str], ranks: int = 1) -> int:
    """The product's own life of a run, on local ranks; its exit code."""
    config = configuration(words)
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


def folder(words: list[str]) -> RunDir:
    config = configuration(words)
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
