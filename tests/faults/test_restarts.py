"""Ranks that begin again after one was lost, started by us or by torchrun."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpt1_ds.common.errors import LaunchError, LostRankError
from gpt1_ds.training import restarts
from tests.helpers.processes import wait_for
from tools import runs
from tools.cluster import ROOT
from tools.runs import Background


def with_restarts(number: int):  # type: ignore[no-untyped-def]
    """Returns how a run lives whose ranks begin again so many times."""

    def life(arguments: list[str], ranks: int) -> int:
        target, config = "gpt1_ds.training.pretraining:pretrain", runs.configuration(arguments)
        return restarts.start(target, config, ranks, runs.folder(arguments), number)

    return life


def kill(run: Background, rank: int, number: int = signal.SIGKILL) -> None:
    """As soon as a step was saved since the ranks began."""
    began = runs.events(run.run_dir, "started")[-1]["step"]
    run.wait_for(lambda: any(event["step"] > began for event in runs.events(run.run_dir, "saved")))
    os.kill(next(process.pid for process in run.processes() if process.name == f"rank-{rank}"), number)


@pytest.fixture(scope="module")
def alone(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a run on two ranks that nobody disturbed, its folder last."""
    arguments = [f"data.path={tiny_data}", "train.steps=150", f"run.dir={tmp_path_factory.mktemp('alone')}"]
    assert runs.pretrain(arguments, 2) == 0
    return arguments


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_two_are_killed_and_all_is_as_if_none_had_been(resume: str, alone: list[str], tmp_path: Path) -> None:
    """A run that begins anew does so once."""
    arguments = [*alone[:-1], f"run.dir={tmp_path}"]
    if resume == "never":
        shutil.copytree(runs.folder(alone).path, runs.folder(arguments).path)
    run = Background([*arguments, f"checkpoint.resume={resume}"], 2, with_restarts(2))
    if resume == "never":
        run.wait_for(lambda: bool(runs.events(run.run_dir, "replaced")))
    for number, rank in enumerate((1, 0), 1):
        run.wait_for(lambda n=number: len(runs.events(run.run_dir, "started")) == n)  # type: ignore[misc]
        kill(run, rank)
    run.join()
    assert run.result == 0, run.error
    assert runs.losses(run.run_dir) == runs.losses(runs.folder(alone)), "bit for bit, each step once"
    assert runs.weights(run.run_dir) == runs.weights(runs.folder(alone))
    told = runs.events(run.run_dir, "restarted")
    assert [event["restarts"] for event in told] == [1, 2]
    assert [event["reason"][:22] for event in told] == ["rank 1 failed: it was ", "rank 0 failed: it was "]
    again = runs.events(run.run_dir, "trained again")
    assert [event["step"] for event in again] == [event["step"] + 1 for event in told], "at the first step of each"
    assert all(0 < event["seconds"] < 60 for event in again)


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_torchrun_starts_them_again(resume: str, alone: list[str], tmp_path: Path) -> None:
    """Whose agent keeps the store in which the killed ranks left their addresses."""
    arguments = [*alone[:-1], f"run.dir={tmp_path}", f"checkpoint.resume={resume}"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", f"--master-port={port}"]
    command = [sys.executable, "-P", *torchrun, "-m", "gpt1_ds", "pretrain", *runs.TINY, *arguments]
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run_dir = runs.folder(arguments)
    with subprocess.Popen(command, env=variables) as agent:
        wait_for(lambda: runs.events(run_dir, "saved") or agent.poll() is not None)
        assert agent.poll() is None, "it ended early"
        ranks = psutil.Process(agent.pid).children()
        next(rank for rank in ranks if rank.environ().get("RANK") == "1").kill()
        assert agent.wait(240) == 0
    assert [event["step"] > 0 for event in runs.events(run_dir, "started")] == [False, True]
    assert runs.losses(run_dir) == runs.losses(runs.folder(alone)), "bit for bit, each step once"


@pytest.mark.parametrize(("every", "allowed"), [(100000, 5), (5, 0)], ids=["no saved step", "all are used"])
def test_the_error_is_told(every: int, allowed: int, tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=100000", f"checkpoint.every={every}"]
    run = Background(arguments, 1, with_restarts(allowed))
    run.wait_for_step(12)
    run.signal(signal.SIGKILL)
    run.join()
    assert isinstance(run.error, LostRankError)
    assert not runs.events(run.run_dir, "restarted")


@pytest.mark.parametrize("given", [(-1, 2), (1, None)])
def test_restarts_that_nobody_would_make_are_refused(given: tuple[int, int | None]) -> None:
    with pytest.raises(LaunchError, match=f"--restarts={given[0]}: "):
        restarts.check(*given)
