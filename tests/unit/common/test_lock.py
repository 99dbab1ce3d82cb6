import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt1_ds.common import lock
from gpt1_ds.common.errors import LaunchError, LockedError, NodeError, TrainingError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.lock import RunLock

ROOT = Path(__file__).parents[3]


def _hold(path: Path, ready: "multiprocessing.synchronize.Event") -> None:
    with RunLock(path):
        ready.set()
        time.sleep(60)


@pytest.fixture
def holder(tmp_path: Path):  # type: ignore[no-untyped-def]
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path / ".lock", ready))
    process.start()
    assert ready.wait(10)
    yield process
    process.kill()
    process.join()


def test_a_live_holder_is_named(tmp_path: Path, holder: multiprocessing.Process) -> None:
    with (
        pytest.raises(LaunchError, match=f"pid {holder.pid} on {socket.gethostname()}"),
        RunLock(tmp_path / ".lock", 0.3),
    ):
        pass


def test_a_killed_holder_is_taken_over_at_once(tmp_path: Path, holder: multiprocessing.Process) -> None:
    assert holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with RunLock(tmp_path / ".lock", 5):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock").exists()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)


@pytest.mark.parametrize("clock", [-90.0, 0.0, 90.0])
def test_a_holder_elsewhere_whose_heartbeat_stands_still_is_gone(clock: float, quick: None, tmp_path: Path) -> None:
    """Whatever its clock said."""
    path = tmp_path / ".lock"
    path.write_text(json.dumps({"token": "t", "host": "elsewhere", "pid": 1, "heartbeat": time.time() + clock}))
    began = time.monotonic()
    with RunLock(path, 5):
        assert time.monotonic() - began >= 1
        assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("clock", [-90.0, 0.0, 90.0])
def test_a_holder_elsewhere_whose_heartbeat_continues_is_not_robbed(clock: float, quick: None, tmp_path: Path) -> None:
    path, beside, done = tmp_path / ".lock", tmp_path / "beside", threading.Event()

    def beat() -> None:
        while not done.wait(0.1):
            holder = {"token": "t", "host": "elsewhere", "pid": 1, "heartbeat": time.time() + clock}
            beside.write_text(json.dumps(holder))  # without the disk, which may be busy
            beside.replace(path)

    beating = threading.Thread(target=beat)
    beating.start()
    time.sleep(0.3)
    try:
        with pytest.raises(LaunchError, match="pid 1 on elsewhere"), RunLock(path, 2):
            pass
        assert json.loads(path.read_text())["token"] == "t"
    finally:
        done.set()
        beating.join()


def test_a_heartbeat_of_yesterday_needs_no_watching(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "heartbeat": time.time() - 86400}))
    with RunLock(path, 0.3) as held:
        assert json.loads(path.read_text())["token"] == held.token


