"""The checks of the self-proof on the GPUs of this host, one by one, over NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gpt1_ds.cli import main
from gpt1_ds.diagnostics import numerics
from gpt1_ds.diagnostics.report import Record, Report, read_report
from gpt1_ds.engine.process_groups import connect_alone
from gpt1_ds.launcher import launch

HERE = "tests.gpu.test_gpu_promises"
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("check", [numerics.hidden_masks, numerics.attention_masks])
def test_masks(check) -> None:  # type: ignore[no-untyped-def]
    record = check(CUDA)
    assert record.ok, record


@pytest.mark.parametrize("precision", numerics.TYPES)
@pytest.mark.parametrize("kind", ["exact", "fused"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_block(precision: str, kind: str, compiled: bool) -> None:
    from gpt1_ds.config import load

    model = load(["pretrain/gpt1_117m"]).model
    record = numerics.block(CUDA, model, connect_alone(), precision, kind, compiled)
    assert record.ok, record


@pytest.mark.parametrize("precision", numerics.TYPES)
def test_the_loss(precision: str) -> None:
    record = numerics.loss(CUDA, 768, 40482, connect_alone(), precision)
    assert record.ok, record


@pytest.fixture(scope="module")
def proof() -> Report:
    return launch.run(f"{HERE}:prove", (), torch.cuda.device_count())[0]  # type: ignore[no-any-return]


def prove() -> Report:
    from gpt1_ds.diagnostics import self_proof

    return self_proof.prove(self_proof.configuration(launch.world(None)))


def test_versions_and_devices(proof: Report) -> None:
    assert proof.world == torch.cuda.device_count()
    assert all(proof.toolchain[name] for name in ("cuda", "cudnn", "nccl", "driver", "device"))
    assert not [record for record in proof.failing if record.name.startswith(("versions", "devices"))]


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter"])
def test_sums_and_their_rate(kind: str, proof: Report) -> None:
    found = [record for record in proof.records if record.name.startswith(kind)]
    assert found
    assert all(record.ok for record in found), found


def test_the_speed_of_a_step(proof: Report) -> None:
    (record,) = (record for record in proof.records if record.name.startswith("a step of the real engine"))
    assert record.ok, record


def test_a_graph_of_a_micro_batch(proof: Report) -> None:
    (record,) = (record for record in proof.records if record.name.startswith("graph"))
    assert (record.ok, record.limit) == (True, 0), record


def deterministic() -> list[Record]:
    from gpt1_ds.diagnostics import self_proof

    return self_proof.prove_determinism(self_proof.configuration(launch.world(None)))


def test_a_step_repeats_to_the_bit() -> None:
    (record,) = launch.run(f"{HERE}:deterministic", (), torch.cuda.device_count())[0]
    assert (record.ok, record.limit) == (True, 0), record


def test_doctor(tmp_path: Path) -> None:
    code = main(["doctor", "--gpu", "--out", str(tmp_path / "gpu-check.json")])
    found = read_report(tmp_path / "gpu-check.json")
    assert (code, found.failing) == (0, [])
