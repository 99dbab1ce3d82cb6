"""`gpt1_ds.train` and `gpt1_ds.read_metrics`, as a notebook calls them; runs are in a process of their own."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gpt1_ds
from gpt1_ds.common.errors import LaunchError, UserError
from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from gpt1_ds.training.train import _words
from tests.helpers.tasks import DEV, ROWS
from tools import runs

TINY: dict[str, Any] = {
    "model": {"layers": 2, "width": 32, "heads": 2, "context": 32},
    "train": {"steps": 4, "global_batch": 8, "micro_batch": 2, "log_every": 1, "eval_every": 0, "eval_batches": 1},
}


def engines() -> list[object]:
    from gpt1_ds.engine.base import Engine

    return [one for one in gc.get_objects() if issubclass(type(one), Engine)]


def session(data: str, folder: str) -> list[Any]:
    """One process: two runs one after the other, a longer first one, fine-tuning, and what is as it was before."""
    os.chdir(folder)
    here = Path("task")
    here.mkdir()
    (here / "train.csv").write_text(ROWS)
    (here / "dev.csv").write_text(DEV)
    before, hook = (os.umask(0o022), signal.getsignal(signal.SIGINT)), sys.excepthook
    first = gpt1_ds.train(TINY, run={"name": "a"}, data={"path": Path(data)})
    assert not engines(), "its weights and moments are freed"
    loaded = gpt1_ds.load(first)
    assert sys.excepthook is hook, "torch's own writes a rank before every line"
    score = loaded.score("a list")
    second = gpt1_ds.train(TINY, run={"name": "b"}, data={"path": Path(data)})
    assert loaded.score("a list") == score, "a model that was loaded before is still of use"
    longer = gpt1_ds.train({**TINY, "train.steps": 6}, run={"name": "a"}, data={"path": data})
    own = {"name": "table", "path": here, "kind": "classification", "columns": {"text": "text", "label": "label"}}
    tuned = gpt1_ds.train(
        {"run.name": "tuned", "task": own, "checkpoint.init_from": second}, train={"steps": 2, "global_batch": 8}
    )
    after = os.umask(before[0]), signal.getsignal(signal.SIGINT)
    assert (*after, sys.excepthook) == (0o022, before[1], hook)
    try:
        gpt1_ds.train({**TINY, "model.layers": 3}, run={"name": "a"}, data={"path": data})
    except UserError as error:
        told = str(error)
    again = gpt1_ds.train({**TINY, "train.steps": 6}, run={"name": "a"}, data={"path": data})
    assert again == longer, "nothing is left to do"
    assert [run.done for run in (first, second, longer, tuned)] == [True] * 4
    assert (longer.step, first.step) == (6, 4)
    assert first.loss == second.loss != longer.loss
    assert longer.held_out_loss is not None
    assert tuned.held_out_loss is None
    return [first.path, second.path, longer.path, tuned.path, told]


def interrupted(data: str, folder: str, number: int) -> tuple[int, str, bool]:
    """A run that gets a signal after its third step, as by a notebook's stop button; its last step, and how it says
    that it ended.
    """
    metrics = Path(folder) / "runs" / "long" / "metrics.jsonl"

    def press() -> None:
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=press).start()
    own = {"name": "long", "dir": f"{folder}/runs"}
    run = gpt1_ds.train({**TINY, "train.steps": 100_000, "train.log_every": 1}, run=own, data={"path": data})
    last = int(gpt1_ds.read_metrics(run).step.max())
    assert run.step == last
    return last, run.reason, (run / "checkpoints" / f"step-{last:08d}").is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_saves_and_stops_and_is_told(number: signal.Signals, tiny_data: Path, tmp_path: Path) -> None:
    """The run does not look like one that is done."""
    ((last, reason, saved),) = launch.run(f"{__name__}:interrupted", (str(tiny_data), str(tmp_path), int(number)), 1)
    assert 3 <= last < 100_000
    assert reason == "handover"
    assert saved
    assert not (tmp_path / "runs" / "long" / "DONE").exists()


def interrupted_where_an_evaluation_is_due(data: str, folder: str) -> tuple[int, list[int], list[int]]:
    """The last step of a run that evaluates after every step and gets a signal, the steps that it had evaluated then,
    and those that it had evaluated when it was done.
    """
    keys = {**TINY, "train.eval_every": 1, "train.log_every": 1}
    place, own = Path(folder) / "runs" / "long" / "metrics.jsonl", {"name": "long", "dir": f"{folder}/runs"}

    def press() -> None:
        while not place.exists() or place.read_text().count("\n") < 6:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def evaluated() -> list[int]:
        metrics = gpt1_ds.read_metrics(run)
        return [int(step) for step in metrics[metrics.kind == "eval"].step]

    threading.Thread(target=press).start()
    run = gpt1_ds.train({**keys, "train.steps": 100_000}, run=own, data={"path": data})
    before = evaluated()
    gpt1_ds.train({**keys, "train.steps": run.step + 1}, run=own, data={"path": data})
    return run.step, before, evaluated()


def test_a_run_that_hands_over_does_not_evaluate_before_it_ends(tiny_data: Path, tmp_path: Path) -> None:
    """An evaluation longer than slurm.warning was killed at the time limit, and no job followed."""
    target = f"{__name__}:interrupted_where_an_evaluation_is_due"
    ((last, before, after),) = launch.run(target, (str(tiny_data), str(tmp_path)), 1)
    assert before == list(range(1, last))
    assert after == [*before, last, last + 1]


def test_runs_follow_one_another_in_a_process(tiny_data: Path, tmp_path: Path) -> None:
    ((first, second, longer, tuned, told),) = launch.run(f"{__name__}:session", (str(tiny_data), str(tmp_path)), 1)
    assert (first, second, longer, tuned) == (Path("runs/a"), Path("runs/b"), Path("runs/a"), Path("runs/tuned"))
    assert re.match("runs/a belongs to another configuration: model.layers was 2 and is now 3", told)
    a, b = (gpt1_ds.read_metrics(tmp_path / run) for run in (first, second))
    trained = a[a.kind == "train"]
    assert trained.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert trained.loss.tolist()[:3] == b[b.kind == "train"].loss.tolist()[:3], "as if each were alone"
    reference = [f"data.path={tiny_data}", f"run.dir={tmp_path}/program", "train.steps=4"]
    assert runs.pretrain(reference, 1) == 0
    assert b[b.kind == "train"].loss.tolist() == list(runs.losses(runs.folder(reference)).values())
    scores = gpt1_ds.read_metrics(tmp_path / tuned)
    assert scores[scores.kind == "task"].accuracy.between(0, 1).all()
    assert scores[scores.kind == "task"].split.tolist() == ["dev"]


def one_after_another(data: str, folder: str, *arguments: str) -> list[int]:
    """How many files and sockets a process has open after each of its runs; a thread may still be ending."""
    counts = []
    for name in "abc":
        keys = {**TINY, "train.steps": 1, **dict(argument.split("=") for argument in arguments)}
        gpt1_ds.train(keys, run={"name": name, "dir": folder}, data={"path": data})
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts


@pytest.mark.parametrize("arguments", [("parallel.zero=0",), ("parallel.zero=2",)], ids=" ".join)
def test_a_run_leaves_nothing_open(arguments: tuple[str, ...], tiny_data: Path, tmp_path: Path) -> None:
    """Groups have sockets and threads: a process could not train more than some sixty runs."""
    ((_, second, third),) = launch.run(f"{__name__}:one_after_another", (str(tiny_data), str(tmp_path), *arguments), 1)
    assert third == second


def twice(data: str, folder: str) -> str:
    """On each of two ranks: a run, and what a second one says."""
    settings = {**TINY, "run.dir": folder, "data.path": data}
    gpt1_ds.train(settings, run={"name": "a"})
    with pytest.raises(LaunchError) as told:
        gpt1_ds.train(settings, run={"name": "b"})
    return str(told.value)


def test_ranks_of_a_launcher_train_once(tiny_data: Path, tmp_path: Path) -> None:
    told = launch.run(f"{__name__}:twice", (str(tiny_data), str(tmp_path)), 2)
    assert told == ["gpt1_ds.train: this process has run a; under a launcher each run starts it anew"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    assert gpt1_ds.read_metrics(tmp_path / "a").step.max() == 4


def test_a_run_without_lines_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    assert list(gpt1_ds.read_metrics(tmp_path).columns) == ["kind", "step"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: gpt1_ds.train({"train.stps": 3}),
            "train.stps: the section train has no key 'stps'. Did you mean: 'steps'?",
        ),
        (lambda: gpt1_ds.train(5), "5 is no configuration; give a preset"),  # type: ignore[arg-type]
        (lambda: gpt1_ds.train("pretrain/nix"), "pretrain/nix: no such file"),
        (lambda: gpt1_ds.train(train=5), "train=5 is no section"),
        (lambda: gpt1_ds.train({"data.path": "nowhere"}), "nowhere: not a dataset"),
        (lambda: gpt1_ds.train({"data.path": "x", "parallel.tensor": 2}), "parallel.tensor=2"),
        (lambda: gpt1_ds.train("finetune/cola"), "checkpoint.init_from is empty"),
        (lambda: gpt1_ds.read_metrics("nowhere"), "nowhere: no such folder; name a run folder"),
    ],
)
def test_mistakes_are_one_line(call: Any, says: str, in_folder: Path) -> None:
    with pytest.raises(UserError) as told:
        call()
    assert says in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    assert not list(in_folder.iterdir()), "nothing was begun"


def test_another_thread_is_refused() -> None:
    found: list[BaseException] = []

    def call() -> None:
        try:
            gpt1_ds.train(TINY)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert isinstance(found[0], LaunchError)
    assert "main thread" in str(found[0])


def test_keys_are_layered_one_by_one() -> None:
    """A section that is given twice keeps what the first says and the second does not."""
    given = {"train": {"steps": 100, "micro_batch": 2}, "optimizer.lr": 1e-4}
    _, arguments = _words(given, {"train": {"micro_batch": 4}, "optimizer": {"name": "muon"}})
    config = load([], arguments)
    assert (config.train.steps, config.train.micro_batch) == (100, 4)
    assert (config.optimizer.lr, config.optimizer.name) == (1e-4, "muon")
