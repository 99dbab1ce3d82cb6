import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.lock import STALE_SECONDS, RunLock, is_live


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


def test_another_host_is_known_by_its_heartbeat() -> None:
    elsewhere = {"host": "elsewhere", "pid": 1}
    assert is_live({**elsewhere, "heartbeat": time.time()})
    assert not is_live({**elsewhere, "heartbeat": time.time() - STALE_SECONDS - 1})


def test_a_reused_process_number_is_not_the_holder() -> None:
    assert not is_live({"host": socket.gethostname(), "pid": os.getpid(), "started": "1"})


def test_only_one_of_many_takes_a_stale_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "started": "1"}))
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
