"""Kernels, graphs and overlapped reductions are on where the self-proof has passed; else one line says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gpt1_ds.common import gpus
from gpt1_ds.config import load
from gpt1_ds.engine import session
from gpt1_ds.engine.deepspeed import overlap
from gpt1_ds.model import kernels, proven
from gpt1_ds.plan import proof

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def _a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpus, "driver_version", lambda: "580.65.06")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    proven.decide(None)
    yield
    proven.decide(None)
    kernels.why_not.cache_clear()


def test_without_a_proof_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert not kernels.available(GPU)
        assert not overlap.overlaps(GPU)
    (line,) = capsys.readouterr().err.splitlines()
    assert "no self-proof has passed with Some GPU, torch " in line
    assert line.endswith("`gpt1-ds doctor --gpu` takes two minutes and turns them on")


def test_with_a_proof_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    proof.keep(proven.toolchain(GPU), 1)
    assert kernels.available(GPU)
    assert overlap.overlaps(GPU)
    assert capsys.readouterr().err == ""


def test_a_cpu_is_never_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(proof, "passed", lambda *_: pytest.fail("a CPU needs no proof"))
    for answer in (None, True):
        proven.decide(answer)
        assert not kernels.available(CPU)
        assert not overlap.overlaps(CPU)
        session.agree_on_proof(load(), ranks([]), CPU)
    assert capsys.readouterr().err == ""


def ranks(others: list[bool], rank: int = 0) -> Any:
    return SimpleNamespace(gather=lambda value: [value, *others], world=1 + len(others), rank=rank)


@pytest.mark.parametrize(
    ("words", "here", "others", "on"),
    [
        ([], 1, [], True),
        ([], 0, [], False),
        ([], 2, [True, True], True),
        ([], 2, [True, False], False),
        ([], 1, [True], False),
        (["train.cuda_graphs=on"], 0, [False], True),
        (["train.cuda_graphs=off"], 1, [], True),
    ],
)
def test_all_ranks_agree(
    words: list[str], here: int, others: list[bool], on: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`here`: on how many ranks this rank's proof was made, 0: it has none."""
    if here:
        proof.keep(proven.toolchain(GPU), here)
    session.agree_on_proof(load([], words), ranks(others), GPU)
    assert kernels.available(GPU) is overlap.overlaps(GPU) is on
    assert len(capsys.readouterr().err.splitlines()) == (not on)


def test_rank_0_alone_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    session.agree_on_proof(load(), ranks([False], rank=1), GPU)
    assert not kernels.available(GPU)
    assert capsys.readouterr().err == ""


def test_who_knows_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    proven.decide(True)
    session.agree_on_proof(load(), SimpleNamespace(world=2, rank=0), GPU)  # type: ignore[arg-type]
    assert kernels.available(GPU)
