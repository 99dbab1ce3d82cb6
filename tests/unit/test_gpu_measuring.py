"""How a contact times work, and what it does where a kernel ends the work of its process."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpt1_ds.diagnostics import self_proof
from tests.helpers.contacts import begun
from tools.bench import gpu_contacts, ours
from tools.gpu import machine, measuring
from tools.gpu.record import Contact


@pytest.fixture
def contact(tmp_path: Path) -> Contact:
    return begun(tmp_path, tiny=True)


def results(contact: Contact) -> gpu_contacts.Results:
    return gpu_contacts.read(contact.out / "results.jsonl")


def test_a_series_takes_its_seconds() -> None:
    done: list[int] = []
    found = measuring.rate(lambda: done.append(1), 7.0, "cpu", 0.05)
    assert len(done) > 1
    assert found <= 7.0 * len(done) / 0.05
    done.clear()
    measuring.rate(lambda: done.append(1), 7.0, "cpu", 0.0)
    assert len(done) == 1, "a rehearsal is short"


def test_each_series_is_written_at_once(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "wait_for", lambda device: None)
    said = "1980 MHz, 650.10 W, 55, 0x0000000000000004\n"
    monkeypatch.setattr(measuring.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=said))
    rates = measuring.three(contact, "ours", "tokens/s", lambda: None, 5.0)
    found = [line["value"] for line in results(contact).of("fact")]
    assert [one["tokens/s"] for one in found] == rates
    assert found[0]["power.draw"] == "650.10 W"
    assert found[0]["clocks_throttle_reasons.active"] == "0x0000000000000004"


def test_a_silent_nvidia_smi_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hang(*words: Any, **options: Any) -> None:
        asked.append(options["timeout"])
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    monkeypatch.setattr(measuring, "_SILENT", [])
    monkeypatch.setattr(measuring.subprocess, "run", hang)
    assert [measuring.condition("cuda"), measuring.condition("cuda")] == [{}, {}]
    assert asked == [5.0]


def test_a_lost_context_ends_the_checks(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    checks = [("first", fails), ("second", fails)]
    monkeypatch.setattr(ours, "connect", lambda device: None)
    monkeypatch.setattr("gpt1_ds.engine.process_groups.ProcessGroups", lambda config: None)
    monkeypatch.setattr(self_proof, "configuration", lambda *_: None)
    monkeypatch.setattr(self_proof, "local_checks", lambda *_: checks)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    machine.kernels(contact, False)
    assert [line["name"] for line in results(contact).of("failed")] == ["first", "second"], "the context still works"
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(RuntimeError, match="context lost in first"):
        machine.kernels(contact, False)
    assert len(results(contact).of("failed")) == 3
    assert "illegal memory access" in results(contact).fact("contact", "context lost")


def test_no_gpu_alone_is_an_error_of_the_environment(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    def no_deepspeed() -> str:
        raise ImportError("no deepspeed")

    monkeypatch.setattr(machine.subprocess, "run", hang)
    monkeypatch.setattr(machine, "_deepspeed", no_deepspeed)
    monkeypatch.setattr(machine, "_device", lambda contact: None)
    machine.environment(contact)
    (failed,) = results(contact).of("failed")
    assert failed["name"] == "DeepSpeed's accelerator"
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="sees no GPU here"):
        machine.environment(contact)
    assert results(contact).fact("contact", "a bad fork") is False
