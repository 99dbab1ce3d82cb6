"""What a bad batch does to a run: end it, be left out, or be gone back from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.launcher import launch
from tools import runs

BAD = 7
LAYOUTS = {
    "one": (1, []),
    "dp2": (2, []),
    "pp2": (2, ["parallel.pipeline=2"]),
    "dp2-zero3-bf16": (2, ["parallel.zero=3", "train.precision=bf16"]),
}


def arguments_for(layout: str, data: Path, folder: Path, action: str) -> list[str]:
    length = ["train.steps=10", f"data.path={data}", f"run.dir={folder}"]
    return [*LAYOUTS[layout][1], *length, f"guard.on_spike={action}"]


def start(layout: str, overrides: list[str], how: str) -> int:
    arguments = (runs.configuration(overrides), how)
    return launch.launch("tests.faults.test_bad_batches:pretrain_with", arguments, LAYOUTS[layout][0])


def pretrain_with(config: Any, how: str) -> int:
    """Runs on every rank. `nan`: the last row of batch 7 has a loss that is not finite. `without`: batch 7 is passed
    over from the beginning. `shuffled`: the labels of batches 40 to 42 are other tokens. `loss`: the loss of batch 7 is
    not finite, its gradients are.
    """
    from gpt1_ds.engine.plain import DenseEngine
    from gpt1_ds.training.pretraining import Pretraining, pretrain
    from gpt1_ds.training.state import TrainingState

    read, number_of, total_loss = Pretraining.batch, TrainingState.batch_number, DenseEngine._total_loss

    def poisoned(self: Pretraining, number: int, step: int) -> Any:
        batch = read(self, number, step)
        if how == "nan" and number == BAD and self.shape.data_rank == self.shape.data_size - 1:
            batch.micro_batches[-1].labels[1][3, -1] = float("nan")
        if how == "shuffled" and 40 <= number <= 42:
            for part in batch.micro_batches:
                part.labels[0].copy_((part.labels[0] + 137) % 500)
        if how == "always" and number >= BAD:
            batch.micro_batches[-1].labels[1][0, 0] = float("nan")
        return batch

    def overflown(self: DenseEngine) -> Any:
        total, parts = total_loss(self)
        return (total * float("nan"), parts) if self.deepspeed.global_steps == BAD - 1 else (total, parts)

    Pretraining.batch = poisoned  # type: ignore[method-assign]
    if how == "loss":
        DenseEngine._total_loss = overflown  # type: ignore[method-assign]
    if how == "without":
        TrainingState.batch_number = lambda state, step: step + (step >= BAD)  # type: ignore[method-assign]
    try:
        return pretrain(config)
    finally:
        Pretraining.batch, TrainingState.batch_number = read, number_of  # type: ignore[method-assign]
        DenseEngine._total_loss = total_loss  # type: ignore[method-assign]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_raise(layout: str, tiny_data: Path, tmp_path: Path) -> None:
    overrides = arguments_for(layout, tiny_data, tmp_path, "raise")
    last = LAYOUTS[layout][0] - 1
    with pytest.raises(TrainingError, match=rf"step {BAD} on rank {last}: the (loss|gradients)? ?.*not finite"):
        start(layout, overrides, "nan")
    run_dir = runs.folder(overrides)
    event = runs.events(run_dir, "spike")[0]
    assert (event["step"], event["batch"], event["action"]) == (BAD, BAD, "raise")
    assert list(event["micro_batches_of_ranks"]) == [str(last)]
    assert all(row["documents"] and Path(row["data"]).exists() for row in event["rows"])
    assert [row["row"] for row in event["rows"]] == [6, 7], "the rows of the last micro-batch"
    assert runs.events(run_dir, "failed")[0]["step"] == BAD - 1
    assert find_checkpoint(run_dir.path).name == "step-00000005", "the last checkpoint is intact"
    assert runs.pretrain(overrides, LAYOUTS[layout][0]) == 0, "and the run continues from it"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_skip(layout: str, tiny_data: Path, tmp_path: Path) -> None:
    overrides = arguments_for(layout, tiny_data, tmp_path, "skip")
    assert start(layout, overrides, "nan") == 0
    lines = [line for line in read_jsonl(runs.folder(overrides).metrics) if line["kind"] == "train"]
    assert [line["step"] for line in lines if not line["applied"]] == [BAD]
    assert all(line["loss"] is not None for line in lines if line["step"] > BAD)
    assert len(runs.events(runs.folder(overrides), "spike")) == 1


def test_a_loss_that_is_not_finite_is_skipped_where_the_gradients_are_finite(tiny_data: Path, tmp_path: Path) -> None:
    overrides = arguments_for("one", tiny_data, tmp_path, "skip")
    assert start("one", overrides, "loss") == 0
    lines = [line for line in read_jsonl(runs.folder(overrides).metrics) if line["kind"] == "train"]
    assert [line["step"] for line in lines if not line["applied"]] == [BAD]
    assert [line["step"] for line in lines if line["loss"] is None] == [BAD]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rollback_leaves_no_trace(layout: str, tiny_data: Path, tmp_path: Path) -> None:
    """The run ends bit for bit as one that never had the batch, and so does the same run when it is made longer: the
    checkpoint remembers what was passed over.
    """
    overrides = arguments_for(layout, tiny_data, tmp_path / "back", "rollback")
    never = arguments_for(layout, tiny_data, tmp_path / "never", "rollback")
    for steps in (10, 12) if layout == "one" else (10,):
        assert start(layout, [*overrides, f"train.steps={steps}"], "nan") == 0
        assert start(layout, [*never, f"train.steps={steps}"], "without") == 0
        assert runs.losses(runs.folder(overrides)) == runs.losses(runs.folder(never))
        assert runs.weights(runs.folder(overrides)) == runs.weights(runs.folder(never))
        back = runs.events(runs.folder(overrides), "rolled back")
        assert [(event["step"], event["to"], event["passed_over"]) for event in back] == [(BAD, 5, [BAD])]


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_spike_is_noticed_within_its_three_steps(action: str, tiny_data: Path, tmp_path: Path) -> None:
    overrides = [
        *arguments_for("dp2", tiny_data, tmp_path, action),
        *("guard.z=6", "train.steps=60", "optimizer.lr=3e-3", "schedule.warmup_steps=5", "guard.window=32"),
    ]
    assert start("dp2", overrides, "shuffled") == 0
    spikes = runs.events(runs.folder(overrides), "spike")
    assert [event["batch"] for event in spikes] == [40, 41, 42]
    assert all("robust standard deviations" in event["problem"] for event in spikes)
    if action == "skip":
        lines = [line for line in read_jsonl(runs.folder(overrides).metrics) if line["kind"] == "train"]
        assert [line["step"] for line in lines if not line["applied"]] == [40, 41, 42]


def test_a_batch_that_stays_bad_ends_the_run(tiny_data: Path, tmp_path: Path) -> None:
    """A rate at which nothing is finite any more: five skipped updates in a row, then an end with a reason."""
    overrides = [*arguments_for("one", tiny_data, tmp_path, "skip"), "optimizer.lr=1e30", "schedule.warmup_steps=0"]
    with pytest.raises(TrainingError, match=r"not finite \(6 steps in a row\)"):
        start("one", overrides, "clean")


def test_going_back_again_and_again_ends(tiny_data: Path, tmp_path: Path) -> None:
    """Every batch from some point on is bad: good steps that are repeated do not count as progress."""
    overrides = arguments_for("one", tiny_data, tmp_path, "rollback")
    with pytest.raises(TrainingError, match=r"not finite \(6 steps in a row\)"):
        start("one", overrides, "always")
    assert len(runs.events(runs.folder(overrides), "rolled back")) == 5


def test_weights_that_are_not_finite_are_never_published(tiny_data: Path, tmp_path: Path) -> None:
    """An update can overflow although its own loss and norm were finite; the next step notices, the save must, too."""
    overrides = [
        *arguments_for("one", tiny_data, tmp_path, "raise"),
        *("checkpoint.every=1", "schedule.warmup_steps=0", "schedule.kind=constant", "optimizer.lr=1e38"),
    ]
    with pytest.raises(TrainingError):
        start("one", overrides, "clean")
    assert "not finite" in runs.events(runs.folder(overrides), "save failed")[0]["error"]
    assert not list(runs.folder(overrides).checkpoints.glob("step-*"))
