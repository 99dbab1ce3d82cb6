import os
import stat
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.rundir import RunDir, read_jsonl


def test_private_by_default(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "a")
    run.create()
    run.add_event("started", step=0)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.events.stat().st_mode) == 0o600


def test_a_group_may_read_and_write_where_that_is_asked_for(tmp_path: Path) -> None:
    run, before = RunDir(tmp_path / "a"), os.umask(0o077)
    try:
        run.create("group")
        run.add_event("started", step=0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o770
    assert stat.S_IMODE(run.events.stat().st_mode) == 0o660


def test_a_run_of_the_group_can_lie_beside_a_private_one(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        RunDir(tmp_path / "runs" / "own").create("private")
        RunDir(tmp_path / "runs" / "shared").create("group")
    finally:
        os.umask(before)
    made = [tmp_path / "runs", *(tmp_path / "runs").iterdir()]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {"runs": 0o755, "own": 0o700, "shared": 0o770}


def test_a_folder_that_everybody_may_write_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a")
    run.create()
    run.path.chmod(0o777)
    with pytest.raises(ConfigError, match="everybody may write"):
        run.create()


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [line["step"] for line in read_jsonl(path)] == [1, 2]
    assert list(read_jsonl(tmp_path / "none")) == []


def test_what_is_no_record_is_passed_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.metrics.write_text('5\nnull\n[]\n{"step": 1}\n{"kind": "train", "step": "2"}\n{"kind": "train", "step": 3}\n')
    run.events.write_text('"event"\n{"event": "started"}\n{"event": "saved", "time": "2026-01-01T00:00:00Z"}\n')
    assert [line["step"] for line in read_jsonl(run.metrics)] == [3]
    assert [line["event"] for line in read_jsonl(run.events)] == ["saved"]
