"""A run folder that cannot be written or that answers slowly."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds.common.errors import UserError
from gpt1_ds.launcher import launch
from tools import runs


def test_read_only_disk_is_said_at_once(small_disk: Callable[[str], Path], tiny_data: Path) -> None:
    disk = small_disk("8m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    begin = time.monotonic()
    with pytest.raises((UserError, OSError)) as caught:
        runs.pretrain([f"data.path={tiny_data}", f"run.dir={disk}", "train.steps=5"], 2)
    assert time.monotonic() - begin < 60
    assert str(disk) in str(caught.value)
    assert "ead-only" in str(caught.value)


def test_requests_and_heartbeats_that_cannot_be_removed(tiny_data: Path, tmp_path: Path) -> None:
    """SAVE and STOP are folders that hold something; of the last segment's heartbeats one file is busy."""
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=100000", "checkpoint.every=0"]
    run_dir = runs.folder(arguments)
    (run_dir.path / "beats" / "rank-0.json").mkdir(parents=True)
    busy = run_dir.path / "beats" / "stacks-0.txt"
    busy.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(busy)], capture_output=True).returncode == 0
    assert mounted or "CI" not in os.environ, "CI runs as root"
    try:
        run = runs.Background(arguments, 1)
        run.wait_for_step(3)
        for name in ("SAVE", "STOP"):
            (run_dir.path / f"{name}.new").mkdir()
            (run_dir.path / f"{name}.new" / "theirs").touch()
        (run_dir.path / "SAVE.new").rename(run_dir.save)
        run.wait_for(lambda: bool(runs.events(run_dir, "saved")))
        run.wait_for_step(runs.last_step(run_dir) + 10)
        (run_dir.path / "STOP.new").rename(run_dir.stop)
        run.join()
    finally:
        subprocess.run(["umount", str(busy)], check=mounted)
    assert (run.error, run.result) == (None, 0)
    assert runs.events(run_dir, "stopped")[-1]["reason"] == "user"
    assert len(runs.events(run_dir, "saved")) == 2, "SAVE is answered once, and the stop saves"
    said = run_dir.rank_log(0).read_text()
    assert f"{run_dir.save}: is done, but cannot be removed" in said
    assert f"{run_dir.stop}: is done, but cannot be removed" in said


def slowly(arguments: list[str]) -> int:
    """A run for whose rank every look at its request files takes as long as on an overloaded file server."""
    from gpt1_ds.training.pretraining import pretrain

    config = runs.configuration(arguments)
    folder, stat = str(Path(config.run.dir).resolve()), os.stat

    def slow(path, *more, **keywords):  # type: ignore[no-untyped-def]
        if os.fspath(path).startswith(folder) if not isinstance(path, int) else False:
            time.sleep(0.3)
        return stat(path, *more, **keywords)

    os.stat = slow  # type: ignore[assignment]  # this rank ends with the test
    return pretrain(config)


def test_slow_disk_does_not_hang_it(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=5", "checkpoint.every=5"]
    arguments += ["guard.step_timeout=20", "guard.save_timeout=30", "train.micro_batch=4"]
    launch.launch("tests.faults.test_run_folder:slowly", (arguments,), 2)
    assert runs.last_step(runs.folder(arguments)) == 5
    assert not runs.events(runs.folder(arguments), "stuck")
