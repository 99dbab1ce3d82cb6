"""Local ranks: results, errors, kills, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common import memory
from gpt1_ds.common.errors import ConfigError, LaunchError, TrainingError
from gpt1_ds.launcher import launch
from tests.helpers.processes import wait_for

HERE = "tests.parallel.test_launch"


def add(number: int) -> int:
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect

    connect(60)
    value = torch.tensor(number + dist.get_rank())
    dist.all_reduce(value)
    dist.destroy_process_group()
    return int(value)


def refuse(on_all_ranks: bool) -> int:
    error = LaunchError("the interface of this node is missing")
    error.on_all_ranks = on_all_ranks
    raise error


def listening_on() -> list[str]:
    """Addresses at which this rank can be reached while it is connected."""
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect

    connect(60)
    dist.barrier()
    sockets = psutil.Process().net_connections("inet")
    dist.barrier()
    dist.destroy_process_group()
    return sorted({socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN})


def misbehave(kind: str, rank: int) -> int:
    import numpy as np
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.process_groups import connect

    connect(60)
    dist.barrier()
    if dist.get_rank() == rank:
        if kind == "raise":
            raise RuntimeError("this is the culprit")
        if kind == "user":
            raise ConfigError("model.layers=0 is too small")
        if kind == "python":
            raise MemoryError
        if kind == "numpy":
            np.empty(1 << 50)
        if kind == "torch":
            torch.empty(1 << 50)
        if kind == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    time.sleep(60)
    return 0


def test_every_rank_answers() -> None:
    assert launch.run(f"{HERE}:add", (10,), 3) == [33, 33, 33]


def test_local_ranks_are_not_reached_from_other_hosts() -> None:
    assert launch.run(f"{HERE}:listening_on", (), 2) == [["127.0.0.1"], ["127.0.0.1"]]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("raise", "this is the culprit"), ("kill", "rank 1 failed:\nit was killed by SIGKILL"), ("exit", "exit code 7")],
)
def test_the_failing_rank_is_shown_and_the_others_end(kind: str, text: str) -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launch.run(f"{HERE}:misbehave", (kind, 1), 3)
    assert text in str(caught.value)
    assert str(caught.value).count("failed:") == 1
    assert time.monotonic() - began < 10
    assert not [p for p in psutil.Process().children(recursive=True) if "rank-" in p.name()]


@pytest.mark.parametrize("kind", ["python", "numpy", "torch", "kill"])
def test_a_rank_without_memory_is_one_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel ended it, which then counts one process more."""
    kills = iter((3, 4))
    monkeypatch.setattr(memory, "kernel_kills", lambda: next(kills))
    with pytest.raises(TrainingError, match=r"^rank 1: memory ran out on .*; use a smaller train.micro_batch.*$"):
        launch.run(f"{HERE}:misbehave", (kind, 1), 2)


def test_what_a_person_can_mend_arrives_as_such() -> None:
    with pytest.raises(ConfigError, match=r"model.layers=0"):
        launch.run(f"{HERE}:misbehave", ("user", 1), 2)


@pytest.mark.slow
def test_ranks_die_with_a_killed_launcher(tmp_path: Path) -> None:
    marks = tmp_path / "pids"
    code = f"from gpt1_ds.launcher import launch; launch.run('{HERE}:wait_for_ever', ({str(marks)!r},), 2)"
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    wait_for(lambda: marks.exists() and len(marks.read_text().split()) == 2)
    pids = [int(number) for number in marks.read_text().split()]
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 10)
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.slow
def test_no_loopback_is_one_line_below_a_long_tmpdir(tmp_path: Path) -> None:
    """The ranks are started all the same; then they find no address to meet at."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    code = f"from gpt1_ds.launcher import launch; launch.run('{HERE}:add', (10,), 1)"
    arguments = ["unshare", "--net", sys.executable, "-c", code]  # nothing is up in a new network namespace
    done = subprocess.run(
        arguments,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(long)},
        capture_output=True,
        text=True,
    )
    if "unshare: " in done.stderr:
        assert "CI" not in os.environ, "CI runs as root, so that this is tested there"
        pytest.skip("a network without loopback needs root")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gpt1_ds.common.errors.NodeError: network interface lo: it has no address on "), done.stderr
    assert "ip link set lo up" in last


def wait_for_ever(marks: str) -> int:
    with open(marks, "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(300)
    return 0


def test_what_one_rank_alone_meets_is_not_kept_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by torchrun or srun, of which each rank is a program of its own."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="the interface of this node"):
        launch.start(f"{HERE}:refuse", (False,), None)
    with pytest.raises(SystemExit, match="2"):  # rank 0 says it
        launch.start(f"{HERE}:refuse", (True,), None)


def micro_batch_of_unlike_hosts() -> int:
    from gpt1_ds.config import load
    from gpt1_ds.engine.session import distributed_session, with_common_micro_batch

    size = 4 if os.environ["RANK"] == "0" else 2
    config = load([], [f"train.micro_batch={size}", "train.global_batch=16"])
    with distributed_session(config) as groups:
        return with_common_micro_batch(config, groups).train.micro_batch


def test_ranks_of_unlike_hosts_agree_on_the_smaller_micro_batch() -> None:
    assert launch.run(f"{HERE}:micro_batch_of_unlike_hosts", (), 2) == [2, 2]
