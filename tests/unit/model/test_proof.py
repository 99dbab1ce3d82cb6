"""Kernels, graphs and overlapped reductions are on where the self-proof has passed; else one line says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpt1_ds.common import memory
from gpt1_ds.config import load
from gpt1_ds.engine import session
from gpt1_ds.engine.deepspeed import overlap
from gpt1_ds.model import kernels, proof

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.fixture(autouse=True)
def _own_cache(some_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(memory, "driver_version", lambda: "580.65.06")


def test_without_a_proof_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert not kernels.available(GPU)
        assert not overlap.overlaps(GPU)
    (line,) = capsys.readouterr().err.splitlines()
    assert "no self-proof has passed with Some GPU, torch " in line
    assert line.endswith("`gpt1-ds doctor --gpu` takes two minutes and turns them on")


def test_with_a_proof_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    proof.keep(proof.toolchain(GPU), 1)
    assert kernels.available(GPU)
    assert overlap.overlaps(GPU)
    assert capsys.readouterr().err == ""


def test_a_cpu_is_never_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(proof, "passed", lambda *_: pytest.fail("a CPU needs no proof"))
    for answer in (None, True):
        proof.decide(answer)
        assert not kernels.available(CPU)
        assert not overlap.overlaps(CPU)
        session.agree_on_proof(load(), ranks([]), CPU)
    assert capsys.readouterr().err == ""


def ranks(others: list[bool], rank: int = 0) -> Any:
    return SimpleNamespace(gather=lambda value: [value, *others], world=1 + len(others), rank=rank)


@pytest.mark.parametrize(
    ("arguments", "here", "others", "on"),
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
    arguments: list[str], here: int, others: list[bool], on: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """`here`: on how many ranks this rank's proof was made, 0: it has none."""
    if here:
        proof.keep(proof.toolchain(GPU), here)
    session.agree_on_proof(load([], arguments), ranks(others), GPU)
    assert kernels.available(GPU) is overlap.overlaps(GPU) is on
    assert len(capsys.readouterr().err.splitlines()) == (not on)


def test_rank_0_alone_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    session.agree_on_proof(load(), ranks([False], rank=1), GPU)
    assert not kernels.available(GPU)
    assert capsys.readouterr().err == ""


def test_who_knows_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    proof.decide(True)
    session.agree_on_proof(load(), SimpleNamespace(world=2, rank=0), GPU)  # type: ignore[arg-type]
    assert kernels.available(GPU)


def tools(**changes: str) -> proof.Toolchain:
    return {**proof.named_toolchain("NVIDIA H100 80GB HBM3", "9.0", "13.0"), **changes}


def test_nothing_is_proven_at_first() -> None:
    assert not proof.passed(tools(), 1)
    assert proof.MEASURED == (), "no GPU was measured so far"


@pytest.mark.parametrize("key", ["device", "capability", "driver", "torch", "cuda", "triton", "deepspeed", "code"])
def test_a_proof_is_of_one_toolchain(key: str) -> None:
    proof.keep(tools(), 1)
    assert proof.passed(tools(), 1)
    assert tools().keys() == {"device", "capability", "driver", "torch", "cuda", "triton", "deepspeed", "code"}
    assert not proof.passed(tools(**{key: "another"}), 1)


def test_a_driver_counts_by_its_major_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tools()["driver"] == "580"
    monkeypatch.setattr(memory, "driver_version", lambda: None)
    assert tools()["driver"] == "unknown"


def test_one_gpu_proves_nothing_of_several() -> None:
    proof.keep(tools(), 1)
    assert not proof.passed(tools(), 8)
    proof.keep(tools(), 2)
    assert proof.passed(tools(), 8)
    proof.keep(tools(), 1)
    assert proof.passed(tools(), 8), "the weaker proof does not replace the stronger one"


def test_a_toolchain_that_fails_is_forgotten() -> None:
    proof.forget(tools())
    proof.keep(tools(), 1)
    proof.keep(tools(device="A100"), 1)
    proof.forget(tools())
    assert not proof.passed(tools(), 1)
    assert proof.passed(tools(device="A100"), 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "toolchain": 1, "ranks": 1}', "\xff"])
def test_a_damaged_file_proves_nothing(text: str) -> None:
    path = proof.keep(tools(), 1)
    path.write_bytes(text.encode("latin-1"))
    assert not proof.passed(tools(), 1)
    proof.keep(tools(), 1)
    assert proof.passed(tools(), 1)


def test_the_file_says_what_it_proves() -> None:
    path = proof.keep(tools(), 1)
    raw = json.loads(path.read_text())
    assert raw["toolchain"] == tools()
    path.write_text(json.dumps({**raw, "toolchain": tools(torch="1.0")}))
    assert not proof.passed(tools(), 1), "its name alone is no proof"


def test_versions_in_the_package_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MEASURED", (proof.Proof(tools(), 1),))
    assert proof.passed(tools(), 1)
