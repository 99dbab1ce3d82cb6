"""Copies of datasets on a node's own disk."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from pathlib import Path

import pytest

from gpt1_ds.config import load
from gpt1_ds.data.sources import open_data
from gpt1_ds.data.staging import VARIABLE, release, stage, staged


def test_a_whole_copy_is_read_and_is_the_same_data(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load([], [f"data.path={tiny_data}"])
    original = open_data(config)
    assert staged(str(tiny_data)) == tiny_data
    stage([str(tiny_data)], tmp_path)
    assert staged(str(tiny_data)) == tiny_data, "only where the job says so"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert staged(str(tiny_data)).parent == tmp_path
    copy = open_data(config)
    assert copy.data_hash == original.data_hash
    assert copy.tokenizer_folder.is_relative_to(tmp_path)


def test_a_copy_cut_off_is_not_read_and_the_next_time_made_whole(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    stage([str(tiny_data)], tmp_path)
    copy = staged(str(tiny_data))
    shard = max((path for path in copy.rglob("*.bin")), key=lambda path: path.stat().st_size)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    (copy / ".complete").unlink()
    assert staged(str(tiny_data)) == tiny_data
    stage([str(tiny_data)], tmp_path)
    assert staged(str(tiny_data)) == copy
    assert shard.read_bytes() == content


def test_another_dataset_at_the_same_path_is_another_copy(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stage"))
    source = tmp_path / "data"
    shutil.copytree(tiny_data, source)
    stage([str(source)], tmp_path / "stage")
    described = source / "dataset.json"
    described.write_text(described.read_text() + " ")
    assert staged(str(source)) == source


def test_a_copy_that_others_may_write_is_not_trusted(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    stage([str(tiny_data)], tmp_path)
    copy = staged(str(tiny_data))
    copy.chmod(0o777)
    assert staged(str(tiny_data)) == tiny_data
    with pytest.raises(PermissionError, match="not yours alone to write"):
        stage([str(tiny_data)], tmp_path)
    copy.chmod(0o700)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert staged(str(tiny_data)) == tiny_data, "somebody else made it"
    monkeypatch.undo()
    copy.rename(tmp_path / "moved")
    copy.symlink_to(tmp_path / "moved")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert staged(str(tiny_data)) == tiny_data


def test_a_copy_that_is_described_otherwise_is_not_read(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    stage([str(tiny_data)], tmp_path)
    described = staged(str(tiny_data)) / "dataset.json"
    described.write_text(described.read_text().replace('"tokens"', '"tokenz"'))
    assert staged(str(tiny_data)) == tiny_data


def test_two_jobs_of_a_node_copy_one_after_the_other(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    copying, begun, told = shutil.copyfile, threading.Event(), []

    def slowly(source: Path, target: Path) -> None:
        begun.set()
        time.sleep(0.02)
        told.append(threading.current_thread().name)
        copying(source, target)

    monkeypatch.setattr(shutil, "copyfile", slowly)
    jobs = [threading.Thread(target=stage, args=([str(tiny_data)], tmp_path), name=name) for name in "ab"]
    jobs[0].start()
    begun.wait(10)
    jobs[1].start()
    for job in jobs:
        job.join(60)
    assert set(told) == {"a"}, "the second finds all files there"
    copy = staged(str(tiny_data))
    files = sorted(path.relative_to(tiny_data) for path in tiny_data.rglob("*") if path.is_file())
    assert sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file()) == [Path(".complete"), *files]
    assert all((copy / file).read_bytes() == (tiny_data / file).read_bytes() for file in files)


def test_a_full_disk_keeps_no_half_of_a_file(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        stage([str(tiny_data)], tmp_path)
    assert not list(tmp_path.rglob("*.copied"))


def test_the_last_run_removes_a_copy(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    source = [str(tiny_data)]
    for run in ("runs/a", "runs/b", "runs/b"):
        stage(source, tmp_path, run)
    (tmp_path / "somebody's file").touch()
    copy = staged(source[0])
    release(source, tmp_path, "runs/other")
    release(source, tmp_path, "runs/a")
    assert staged(source[0]) == copy, "b reads it"
    release(source, tmp_path, "runs/b", keep=True)
    assert staged(source[0]) == copy, "tasks of an array that wait will read it"
    release(source, tmp_path, "runs/b")
    assert [path.name for path in tmp_path.iterdir()] == ["somebody's file"]
    stage(source, tmp_path)
    release(source, tmp_path, "runs/a")
    assert staged(source[0]) == copy, "it was copied for no run"


def test_a_copy_that_goes_while_another_run_waits_is_made_again(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    source = [str(tiny_data)]
    stage(source, tmp_path, "runs/a")
    removing, waiting, remove = threading.Event(), threading.Event(), shutil.rmtree

    def slowly(folder: Path) -> None:
        removing.set()
        waiting.wait(10)
        time.sleep(0.1)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    first = threading.Thread(target=release, args=(source, tmp_path, "runs/a"))
    first.start()
    removing.wait(10)
    second = threading.Thread(target=stage, args=(source, tmp_path, "runs/b"))
    second.start()
    waiting.set()
    first.join(60)
    second.join(60)
    copy = staged(source[0])
    assert copy.parent == tmp_path
    assert len(list((copy / ".readers").iterdir())) == 1
