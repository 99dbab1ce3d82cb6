"""What DeepSpeed, Megatron-core and torch are relied on for is there, as it was read, and used where it is said."""

from __future__ import annotations

import inspect
import json
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.engine.deepspeed import register
from gpt1_ds.engine.deepspeed.register import RELIED_ON, Private

ROOT = Path(__file__).parents[4]
CASES = [(entry, name) for entry in RELIED_ON for name in entry.names]


def is_there(owner: Any, name: str) -> bool:
    if hasattr(owner, name):
        return True
    module = owner if isinstance(owner, ModuleType) else inspect.getmodule(owner)
    assert module is not None
    return re.search(rf"\.{name}\b", inspect.getsource(module)) is not None


@pytest.mark.parametrize(("entry", "name"), CASES, ids=lambda case: case if isinstance(case, str) else case.owner)
def test_it_is_there(entry: Private, name: str) -> None:
    package = register.LIBRARIES.get(top := entry.owner.partition(".")[0], top)
    assert is_there(register.owner(entry.owner), name), (
        f"{package} {version(package)} has no {entry.owner}.{name} any more: {entry.why}; read {entry.user} again, "
        f"and see whether {entry.test} passes"
    )


@pytest.mark.parametrize("entry", RELIED_ON, ids=lambda entry: f"{entry.owner}: {entry.user}")
def test_users_and_tests_are_named_as_they_are(entry: Private) -> None:
    texts = [(ROOT / "gpt1_ds" / user).read_text() for user in entry.user.split(", ")]
    for name in entry.names:
        assert any(re.search(rf"{name}\b", text) for text in texts), f"{entry.user} does not use {name}"
    for text in texts:
        assert any(name in text for name in entry.names)
    assert (ROOT / entry.test).is_file()


def test_what_is_not_there_is_noticed() -> None:
    assert not is_there(register.owner("deepspeed.runtime.bf16_optimizer.BF16_Optimizer"), "no_such_attribute")


@pytest.mark.parametrize("package", register.LIBRARIES.values())
def test_the_sources_are_as_they_were_read(package: str) -> None:
    """`python tools/deepspeed_sources.py` writes them down again, after somebody has read what changed."""
    facts = json.loads(register.SOURCES.read_text())[package]
    assert facts["functions"]
    if version(package) == facts["version"]:
        assert register.fingerprints(package) == facts["functions"]


def test_an_attribute_stands_for_the_functions_that_set_it() -> None:
    found = register.fingerprints("deepspeed")
    kind = "deepspeed.runtime.bf16_optimizer.BF16_Optimizer"
    assert {f"{kind}._setup_for_real_optimizer", f"{kind}.update_hp_grads"} <= found.keys()


def changed_release(monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """Another release of DeepSpeed is installed, in which one function differs or none."""
    here = {**register.fingerprints("deepspeed")}
    if changed:
        here["deepspeed.runtime.bf16_optimizer.BF16_Optimizer.step"] = "0" * 16
    monkeypatch.setattr(register, "version", lambda package: "0.19.99" if package == "deepspeed" else version(package))
    monkeypatch.setattr(register, "fingerprints", lambda _: here)


def test_another_release_with_the_same_functions_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    changed_release(monkeypatch, changed=False)
    register.check("fast")


def test_another_release_with_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changed_release(monkeypatch, changed=True)
    for patches in ("fast", "fixes"):
        with pytest.raises(
            ConfigError,
            match=r"deepspeed 0\.19\.99 differs from deepspeed \S+ in \S+BF16_Optimizer\.step, which this program "
            r"replaces; pip install deepspeed==\S+, or set train\.deepspeed_patches=none",
        ):
            register.check(patches)
    register.check("none")


def test_the_same_release_costs_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "fingerprints", lambda _: pytest.fail("sources were read"))
    register.check("fast")
