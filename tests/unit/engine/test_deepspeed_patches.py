"""What the patches rely on is there in the installed versions."""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpt1_ds.engine.deepspeed_patches import RELIED_ON, Private

ROOT = Path(__file__).parents[3]
CASES = [(entry, name) for entry in RELIED_ON for name in entry.names]


def found(path: str) -> Any:
    """A module, or a class in one."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name) if name[0].isupper() else importlib.import_module(path)


def is_there(owner: Any, name: str) -> bool:
    if hasattr(owner, name):
        return True
    module = owner if isinstance(owner, ModuleType) else inspect.getmodule(owner)
    assert module is not None
    return re.search(rf"\.{name}\b", inspect.getsource(module)) is not None


@pytest.mark.parametrize(("entry", "name"), CASES, ids=lambda case: case if isinstance(case, str) else case.owner)
def test_it_is_there(entry: Private, name: str) -> None:
    package = {"megatron": "megatron-core"}.get(top := entry.owner.partition(".")[0], top)
    assert is_there(found(entry.owner), name), (
        f"{package} {version(package)} has no {entry.owner}.{name} any more: {entry.why}; read {entry.user} again, "
        f"and see whether {entry.test} passes"
    )


@pytest.mark.parametrize("entry", RELIED_ON, ids=lambda entry: f"{entry.owner}: {entry.user}")
def test_users_and_tests_are_named_as_they_are(entry: Private) -> None:
    for user in entry.user.split(", "):
        text = (ROOT / "gpt1_ds" / user).read_text()
    assert any(name in text for name in entry.names)
    assert (ROOT / entry.test).is_file()


def test_what_is_not_there_is_noticed() -> None:
    assert not is_there(found("deepspeed.runtime.bf16_optimizer.BF16_Optimizer"), "no_such_attribute")
