from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.pool import run
from tests.helpers.processes import command_of, wait_for


class Task:
    """Squares numbers; strings make it misbehave."""

    def __call__(self, item: object) -> object:
        if item == "data":
            raise DataError("a.txt: broken; fix it")
        if item == "disk":
            raise OSError(28, "No space left on device", "a.bin")
        if item == "bug":
            raise KeyError("bug")
        if item == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if item == "pid":
            return os.getpid()
        assert isinstance(item, int)
        return item * item


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_has_its_result(workers: int) -> None:
    assert sorted(run(Task(), [1, 2, 3, 4, 5], workers)) == [(1, 1), (2, 4), (3, 9), (4, 16), (5, 25)]


def test_one_worker_is_this_process() -> None:
    assert list(run(Task(), ["pid"], 4)) == [("pid", os.getpid())]
    assert list(run(Task(), [], 4)) == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("item", "kind", "message"),
    [("data", DataError, "a.txt: broken; fix it"), ("disk", OSError, "No space left"), ("bug", Exception, "bug")],
)
def test_errors_reach_the_caller(workers: int, item: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        list(run(Task(), [1, item, 2], workers))
    assert not isinstance(caught.value, DataError) or caught.value.problems == (message,)


def test_a_killed_worker_is_noticed() -> None:
    with pytest.raises(DataError, match=r"killed: the worker that read it was ended by signal 9; .* fewer --workers"):
        list(run(Task(), [1, "killed", 2], 2))


def test_stopping_early_ends_the_workers() -> None:
    with closing(run(Task(), list(range(50)), 2)) as results:
        next(results)
    assert [child for child in psutil.Process().children() if "multiprocessing.spawn" in command_of(child)] == []


SCRIPT = """
import sys, time
from gpt1_ds.data.pool import run
def sleep(item):
    print("ready", flush=True)
    time.sleep(0.3)
if __name__ == "__main__":
    list(run(sleep, list(range(1000)), 2))
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    process.stdout.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children), 10)
    assert len(children) >= 2
