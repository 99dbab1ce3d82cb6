"""What doctor says of this machine's threads and memory."""

import platform

import pytest

from gpt1_ds.parallel import doctor


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    for slow in ("_backends", "_collective"):
        monkeypatch.setattr(doctor, slow, lambda: iter(()))
    assert doctor.report() == 0
    return capsys.readouterr().out


def test_threads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "threads: 3 per rank (OMP_NUM_THREADS)" in said(capsys, monkeypatch)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert "cores are shared out over local ranks" in said(capsys, monkeypatch)


def test_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert "ok      memory: glibc, told to keep what is freed" in said(capsys, monkeypatch)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert "note    memory: not glibc" in said(capsys, monkeypatch)
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so.2")
    assert "note    memory: LD_PRELOAD=libjemalloc.so.2" in said(capsys, monkeypatch)
