"""Promise 4 for fine-tuning: a run that was stopped continues bit for bit, and its best checkpoint is never lost."""

from __future__ import annotations

import json
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.common.errors import ConfigError, LaunchError, TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import ModelConfig
from gpt1_ds.launcher import launch
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tools import runs, small_tasks

EPOCH, EPOCHS = 6, 4
LAYOUTS = {"one": (1, []), "dp2-zero1": (2, []), "tp2-bf16": (2, ["parallel.tensor=2", "train.precision=bf16"])}


@pytest.fixture(scope="module")
def source(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = ModelConfig(layers=2, width=32, heads=2, context=48)
    return make_checkpoint(tmp_path_factory.mktemp("source") / "source", tiny_data.parent / "tokenizer", model)


def arguments_for(layout: str, source: Path, place: Path) -> list[str]:
    return [
        *(*small_tasks.make_task(place / "task", "choice"), f"checkpoint.init_from={source}", *LAYOUTS[layout][1]),
        *(f"run.dir={place}", f"train.epochs={EPOCHS}", "checkpoint.every=4", "checkpoint.keep=1"),
    ]


def result(run_dir: RunDir) -> dict[str, Any]:
    """Everything that an interruption must not change."""
    return {
        "losses": runs.losses(run_dir),
        "dev": finetuning.scores(run_dir),
        "weights": runs.weights(run_dir),
        "best": finetuning.best(run_dir).name,
        "eval": json.loads(run_dir.evaluation.read_text()),
        "predictions": {path.name: path.read_bytes() for path in (run_dir.path / "predictions").iterdir()},
    }


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The results of a run in one go, and its folder."""

    @cache
    def run(layout: str) -> tuple[dict[str, Any], RunDir]:
        arguments = arguments_for(layout, source, tmp_path_factory.mktemp("whole"))
        assert finetuning.finetune(arguments, LAYOUTS[layout][0]) == 0
        return result(finetuning.folder(arguments)), finetuning.folder(arguments)

    return run


def stop(arguments: list[str], ranks: int, how: str, step: int) -> RunDir:
    """Start, and end the run in one of three ways when it has done `step` steps."""
    run = runs.Background(arguments, ranks, finetuning.finetune)
    run.wait_for_step(step)
    if how == "stop-file":
        run.run_dir.stop.touch()
    else:
        run.signal(*{"sigterm": (signal.SIGTERM, None), "kill": (signal.SIGKILL, [ranks - 1])}[how])
    run.join()
    if how == "kill":
        assert isinstance(run.error, LaunchError)
    else:
        assert run.error is None
        assert run.result == {"stop-file": 0, "sigterm": 75}[how]
    assert not run.run_dir.evaluation.exists(), "only a finished run has results"
    return run.run_dir


def test_the_best_checkpoint_outlives_newer_ones(undisturbed) -> None:  # type: ignore[no-untyped-def]
    _, run_dir = undisturbed("one")
    scores = {step: metrics["accuracy"] for step, _, metrics in finetuning.scores(run_dir)}
    assert list(scores) == [EPOCH * epoch for epoch in range(1, EPOCHS + 1)]
    best = max(scores, key=lambda step: (scores[step], -step))
    assert best < EPOCH * EPOCHS, "a later epoch is worse: else this test says nothing"
    assert finetuning.best(run_dir) == run_dir.checkpoint(best)
    assert steps_in(run_dir.checkpoints) == [run_dir.checkpoint(best), run_dir.checkpoint(EPOCH * EPOCHS)]
    (entry,) = json.loads(run_dir.evaluation.read_text())
    (line,) = [line for line in finetuning.lines(run_dir, "task") if line["step"] == best]
    assert {key: entry[key] for key in ("step", "split", "metrics", "loss")} == {
        key: line[key] for key in ("step", "split", "metrics", "loss")
    }


@pytest.mark.parametrize(
    ("layout", "how", "step"),
    [("one", "stop-file", 8), ("one", "kill", 15), ("dp2-zero1", "kill", 9), ("tp2-bf16", "sigterm", 14)],
)
def test_continues_bit_for_bit(layout: str, how: str, step: int, undisturbed, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, ranks = arguments_for(layout, source, tmp_path), LAYOUTS[layout][0]
    run_dir = stop(arguments, ranks, how, step)
    assert finetuning.finetune(arguments, ranks) == 0
    assert result(run_dir) == undisturbed(layout)[0]
    assert not list(run_dir.checkpoints.glob(".*")), "nothing is left behind"


@pytest.mark.parametrize("moment", ["naming", "evaluation"])
def test_killed_at_the_end_of_the_best_epoch(moment: str, undisturbed, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for("one", source, tmp_path)
    run_dir, best = finetuning.folder(arguments), int(undisturbed("one")[0]["best"].removeprefix("step-"))
    with pytest.raises(LaunchError):
        launch.launch("tests.helpers.finetuning:end_at", (finetuning.configuration(arguments), moment, best), 1)
    named = run_dir.best.read_text() if run_dir.best.exists() else ""
    assert run_dir.checkpoint(best).name not in named
    assert run_dir.checkpoint(best).is_dir()
    run_dir.stop.unlink(missing_ok=True)
    assert finetuning.finetune(arguments) == 0
    assert result(run_dir) == undisturbed("one")[0]


def test_the_first_checkpoint_may_be_gone(undisturbed, source: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = tmp_path / "first"
    shutil.copytree(source, first)
    arguments = arguments_for("one", first, tmp_path)
    run_dir = stop(arguments, 1, "stop-file", 3)
    shutil.rmtree(first)
    assert finetuning.finetune(arguments) == 0
    assert result(run_dir) == undisturbed("one")[0]


def test_a_changed_dev_split_is_refused(source: Path, tmp_path: Path) -> None:
    arguments = arguments_for("one", source, tmp_path)
    stop(arguments, 1, "stop-file", 3)
    dev = tmp_path / "task" / "dev.jsonl"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigError, match=r"other data than task\.path now has"):
        finetuning.finetune(arguments)


def test_a_best_checkpoint_that_is_gone_is_named_and_its_name_comes_back(  # type: ignore[no-untyped-def]
    undisturbed, source: Path, tmp_path: Path
) -> None:
    arguments = arguments_for("one", source, tmp_path)
    best = undisturbed("one")[0]["best"]
    run_dir = stop(arguments, 1, "stop-file", int(best.removeprefix("step-")) + 1)
    run_dir.best.unlink()
    kept = (run_dir.checkpoints / best).rename(tmp_path / best)
    with pytest.raises(TrainingError, match=f"{best}: the best checkpoint is gone; put it back"):
        finetuning.finetune(arguments)
    assert not run_dir.done.exists()
    kept.rename(run_dir.checkpoints / best)
    assert finetuning.finetune(arguments) == 0
    assert result(run_dir) == undisturbed("one")[0]


@pytest.mark.parametrize(("answer", "files"), [("all", {"dev", "test"}), ("labelled", {"dev"})])
def test_splits_without_labels_are_answered_or_not(answer: str, files: set[str], source: Path, tmp_path: Path) -> None:
    arguments = [*arguments_for("one", source, tmp_path), f"task.answer={answer}", "train.epochs=1"]
    rows = [json.loads(line) for line in (tmp_path / "task" / "dev.jsonl").read_text().splitlines()]
    unlabelled = [{key: value for key, value in row.items() if key != "x"} for row in rows]
    (tmp_path / "task" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in unlabelled))
    assert finetuning.finetune(arguments) == 0
    run_dir = finetuning.folder(arguments)
    assert {path.stem.removeprefix("table-") for path in (run_dir.path / "predictions").iterdir()} == files
    assert [entry["split"] for entry in json.loads(run_dir.evaluation.read_text())] == ["dev"]
