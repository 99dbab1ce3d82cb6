"""What is named of a machine, and machines that are not alike."""

from __future__ import annotations

import json

import pytest
import torch

from gpt1_ds.diagnostics import steps, toolchain
from gpt1_ds.plan.machine import PRESETS


def test_everything_is_named_and_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-secret")
    found = toolchain.toolchain(torch.device("cpu"))
    wanted = {"torch", "cuda", "cudnn", "nccl", "driver", "triton", "compiler", "device", "count", "memory_gib"}
    assert wanted <= found.keys()
    assert torch.__version__.startswith(found["torch"])  # some packages leave the build (+cu130) out
    assert found["count"] >= 1
    assert "a-secret" not in json.dumps(found)


def test_ranks_with_other_versions() -> None:
    one = {"torch": "2.13.0", "driver": "580.1", "device": "H100"}
    assert toolchain.same([one, dict(one)]).ok
    other = toolchain.same([one, {**one, "driver": "570.2"}, {**one, "device": None}])
    assert (other.ok, other.value) == (False, 2)
    assert other.note.startswith("driver is 570.2 or 580.1; device is H100 or None; use one environment")


def test_hosts_with_fewer_devices() -> None:
    assert toolchain.by_host(["a", "a", "b"], [2, 2, 1]) == {"a": 2, "b": 1}
    assert toolchain.by_host(["a", "a", "b"], [1, 1, 1]) == {"a": 2, "b": 1}, "a GPU is bound to each task"
    assert toolchain.devices({"a": 8, "b": 8}, 0).ok
    fewer = toolchain.devices({"a": 8, "b": 7}, 0)
    assert (fewer.ok, fewer.value, fewer.limit) == (False, 7, 8)
    assert fewer.note.startswith("b has 7; leave the host out (slurm.exclude)")
    assert not toolchain.devices({"a": 4, "b": 4}, 8).ok, "SLURM was asked for more"


def test_the_plan_of_a_gpu_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    monkeypatch.delenv("GPT1_DS_MACHINE", raising=False)
    assert steps.known_machine("NVIDIA H100 80GB HBM3") == PRESETS["h100"]
    assert steps.known_machine("NVIDIA A100-SXM4-80GB") == PRESETS["a100"]
    assert steps.known_machine("Quadro") is None
    assert steps.known_machine(None) is None, "this CPU was not measured"


def test_a_rate_against_the_plan() -> None:
    slow = steps.judged("step", 40.0, 100.0, 2.0, PRESETS["h100"])
    assert (slow.ok, slow.value, slow.limit) == (False, 40.0, 50.0)
    assert "40% of the plan's 100 (h100" in slow.note
    assert steps.judged("step", 60.0, 100.0, 2.0, PRESETS["h100"]).ok
    short = steps.judged("step", 40.0, 100.0, 0.004, PRESETS["h100"])
    assert (short.ok, short.limit) == (True, None)
    assert short.note.endswith("steps of 4 ms are too short to be judged")
