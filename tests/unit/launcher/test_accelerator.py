"""A GPU that is promised is used or missed, never replaced by a CPU without a word."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpt1_ds.common import memory
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config, load
from gpt1_ds.launcher import accelerator, launch


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No promise of this machine's own; what is written into the environment is undone."""
    before = dict(os.environ)
    monkeypatch.setattr(memory, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(memory, "DEVICES", tmp_path / "dev")
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_", "DS_", "LOCAL_"))]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A torch that sees eight GPUs; the devices that are chosen."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(pci_bus_id=0x1B))
    return chosen


@pytest.mark.parametrize(
    ("overrides", "variables", "promise"),
    [
        (["train.device=cuda"], {}, "train.device=cuda"),
        ([], {"SLURM_GPUS_ON_NODE": "8"}, "SLURM_GPUS_ON_NODE=8"),
        (["slurm.gpus_per_node=8"], {"SLURM_JOB_ID": "7"}, "slurm.gpus_per_node=8"),
        ([], {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": "0,1"}, "SLURM_JOB_GPUS=0,1"),
        (["slurm.gpus_per_node=8"], {}, None),  # at the login node
        (["train.device=cpu"], {"SLURM_GPUS_ON_NODE": "8"}, None),
        ([], {"SLURM_GPUS_ON_NODE": "0"}, None),
        ([], {}, None),
    ],
)
def test_who_promises_a_gpu(overrides: list[str], variables: dict[str, str], promise: str | None) -> None:
    config = load([], overrides)
    assert accelerator.promised(config.train.device, config.slurm.gpus_per_node, variables) == promise


def test_a_driver_is_a_promise_unless_its_gpus_are_hidden() -> None:
    memory.DRIVER.write_text("NVRM version: 580\n")
    assert accelerator.promised("auto", 0, {}) == f"{memory.DRIVER} (an NVIDIA driver)"
    assert accelerator.promised("auto", 0, {"CUDA_VISIBLE_DEVICES": ""}) is None


def test_a_sandbox_without_proc_has_the_gpus_of_its_device_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without nvidia-smi, too: the micro-batch is that of the GPU's memory, neither a CPU's nor an assumed GPU's."""
    torch_says = tmp_path / "python"
    torch_says.write_text("#!/bin/sh\nprintf '24564\\n81559\\n'\n")
    torch_says.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(memory.sys, "executable", str(torch_says))
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: True)
    memory._torch_memory_mib.cache_clear()
    config = load(["pretrain/gpt1_117m"])
    assert accelerator.with_fitted_micro_batch(config, 1).train.micro_batch == 8, (
        "no driver, no GPU, and nobody is asked"
    )
    memory.DEVICES.mkdir()
    (memory.DEVICES / "nvidiactl").touch()
    assert accelerator.promised("auto", 0, {}) is None, "a driver without a GPU"
    (memory.DEVICES / "nvidia0").touch()
    memory._torch_memory_mib.cache_clear()
    assert accelerator.promised("auto", 0, {}) == f"{memory.DEVICES}/nvidia0 (an NVIDIA driver)"
    assert accelerator.gpu_gib() == 24564 / 1024
    assert accelerator.with_fitted_micro_batch(config, 1).train.micro_batch == 64
    assert memory.indices() == ["0", "1"]
    (memory.DEVICES / "nvidia0").chmod(0o000)
    if os.geteuid():
        assert accelerator.promised("auto", 0, {}) is None, "another job's GPU"
    memory._torch_memory_mib.cache_clear()


def test_a_cpu_build_in_a_gpu_job_is_refused_before_a_rank_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: False)  # where torch has CUDA, too
    os.environ["SLURM_GPUS_ON_NODE"] = "8"
    with pytest.raises(
        ConfigError, match=r"SLURM_GPUS_ON_NODE=8 promises a GPU.*is a CPU build.*setup.sh --gpu"
    ) as caught:
        accelerator.prepare(load())
    assert caught.value.code == 2
    accelerator.prepare(load([], ["train.device=cpu"]))
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["DS_ACCELERATOR"]) == ("", "cpu")


def test_a_rank_without_the_promised_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.device=cuda promises a GPU, but torch .* sees no GPU"):
        accelerator.choose(load([], ["train.device=cuda"]))
    assert accelerator.choose(load()) == torch.device("cpu")


def test_each_rank_has_its_own_gpu(eight_gpus: list[object]) -> None:
    os.environ.update(LOCAL_RANK="3", LOCAL_WORLD_SIZE="8")
    assert accelerator.choose(load()) == torch.device("cuda", 3)
    assert eight_gpus == [torch.device("cuda", 3)]
    assert accelerator.choose(load([], ["train.device=cpu"])) == torch.device("cpu")


def test_more_ranks_than_gpus_are_refused(eight_gpus: list[object]) -> None:
    os.environ.update(LOCAL_RANK="3", LOCAL_WORLD_SIZE="9")
    with pytest.raises(ConfigError, match="9 ranks on a host with 8 visible GPUs"):
        accelerator.choose(load())
    assert not eight_gpus


