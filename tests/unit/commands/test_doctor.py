"""What doctor says of this machine's threads, memory and packages."""

import os
import platform
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt1_ds.cli import main
from gpt1_ds.commands import doctor
from gpt1_ds.common.errors import LaunchError
from gpt1_ds.config import load
from gpt1_ds.diagnostics.report import Record, Report, read_report
from gpt1_ds.launcher import launch
from gpt1_ds.model import proof


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    for slow in ("_backends", "_compiler", "_collective"):
        monkeypatch.setattr(doctor, slow, lambda: iter(()))
    assert doctor.report() == 0
    return capsys.readouterr().out


def test_threads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "threads: 3 per rank (OMP_NUM_THREADS)" in said(capsys, monkeypatch)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert "cores are shared out over local ranks" in said(capsys, monkeypatch)


def test_threads_on_cores_that_others_use(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.9, 8.0, 8.0))
    assert "OMP_WAIT_POLICY" not in said(capsys, monkeypatch)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.54, 0.0, 0.0))
    assert "note    other programs use this machine (load 6.5 on 8 cores)" in said(capsys, monkeypatch)
    for name, value in (("OMP_WAIT_POLICY", "passive"), ("OMP_NUM_THREADS", "1")):  # nothing is left to advise
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "other programs" not in said(capsys, patch)


def test_a_compiler_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    ((level, text),) = doctor._compiler()
    assert level == "note"
    assert text.startswith("C++ compiler false: train.compile=on is not possible (")


def test_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert "ok      memory: glibc, set to keep what is freed" in said(capsys, monkeypatch)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert "note    memory: not glibc" in said(capsys, monkeypatch)
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so.2")
    assert "note    memory: LD_PRELOAD=libjemalloc.so.2" in said(capsys, monkeypatch)


def test_every_package_of_an_extra_is_named_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = extras.pop("all")
    tools = [word for name in ("dev", "site", "package") for word in extras.pop(name)]
    assert set(re.split(r"[\[\],]", everything)[1:-1]) == set(extras), "all has every extra, and no test tools"
    names = {extra: {re.split("[>=<]", word)[0] for word in words} for extra, words in extras.items()}
    assert set(doctor.OPTIONAL) == set().union(*names.values())
    assert not set(doctor.OPTIONAL) & {re.split("[>=<]", word)[0] for word in tools}
    assert set(doctor.REQUIRED) <= {re.split("[>=<]", word)[0] for word in project["dependencies"]}
    installed = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in doctor.OPTIONAL else installed(name))
    text = said(capsys, monkeypatch)
    for name, (_, extra) in doctor.OPTIONAL.items():
        assert name in names[extra]
        assert re.search(rf"note    no {name}, for .*: pip install 'gpt1-ds\[{extra}\]'", text)
    monkeypatch.setattr(doctor, "installed", lambda name: "99.1" if name in doctor.OPTIONAL else installed(name))
    text = said(capsys, monkeypatch)
    for name, (_, extra) in doctor.OPTIONAL.items():
        assert re.search(rf"ok      {name} 99.1, for .* \(extra {extra}\)", text)


def test_a_tracker_that_is_off_may_be_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = doctor.installed
    for found, words in ((None, "is missing"), ("0.1", "0.1 is too old")):
        monkeypatch.setattr(
            doctor, "installed", lambda name, found=found: found if name == "wandb" else installed(name)
        )
        text = said(capsys, monkeypatch)
        assert f"note    wandb, for tracking.wandb, which is off unless it is asked for, {words}: pip install" in text
        assert text.endswith("training works here\n")
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "rich" else installed(name))
    assert doctor.report() == 2
    assert "problem rich is missing: pip install 'rich>=13'" in capsys.readouterr().out


def test_no_gpu_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["doctor", "--gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sees no GPU here; install the CUDA build (bash tools/setup.sh --gpu), or run it on a node that has" in line
    assert main(["doctor", "--out", "x.json"]) == 2
    assert "--out=x.json: only the self-proof writes a file; add --gpu" in capsys.readouterr().err


KEYS = {"torch": "2.13.0", "device": "Some GPU", "capability": "9.0", "cuda": "13.0"}
GOOD, BAD = Record("masks", True, 0, 0), Record("masks", False, 1, 0, "report it")


def ranks_say(
    monkeypatch: pytest.MonkeyPatch, records: list[Record], last: object, skipped: Sequence[str] = (), **keys: str
) -> None:
    """What the ranks of the self-proof find; `last` is what those of the deterministic step give or raise."""

    def run(target: str, arguments: tuple[Any, ...], ranks: int) -> list[object]:
        if target.endswith(":prove"):
            report = Report("node1", "2026-11-22", ranks, {"node1": ranks}, keys, records)
            arguments[2].write(report, skipped)
            return [report] * ranks
        if isinstance(last, Exception):
            raise last
        return [last] * ranks

    monkeypatch.setattr(launch, "run", run)


def test_a_step_that_cannot_repeat_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch raises where an operation has no deterministic form: the rest of the file is kept."""
    error = LaunchError("rank 0 failed:\nTraceback\nRuntimeError: cumsum has no deterministic implementation")
    ranks_say(monkeypatch, [GOOD], error)
    assert doctor.prove(load(), 8, tmp_path / "gpu-check.json") == 2
    found = read_report(tmp_path / "gpu-check.json")
    (failing,) = found.failing
    assert failing.note == "RuntimeError: cumsum has no deterministic implementation"
    assert (found.records[0], found.not_reached) == (GOOD, [])
    assert "problem a step twice, deterministic:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("records", "skipped", "code", "said"),
    [
        ([GOOD], [], 0, "Triton kernels, CUDA graphs and overlapped reductions are on from now on for this GPU"),
        ([BAD], [], 2, "Triton kernels, CUDA graphs and overlapped reductions stay off\n"),
        ([GOOD], ["loss"], 2, "stay off; run it once more: what was compiled is kept\n"),
    ],
)
def test_training_learns_whether_all_of_it_holds(
    records: list[Record],
    skipped: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = proof.named_toolchain("Some GPU", "9.0", "13.0")
    proof.keep(key, 1)  # of an earlier time
    ranks_say(monkeypatch, records, [GOOD], skipped, **KEYS)
    assert doctor.prove(load(), 8, tmp_path / "gpu-check.json") == code
    out = capsys.readouterr().out
    assert said in out
    assert proof.passed(key, 1) is proof.passed(key, 64) is (code == 0)
    assert read_report(tmp_path / "gpu-check.json").not_reached == skipped
    assert ("missing loss: not reached\n" in out) is bool(skipped)


def test_nothing_is_kept_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ranks_say(monkeypatch, [GOOD], [GOOD], torch="2.13.0")
    assert doctor.prove(load(), 2, tmp_path / "gpu-check.json") == 0
    assert not (tmp_path / "cache").exists()


def test_without_time_the_last_ranks_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks_say(monkeypatch, [GOOD], LaunchError("they started"), **KEYS)
    assert doctor.prove(load(), 1, tmp_path / "gpu-check.json", limit=-1) == 2
    found = read_report(tmp_path / "gpu-check.json")
    assert (found.failing, found.not_reached) == ([], ["a step twice, deterministic"])


def test_in_a_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """MKL ended the process, with a line about a library that cannot be loaded."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    assert main(["doctor"]) == 2
    assert capfd.readouterr() == ("", "gpt1-ds: the current folder was deleted; change to one that is there (cd)\n")