def test_two_containers_with_one_host_name_do_not_share_a_folder(tmp_path: Path) -> None:
    """In a pid namespace of its own the holder's number means another process here, or none."""
    code = (
        "import sys, time; from pathlib import Path; from gpt1_ds.common.lock import RunLock\n"
        "with RunLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    arguments = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", code]
    with subprocess.Popen([*arguments, tmp_path / ".lock"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as inside:
        try:
            assert inside.stdout is not None
            if inside.stdout.readline() != "held\n":
                assert "CI" not in os.environ, "CI runs as root, so that this is tested there"
                pytest.skip("a pid namespace needs root")
            with pytest.raises(LaunchError, match="another process writes"), RunLock(tmp_path / ".lock", 0.5):
                pass
        finally:
            inside.kill()


def test_a_holder_that_finds_another_token_ends(quick: None, tmp_path: Path) -> None:
    path, context = tmp_path / ".lock", multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(path, ready))
    process.start()
    assert ready.wait(10)
    holder = json.loads(path.read_text())
    write_atomic(path, json.dumps({**holder, "token": "another"}))  # same host, same process number
    process.join(10)
    assert process.exitcode == 1


def test_a_lock_without_content_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    with RunLock(path, 0.3) as held:
        assert json.loads(path.read_text())["token"] == held.token


def test_a_full_disk_leaves_no_lock(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("64k")
    (disk / ".lock.guard").touch()
    with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError, match="No space left"), RunLock(disk / ".lock", 0.3):
        pass
    assert sorted(path.name for path in disk.iterdir()) == [".lock.guard", "filler"]


def test_without_hard_links_a_lock_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    path = tmp_path / ".lock"
    with RunLock(path, 0.3) as held:
        assert json.loads(path.read_text())["token"] == held.token
        assert not RunLock(path)._create()
        assert json.loads(path.read_text())["token"] == held.token
    assert [file.name for file in tmp_path.iterdir()] == [".lock.guard"]


def test_a_lock_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(LaunchError, match=r"\.lock: is .*'s, who did not share it"), RunLock(tmp_path / ".lock", 0.3):
        pass


def test_a_reused_process_number_is_not_the_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with RunLock(path):
        holder = json.loads(path.read_text())
    path.write_text(json.dumps({**holder, "started": "1"}))
    with RunLock(path, 0.3) as held:
        assert json.loads(path.read_text())["token"] == held.token != holder["token"]


def test_only_one_of_many_takes_a_stale_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(json.dumps({**lock._here(), "pid": 2**22 + 1, "started": "1"}))
    context = multiprocessing.get_context("fork")
    inside = context.Queue()

    def compete() -> None:
        try:
            with RunLock(path, 0.5):
                inside.put(os.getpid())
                time.sleep(2)
        except LaunchError:
            pass

    processes = [context.Process(target=compete) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert inside.qsize() == 1


def test_a_folder_that_is_gone_hides_no_error(tmp_path: Path) -> None:
    """What ended the run is said, not that its lock could not be removed."""
    folder = tmp_path / "run"
    folder.mkdir()

    def run() -> None:
        with RunLock(folder / ".lock"):
            shutil.rmtree(folder)
            raise TrainingError("the run folder is gone")

    with pytest.raises(TrainingError, match="the run folder is gone"):
        run()
    assert not folder.exists(), "and nothing is made there again"


def _link_to_nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [_link_to_nowhere, Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", [".lock", ".lock.guard"])
def test_a_lock_that_is_no_file_is_waited_for_out_loud_and_refused(
    name: str, make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(lock.log, "say", said.append)
    monkeypatch.setattr(lock, "QUIET_SECONDS", 0.1)
    make(tmp_path / name)
    began = time.monotonic()
    with pytest.raises(LaunchError, match=rf"{name}: is no regular file; remove it"), RunLock(tmp_path / ".lock", 0.5):
        pass
    assert 0.5 <= time.monotonic() - began < 5
    assert len(said) == 1
    assert "waiting for at most 0.5 s" in said[0]
    assert name in said[0]


def test_a_lock_whose_disk_is_in_trouble_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a fault of the node, which a job survives; a disk that recovers before is waited for."""
    failing = [errno.EIO] * 2
    read_bytes = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name == ".lock" and failing:
            raise OSError(failing[-1], os.strerror(failing[-1]))
        return read_bytes(path)

    (tmp_path / ".lock").write_text("{}")
    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(NodeError, match=r"\.lock: input/output error"), RunLock(tmp_path / ".lock", 0.3):
        pass
    threading.Timer(0.3, failing.clear).start()
    with RunLock(tmp_path / ".lock", 5) as held:
        assert json.loads(read_bytes(tmp_path / ".lock"))["token"] == held.token


def test_who_is_waited_for_is_said(
    tmp_path: Path, holder: multiprocessing.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(lock.log, "say", said.append)
    monkeypatch.setattr(lock, "QUIET_SECONDS", 0.1)
    with pytest.raises(LockedError), RunLock(tmp_path / ".lock", 0.5):
        pass
    assert len(said) == 1
    assert f"pid {holder.pid}" in said[0]


def test_a_guard_that_a_stopped_process_has_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "GUARD_SECONDS", 0.1)
    with open(tmp_path / ".lock.guard", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LockedError, match="another process has it open"), RunLock(tmp_path / ".lock", 0.3):
            pass
