"""`tracking sync`, up to the server: there is none here, so what a real one does with the upload is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.tracking import sync

NAMES = ("offline-run-20260102_000000-x", "run-20260101_000000-x", "offline-run-20260103_000000-x")


def make_run(folder: Path) -> Path:
    """A run of three segments with nothing in them."""
    (folder / "wandb").mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    for name in NAMES:
        (folder / "wandb" / name).mkdir()
        (folder / "wandb" / name / "run-x.wandb").write_bytes(b"")
    (folder / "wandb" / "latest-run").symlink_to(NAMES[0])
    return folder


def mark(run: Path, *names: str) -> None:
    for name in names:
        (run / "wandb" / name / "run-x.wandb.synced").touch()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """One that knows no key, for a person who has none on this machine."""
    http = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{http.server_port}"
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield address
    http.shutdown()


def test_a_live_run_without_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("")
    with RunLock(RunDir(tmp_path).lock):
        assert sync.sync([tmp_path]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 0 segments uploaded, 0 were before\n"


def test_segments_in_the_order_of_their_starts(tmp_path: Path) -> None:
    found = sync.segments(make_run(tmp_path / "run"))
    assert [folder.name for folder in found] == [NAMES[1], NAMES[0], NAMES[2]]


def test_the_flags_are_those_of_the_installed_wandb(tmp_path: Path) -> None:
    folders = sync.segments(make_run(tmp_path / "run"))
    arguments = sync.command(folders)
    assert arguments[:5] == [sys.executable, "-P", "-m", "wandb", "sync"]
    assert arguments[-3:] == [str(folder) for folder in folders]
    done = subprocess.run([*arguments, "--dry-run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert all(name in told for name in NAMES), told


def test_only_what_is_not_there_is_uploaded(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    mark(run, NAMES[1])
    uploaded: list[list[str]] = []

    def upload(folders: list[Path]) -> None:  # in the place of a server that takes everything
        uploaded.append([folder.name for folder in folders])
        mark(run, *uploaded[-1])

    monkeypatch.setattr(sync, "upload", upload)
    assert main(["tracking", "sync", str(run)]) == 0
    assert uploaded == [[NAMES[0], NAMES[2]]]
    assert "2 segments uploaded, 1 were before" in capsys.readouterr().out
    RunDir(run).config.unlink()  # as in the folder of a study
    assert main(["tracking", "sync", str(run)]) == 0
    assert len(uploaded) == 1, "nothing twice"
    assert "0 segments uploaded, 3 were before" in capsys.readouterr().out


def test_the_segment_of_a_live_run_is_left(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    uploaded: list[str] = []
    monkeypatch.setattr(sync, "upload", lambda folders: uploaded.extend(folder.name for folder in folders))
    with RunLock(run / ".lock"):
        assert main(["tracking", "sync", str(run)]) == 0
    assert uploaded == [NAMES[1], NAMES[0]]
    assert "still running" in capsys.readouterr().out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such folder; name a run folder" in refused(["tracking", "sync", str(tmp_path / "nothing")], capsys)


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    error = refused(["tracking", "sync", str(make_run(tmp_path / "run"))], capsys)
    assert "http://127.0.0.1:9: not reachable" in error


@pytest.mark.parametrize("key", ["", "malformed key!", "0123456789abcdef0123456789abcdef01234567"])
def test_no_login_and_keys_that_are_refused(
    key: str, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    from tests.unit.tracking.test_wandb_logger import record, start

    run.mkdir()
    (run / "config.yaml").write_text("")
    logger = synced(start(run))
    logger.log(record(1))
    logger.finish({})
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    error = refused(["tracking", "sync", str(run)], capsys)
    assert "not uploaded" in error
    assert not key or key not in error
    assert not json.dumps(error).count("Traceback")
    assert not list(run.glob("wandb/*/*.synced"))


def synced(started: object):  # type: ignore[no-untyped-def]
    from gpt1_ds.tracking.sinks import WandbLogger

    return WandbLogger(started)  # type: ignore[arg-type]
