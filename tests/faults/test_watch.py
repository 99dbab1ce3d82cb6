"""No hang survives: a stopped or stuck rank is named, with its phase and its stack, and every process goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpt1_ds.common.errors import TrainingError
from gpt1_ds.launcher import launch
from gpt1_ds.monitoring.heartbeat import HALF
from tools import runs

TIMEOUT = 6.0
LAYOUTS = {"dp2": (2, []), "tp2": (2, ["parallel.tensor=2"]), "pp2": (2, ["parallel.pipeline=2"])}


def given(data: Path, folder: Path) -> list[str]:
    limits = [f"guard.{phase}_timeout={TIMEOUT}" for phase in ("step", "save")]
    return [*limits, "guard.init_timeout=60", f"data.path={data}", f"run.dir={folder}", "train.steps=100000"]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def name_another_process(beat: Path, pid: int) -> None:
    """What somebody may write who shares the run folder."""
    data = beat.read_bytes()
    presence = {**json.loads(data[HALF:]), "pid": pid}
    beat.write_bytes(data[:HALF] + json.dumps(presence).encode().ljust(HALF))


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stopped_rank_is_named(
    layout: str, victim: int, tiny_data: Path, tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    ranks, overrides = LAYOUTS[layout]
    run = runs.Background([*given(tiny_data, tmp_path), *overrides], ranks)
    run.wait_for_step(3)
    pids = [process.pid for process in run.processes()]
    began = time.monotonic()
    run.signal(signal.SIGSTOP, [victim])
    name_another_process(run.run_dir.path / "beats" / f"rank-{victim}.json", bystander.pid)
    run.join(TIMEOUT + 12)
    named = time.monotonic() - began
    assert isinstance(run.error, TrainingError)
    assert f"rank {victim} (" in str(run.error)
    assert "no progress for" in str(run.error)
    assert ": step " in str(run.error)
    stuck = runs.events(run.run_dir, "stuck")
    assert len(stuck) == 1
    assert stuck[0]["rank"] == victim
    assert any("gpt1_ds" in line for line in stuck[0]["stack"]), "its stack was written"
    assert named <= TIMEOUT + 10, "named within the timeout, gone ten seconds later"
    assert all(is_gone(pid) for pid in pids)
    assert bystander.poll() is None, "whatever a beat says, ranks of this run alone are ended"


def test_a_rank_that_hangs_by_itself_is_named(tiny_data: Path, tmp_path: Path) -> None:
    """Rank 1's loader never comes back; rank 0 waits for it in a collective."""
    config = runs.configuration([*given(tiny_data, tmp_path), "train.steps=100"])
    with pytest.raises(TrainingError, match=r"rank 1 \(.*step 7, data, at gpt1_ds/training/batches.py"):
        launch.launch("tests.faults.test_watch:hang_in_step_7", (config,), 2)
    stacks = sorted(path.name for path in (runs.folder(given(tiny_data, tmp_path)).path / "beats").glob("stacks-*"))
    assert stacks == ["stacks-0.txt", "stacks-1.txt"]


def hang_in_step_7(config) -> int:  # type: ignore[no-untyped-def]
    from gpt1_ds.training.pretraining import Pretraining, pretrain

    read = Pretraining.batch

    def stuck(self: Pretraining, number: int, step: int):  # type: ignore[no-untyped-def]
        if step == 7 and os.environ["RANK"] == "1":
            time.sleep(3600)
        return read(self, number, step)

    Pretraining.batch = stuck  # type: ignore[method-assign]
    return pretrain(config)


PHASES = {
    "set-up": ("gpt1_ds.training.pretraining", "open_data"),
    "save": ("gpt1_ds.checkpoint.manager", "complete"),
    "evaluation": ("gpt1_ds.training.pretraining", "held_out_loss"),
    "agreement": ("gpt1_ds.training.stop.Requests", "agree"),
}


@pytest.mark.parametrize(("phase", "layout"), zip(PHASES, ("pp2", "dp2", "tp2", "pp2"), strict=True))
def test_a_rank_stopped_in_any_phase_is_named(phase: str, layout: str, tiny_data: Path, tmp_path: Path) -> None:
    ranks, overrides = LAYOUTS[layout]
    settings = ["guard.init_timeout=15", "train.steps=12", "train.eval_every=7", "checkpoint.every=5", *overrides]
    config = runs.configuration([*given(tiny_data, tmp_path), *settings, "checkpoint.background=off"])
    began = time.monotonic()
    with pytest.raises(TrainingError, match=rf"rank 0 \(.*, {phase}"):
        launch.launch("tests.faults.test_watch:stop_in", (config, *PHASES[phase]), ranks)
    assert time.monotonic() - began < 15 + 15
    assert "stacks-0.txt" in {path.name for path in (tmp_path / "run" / "beats").iterdir()}


def stop_in(config, place: str, name: str) -> int:  # type: ignore[no-untyped-def]
    """Runs on every rank: rank 0 stops itself the moment it calls the function."""
    import importlib

    from gpt1_ds.training.pretraining import pretrain

    module, _, attribute = place.rpartition(".")
    owner = (
        getattr(importlib.import_module(module), attribute)
        if attribute[0].isupper()
        else importlib.import_module(place)
    )
    real = getattr(owner, name)
    calls = []

    def stopped(*arguments, **keywords):  # type: ignore[no-untyped-def]
        calls.append(0)
        if os.environ["RANK"] == "0" and (name != "agree" or len(calls) == 8):
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments, **keywords)

    setattr(owner, name, stopped)
    return pretrain(config)


def test_a_slow_save_has_the_time_of_a_save(tiny_data: Path, tmp_path: Path) -> None:
    limits = ["guard.step_timeout=3", "guard.save_timeout=60", "train.steps=6", "checkpoint.background=off"]
    config = runs.configuration([*given(tiny_data, tmp_path), *limits])
    launch.launch("tests.faults.test_watch:save_slowly", (config,), 2)
    assert runs.folder(given(tiny_data, tmp_path)).done.exists()


def save_slowly(config) -> int:  # type: ignore[no-untyped-def]
    from gpt1_ds.checkpoint import manager
    from gpt1_ds.training.pretraining import pretrain

    write = manager.write_shard

    def slow(*arguments):  # type: ignore[no-untyped-def]
        time.sleep(6)
        return write(*arguments)

    manager.write_shard = slow
    return pretrain(config)


def test_a_run_that_was_asleep_continues(tiny_data: Path, tmp_path: Path) -> None:
    """Ctrl-Z, or a laptop that was closed: all processes stop together and continue together."""
    run = runs.Background([*given(tiny_data, tmp_path), "guard.step_timeout=2"], 2)
    run.wait_for_step(3)
    run.signal(signal.SIGSTOP)
    time.sleep(5)
    run.signal(signal.SIGCONT)
    reached = runs.last_step(run.run_dir)
    run.wait_for_step(reached + 5)
    time.sleep(3)
    run.run_dir.stop.touch()
    run.join()
    assert run.error is None