def test_a_task_that_sees_its_own_gpu_alone(eight_gpus: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --gpus-per-task=1`: DeepSpeed takes the device that LOCAL_RANK names, and there is number 0 alone."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    os.environ.update(LOCAL_RANK="3", LOCAL_WORLD_SIZE="8", SLURM_LOCALID="3")
    assert accelerator.choose(load()) == torch.device("cuda", 0)
    assert os.environ["LOCAL_RANK"] == "0"
    os.environ.update(LOCAL_RANK="3", TORCHELASTIC_RUN_ID="none")  # the agent's ranks all see the same one
    with pytest.raises(ConfigError, match="8 ranks on a host with 1 visible"):
        accelerator.choose(load())


def test_a_rank_stays_on_the_cores_beside_its_gpu(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    beside = max(allowed)
    address = accelerator.bus_address(SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0))
    assert address == "0000:1b:00.0"
    (tmp_path / address).mkdir()
    (tmp_path / address / "local_cpulist").write_text(f"{beside}-{beside + 3},900\n")
    try:
        accelerator.bind(address, tmp_path)
        assert os.sched_getaffinity(0) == {beside}
        (tmp_path / address / "local_cpulist").write_text("900\n")  # none that this job may use
        accelerator.bind(address, tmp_path)
        accelerator.bind("0000:ff:00.0", tmp_path)
        assert os.sched_getaffinity(0) == {beside}
    finally:
        os.sched_setaffinity(0, allowed)


def test_lists_of_cores() -> None:
    assert accelerator.cores("0-3,8\n") == {0, 1, 2, 3, 8}


def test_what_is_compiled_for_a_gpu_is_kept_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in accelerator.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    accelerator.prepare(load())
    assert not accelerator.VARIABLES.keys() & os.environ.keys(), "no GPU is promised here"
    os.environ["TRITON_CACHE_DIR"] = "/mine"
    accelerator.prepare(load([], ["train.device=cuda"]))
    folder = tmp_path / "gpt1-ds" / "compiled"
    assert (os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["TRITON_CACHE_DIR"]) == (f"{folder}/inductor", "/mine")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", ["shared", "link", "file"])
def test_a_cache_that_others_may_write_is_left_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    folder = tmp_path / "gpt1-ds" / "compiled"
    folder.parent.mkdir()
    if kind == "shared":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.touch()
    accelerator.use()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{folder}: ")


def test_nccl_records_its_collectives_and_triton_fuses_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: True)
    names = accelerator.RECORDER.keys() | accelerator.KERNELS.keys()
    for name in names:
        monkeypatch.delenv(name, raising=False)
    accelerator.prepare(load())
    assert not names & os.environ.keys(), "no GPU is promised here"
    os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "7"
    accelerator.prepare(load([], ["train.device=cuda"]))
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "7", "the user's own"
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert os.environ["TRITON_DEFAULT_FP_FUSION"] == "1", "what the next Triton does not do by itself"


def test_kernels_are_kept_in_order_where_tensor_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_cuda_build", lambda: True)
    accelerator.prepare(load([], ["train.device=cuda"]))
    accelerator.prepare(load([], ["parallel.tensor=2"]))  # on a CPU
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ
    accelerator.prepare(load([], ["train.device=cuda", "parallel.tensor=2"]))
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_kernels_that_repeat(eight_gpus: list[object]) -> None:
    """`train.deterministic`: what cuBLAS and NCCL read must stand there before they are loaded."""
    from torch._inductor import config as inductor

    config = load([], ["train.deterministic=true"])
    accelerator.prepare(config)
    assert "TORCHINDUCTOR_DETERMINISTIC" not in os.environ, "a CPU's compiler is left as it is"
    assert set(accelerator.DETERMINISTIC.items()) <= set(os.environ.items())
    try:
        accelerator.choose(config)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory, "what is empty is not written first"
        assert inductor.deterministic, "the compiler measures nothing"
        assert os.environ["TORCHINDUCTOR_DETERMINISTIC"] == "1"
    finally:
        inductor.deterministic = False
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True


def test_the_build_is_told_without_importing_torch() -> None:
    assert accelerator.has_cuda_build() is (torch.version.cuda is not None)


@pytest.mark.parametrize(
    ("visible", "ranks", "jobs", "expected"),
    [
        ("0,1,2,3", 1, 4, ["0", "1", "2", "3"]),
        ("4,5,6,7", 2, 2, ["4,5", "6,7"]),
        ("0,1", 1, 3, ["0", "1", "0"]),
        ("0,1,2", 2, 2, ["0,1", "0,1"]),
        ("0", 2, 1, []),
        (None, 1, 2, ["0", "1"]),
    ],
)
def test_runs_at_a_time_have_gpus_of_their_own(
    visible: str | None, ranks: int, jobs: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\n[ "$1" = --query-gpu=index ] && printf "0\\n1\\n"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert accelerator.shares(load([], ["train.device=cuda"]), ranks, jobs) == expected
    assert accelerator.shares(load([], ["train.device=cpu"]), ranks, jobs) == []


def test_a_run_sees_the_gpus_of_its_place(tmp_path: Path) -> None:
    target = f"{__name__}:visible_devices"
    arguments = (target, load([], []), str(tmp_path / "log"), "5")
    assert launch.run("gpt1_ds.sweep.runner:run_trial", arguments, 1) == [5]
    assert launch.run("gpt1_ds.sweep.runner:run_trial", arguments[:3], 1) == [-1]


def visible_devices(config: Config) -> int:
    return int(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))
