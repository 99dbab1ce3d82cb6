"""TensorBoard and trackio beside real runs, with their real libraries: alone, together, after a kill, and broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.rundir import RunDir, read_jsonl
from tests.helpers.processes import command_of, wait_for
from tests.helpers.wandb_files import read_segments
from tools import runs

ROOT = Path(__file__).parents[2]
STEADY = ["schedule.kind=constant", "schedule.warmup_steps=0"]  # a step does not depend on how many there are
BOTH = ["tracking.tensorboard=true", "tracking.trackio=true"]


WORKERS = "gpt1_ds.tracking."


def begin(arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """The program as a process of its own, whose trackio database is `<folder>/trackio`."""
    command = [sys.executable, "-m", "gpt1_ds", "pretrain", *runs.TINY, *arguments, "--nproc", "1"]
    return subprocess.Popen(command, cwd=folder, env=variables(folder), stderr=subprocess.DEVNULL)


def variables(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TRACKIO_DIR": str(folder / "trackio")}


def tensorboard_points(run_dir: RunDir, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir.tensorboard))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def trackio_points(folder: Path, key: str) -> list[tuple[int, float]]:
    """Of the one run in trackio's database, read in a process that knows where it lies."""
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as s; (run,) = s.get_runs('gpt1-ds')\n"
        f"print(json.dumps([(p['step'], p[{key!r}]) for p in s.get_logs('gpt1-ds', run) if {key!r} in p]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables(folder), capture_output=True, text=True, check=True)
    return [(step, value) for step, value in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_after_a_kill_every_step_is_one_point(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}/runs", *STEADY, *BOTH, "tracking.wandb=offline"]
    arguments += ["checkpoint.every=25", "train.eval_every=10"]
    run_dir = runs.folder(arguments)
    first = begin([*arguments, "train.steps=3000"], tmp_path)
    wait_for(lambda: runs.last_step(run_dir) >= 60)
    started = [child for child in psutil.Process(first.pid).children(recursive=True) if WORKERS in command_of(child)]
    trackers = {child.pid for child in started}
    started = [child for child in started if child.ppid() not in trackers]  # a fork has its parent's arguments at first
    assert len(started) == 3
    first.kill()
    first.wait()
    psutil.wait_procs(started, timeout=240)  # what was on its way is written
    last = runs.last_step(run_dir) + 5
    assert begin([*arguments, f"train.steps={last}"], tmp_path).wait() == 0
    losses = runs.losses(run_dir)
    assert list(losses) == list(range(1, last + 1))
    shown = tensorboard_points(run_dir, "train/loss")
    assert [step for step, _ in shown] == list(losses)
    assert [value for _, value in shown] == pytest.approx(list(losses.values()), rel=1e-6)  # TensorBoard keeps float32
    assert trackio_points(tmp_path, "train/loss") == list(losses.items())
    held_out = {line["step"]: line["loss"] for line in read_jsonl(run_dir.metrics) if line["kind"] == "eval"}
    assert dict(trackio_points(tmp_path, "eval/loss")) == held_out
    assert [step for step, _ in tensorboard_points(run_dir, "eval/loss")] == list(held_out)
    segments = read_segments(run_dir.path)
    assert dict(point for segment in segments for point in segment.values("train/loss")) == losses, (
        "and W&B beside them"
    )


def test_one_that_cannot_begin_costs_one_line(tiny_data: Path, tmp_path: Path) -> None:
    """TensorBoard's folder is a file, and so is trackio's, which never gives up."""
    (tmp_path / "trackio").write_text("")
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}/runs", *BOTH, "train.steps=4"]
    run_dir = runs.folder(arguments)
    run_dir.path.mkdir(parents=True, mode=0o700)
    run_dir.tensorboard.write_text("not a folder")
    assert begin(arguments, tmp_path).wait() == 0
    said = [line.partition(" INFO gpt1_ds: ")[2] for line in run_dir.rank_log(0).read_text().splitlines()]
    about = sorted(line for line in said if line.startswith(("TensorBoard", "trackio")))
    assert len(about) == 2, said
    assert about[0].startswith("TensorBoard is off for the rest of this run (FileExistsError")
    assert about[1].startswith("trackio: trackio failed to flush metric logs")
    assert list(runs.losses(run_dir)) == [1, 2, 3, 4]
