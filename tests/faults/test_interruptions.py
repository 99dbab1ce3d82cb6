"""Promise 4: a run that was stopped continues bit for bit, however it was stopped, on every kind of layout."""

from __future__ import annotations

import random
import signal
import time
from functools import cache
from pathlib import Path

import pytest

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.rundir import RunDir
from tools import runs
from tools.fault_campaign import LAYOUTS

STEPS, STOPPED = 24, 10  # an interruption between two saves, and four saves around it


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path):  # type: ignore[no-untyped-def]
    """All steps in one go: (losses by step, hashes of the final weights)."""

    @cache
    def run(layout: str, precision: str) -> tuple[dict[int, float], dict[str, str]]:
        arguments = arguments_for(layout, precision, tiny_data, tmp_path_factory.mktemp("whole"))
        assert runs.pretrain(arguments, LAYOUTS[layout][0]) == 0
        return runs.losses(runs.folder(arguments)), runs.weights(runs.folder(arguments))

    return run


def arguments_for(layout: str, precision: str, data: Path, folder: Path) -> list[str]:
    return [
        *LAYOUTS[layout][1],
        *(f"train.precision={precision}", f"data.path={data}", f"run.dir={folder}", f"train.steps={STEPS}"),
        "train.global_batch=4",
    ]


def ask_to_stop(arguments: list[str], ranks: int, how: str) -> None:
    """A life that is asked to end between two saves: it saves and ends."""
    run = runs.Background(arguments, ranks)
    run.wait_for_step(STOPPED)
    if how == "stop-file":
        run.run_dir.stop.touch()
    else:
        run.signal(signal.SIGTERM)
    run.join()
    assert run.error is None
    assert run.result == {"stop-file": 0, "sigterm": 75}[how]
    stopped = runs.events(run.run_dir, "stopped")[-1]
    assert stopped["reason"] == {"stop-file": "user", "sigterm": "handover"}[how]
    assert not run.run_dir.stop.exists(), "a request is removed when honoured"
    assert STOPPED <= stopped["step"] < STEPS


def kill(arguments: list[str], ranks: int, draw: random.Random) -> None:
    """A life that one of its ranks' death ends, some steps after its beginning."""
    step = min(runs.last_step(runs.folder(arguments)) + draw.randint(1, 5), STEPS - 1)
    run = runs.Background(arguments, ranks)
    run.wait_for_step(step)
    time.sleep(draw.random() * 0.1)
    run.signal(signal.SIGKILL, [draw.randrange(ranks)])
    run.join()
    assert isinstance(run.error, LaunchError) or runs.last_step(run.run_dir) == STEPS


def assert_undisturbed(run_dir: RunDir, wanted: tuple[dict[int, float], dict[str, str]]) -> None:
    assert (runs.losses(run_dir), runs.weights(run_dir)) == wanted
    assert not list(run_dir.checkpoints.glob(".*")), "nothing is left behind"


@pytest.mark.parametrize(("precision", "how"), [("fp32", "stop-file"), ("bf16", "sigterm")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_continues_bit_for_bit(
    layout: str, precision: str, how: str, undisturbed, tiny_data: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    """Asked to stop, continued and killed, continued again: what either leaves behind shows in the end."""
    ranks = LAYOUTS[layout][0]
    arguments = arguments_for(layout, precision, tiny_data, tmp_path)
    run_dir = runs.folder(arguments)
    ask_to_stop(arguments, ranks, how)
    asked = runs.events(run_dir, "stopped")[-1]["step"]
    kill(arguments, ranks, random.Random(f"{layout} {precision}"))
    assert runs.events(run_dir, "started")[-1]["step"] == asked, "the stop lost nothing"
    before = runs.last_step(run_dir)
    landed = [event["step"] for event in runs.events(run_dir, "saved")]
    assert runs.pretrain(arguments, ranks) == 0
    if before < STEPS:
        resumed = runs.events(run_dir, "started")[-1]["step"]
        assert resumed >= max(landed), "what was saved is not lost"
        assert before - resumed <= 2 * 5, "an interval, and the save under way in the background"
    assert_undisturbed(run_dir, undisturbed(layout, precision))


def test_killed_before_anything_was_saved(undisturbed, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for("dp2-zero1", "fp32", tiny_data, tmp_path)
    kill([*arguments, "checkpoint.every=0", "train.steps=3000"], 2, random.Random(0))
    assert not runs.events(runs.folder(arguments), "saved")
    assert runs.pretrain(arguments, 2) == 0
    assert runs.events(runs.folder(arguments), "started")[-1]["step"] == 0
    assert_undisturbed(runs.folder(arguments), undisturbed("dp2-zero1", "fp32"))


def test_a_restart_for_every_step(undisturbed, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments = arguments_for("dp2-zero1", "fp32", tiny_data, tmp_path)
    for step in range(1, 7):  # over a save, which comes after five
        assert runs.pretrain([*arguments, f"train.steps={step}", "schedule.kind=constant"], 2) == 0
    whole = tmp_path / "whole"
    steady = [*arguments, "train.steps=6", "schedule.kind=constant", f"run.dir={whole}"]
    assert runs.pretrain(steady, 2) == 0
    assert runs.losses(runs.folder(arguments)) == runs.losses(runs.folder(steady))
    assert runs.weights(runs.folder(arguments)) == runs.weights(runs.folder(steady))


def test_save_now(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [*arguments_for("one", "fp32", tiny_data, tmp_path), "checkpoint.every=0", "train.steps=3000"]
    run = runs.Background(arguments, 1)
    run.wait_for_step(3)
    run.run_dir.save.touch()
    run.wait_for(lambda: not run.run_dir.save.exists())
    saved = runs.events(run.run_dir, "saved")
    assert len(saved) == 1
    assert RunDir(run.run_dir.path).checkpoint(saved[0]["step"]).is_dir()
    run.run_dir.stop.touch()
    run.join()
    assert run.error is None
