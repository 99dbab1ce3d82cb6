"""What has passed the self-proof is known by device, driver, versions and sources, in the cache of the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common import gpus
from gpt1_ds.plan import proof


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpus, "driver_version", lambda: "580.65.06")


def tools(**changes: str) -> proof.Toolchain:
    return {**proof.toolchain("NVIDIA H100 80GB HBM3", "9.0", "13.0"), **changes}


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
    monkeypatch.setattr(gpus, "driver_version", lambda: None)
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
    path.write_text(json.dumps({**raw, "toolchain": tools(torch="2.11.0")}))
    assert not proof.passed(tools(), 1), "its name alone is no proof"


def test_versions_in_the_package_are_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "MEASURED", (proof.Proof(tools(), 1),))
    assert proof.passed(tools(), 1)
