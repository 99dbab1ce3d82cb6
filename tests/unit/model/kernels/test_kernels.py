"""Where the Triton kernels run, and what is said, once, where they cannot."""

from __future__ import annotations

import sys

import pytest
import torch

from gpt1_ds.model import kernels, proof

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def proven(some_gpu: None) -> None:
    proof.decide(True)


def test_a_cpu_has_none_and_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert not kernels.available(torch.device("cpu"))
    assert capsys.readouterr().err == ""


def test_a_gpu_with_triton_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.available(GPU)
    assert capsys.readouterr().err == ""


def test_without_triton_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not kernels.available(GPU)
    assert not kernels.available(GPU)
    said = capsys.readouterr().err
    assert said.startswith("triton cannot be imported (")
    assert said.endswith("): torch computes attention and the loss, more slowly\n")
    assert said.count("\n") == 1


def test_an_old_gpu_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not kernels.available(GPU)
    assert not kernels.available(torch.device("cuda", 1)), "a second one like it needs no second line"
    assert capsys.readouterr().err == (
        "Some GPU has compute capability 7.5, the kernels need 8.0: "
        "torch computes attention and the loss, more slowly\n"
    )
