"""What env.json says of a run."""

from __future__ import annotations

import json
import re

import pytest

from gpt1_ds.training import provenance


@pytest.mark.parametrize("program", ["/env/bin/gpt1-ds", "/src/gpt1_ds/__main__.py"])
def test_the_command_is_one_for_a_shell(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program, "pretrain", "data.path=my books", "--nproc", "2"])
    assert provenance.command() == "gpt1-ds pretrain 'data.path=my books' --nproc 2"


def test_another_program_keeps_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/train.py", "--password", "secret"])
    assert provenance.command() is None
    assert "secret" not in json.dumps(provenance.environment(compiled=False))


def test_commit_and_machine() -> None:
    found = provenance.environment(compiled=False)
    assert found["commit"] is None or re.fullmatch("[0-9a-f]{40}", found["commit"])
    assert found["cores"] >= 1
    assert found["memory_gib"] > 0.1
    assert found["system"].startswith("Linux")
