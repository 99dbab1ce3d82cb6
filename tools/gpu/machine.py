"""What the machine is, how fast its device multiplies and copies, and whether its kernels compute what a CPU does."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt1_ds.common.versions import installed
from tools.gpu.record import Contact

PACKAGES = (
    *("torch", "triton", "deepspeed", "megatron-core", "omegaconf", "numpy", "transformers", "sentencepiece"),
    *("tokenizers", "safetensors", "zstandard", "pydantic", "pytest"),
)
SMI = "name,memory.total,memory.used,driver_version,clocks.sm,clocks.mem,power.limit,compute_cap"
SMI_SECONDS = 5
PRODUCT, COPIED = 8192, 1 << 31  # rows and columns of a product; bytes of a copy


def environment(contact: Contact) -> None:
    """Records versions, compilers and the device. Raises RuntimeError where torch sees no GPU that was asked for; what
    else cannot be told is a line of its own.
    """
    contact.fact("python", f"{platform.python_version()} at {sys.executable}")
    contact.fact("versions", {name: installed(name) for name in PACKAGES})
    if contact.device == "cuda":
        _device(contact)
    asked: dict[str, Callable[[], Any]] = {
        "cores, load": lambda: [len(os.sched_getaffinity(0)), os.getloadavg()[0]],
        "compilers": lambda: {name: shutil.which(name) for name in ("gcc", "g++", "nvcc")},
        "Python.h": lambda: Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        "driver file": lambda: Path("/proc/driver/nvidia/version").exists(),
        "device files": lambda: sorted(file.name for file in Path("/dev").glob("nvidia*")),
        "work folder": lambda: str(contact.work),
        "DeepSpeed's accelerator": _deepspeed,
        "nvidia-smi": lambda: _said("nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader"),
        "topology": lambda: _said("nvidia-smi", "topo", "-m"),
    }
    for name, answer in asked.items():
        try:
            contact.fact(name, answer())
        except Exception as error:
            contact.failed(error, name=name)


def _deepspeed() -> str:
    from deepspeed.accelerator import get_accelerator

    return str(get_accelerator().device_name())


def _device(contact: Contact) -> None:
    import torch

    contact.fact("a bad fork", torch.cuda._is_in_bad_fork())  # the parent has asked CUDA, and no phase can use it
    try:
        torch.cuda.init()  # what is counted before that may be files
        seen = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        contact.fact("torch.cuda.init", str(error))
        seen = 0
    if not seen:
        raise RuntimeError(f"torch {torch.__version__} sees no GPU here; --device cpu --tiny rehearses without one")
    properties = torch.cuda.get_device_properties(0)
    contact.fact("device", torch.cuda.get_device_name(0))
    contact.fact("capability", [properties.major, properties.minor])
    contact.fact("memory, GiB", round(properties.total_memory / 2**30, 2))
    contact.fact("NCCL, cuDNN", [*torch.cuda.nccl.version(), torch.backends.cudnn.version()])


def _said(*arguments: str) -> str:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return (done.stdout or done.stderr).strip()


def ceilings(contact: Contact) -> None:
    """Measures what no program passes here: bf16 products of large matrices, TFLOP/s; copies in its memory, TB/s."""
    import torch

    from tools.gpu.measuring import three

    width, size = (64, 1 << 16) if contact.tiny else (PRODUCT, COPIED)
    left, right = (torch.randn(width, width, device=contact.device, dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.empty(size, dtype=torch.uint8, device=contact.device) for _ in range(2))
    works = {
        "bf16 product": (lambda: torch.mm(left, right), 2 * width**3 / 1e12, "TFLOP/s"),
        "copy": (lambda: target.copy_(source), 2 * size / 1e12, "TB/s"),
    }
    for name, (work, amount, unit) in works.items():
        contact.series(name, unit, three(contact, name, unit, work, amount), width=width, bytes=size)


def kernels(contact: Contact, compiled: bool) -> None:
    """Makes the self-proof's checks of one device, each against the CPU: those of `compiled` blocks, or the others.
    What one of them raises does not end the others.
    """
    import torch

    from gpt1_ds.diagnostics.self_proof import configuration, local_checks
    from gpt1_ds.engine.process_groups import ProcessGroups
    from tools.bench.ours import TINY, connect

    connect(contact.device)
    config = configuration(1, [f"train.device={contact.device}", *(TINY if contact.tiny else [])])
    device = torch.device(contact.device, 0) if contact.device == "cuda" else torch.device("cpu")
    for name, check in local_checks(config, ProcessGroups(config), device):
        if name.endswith("compiled") != compiled:
            continue
        began = time.time()
        try:
            found = check()
        except Exception as error:
            contact.failed(error, name=name)
            if contact.device == "cuda":
                _still_works(contact, name)
        else:
            contact.check(found.name, found.ok, found.value, found.limit, found.note)
        contact.fact(f"{name}, s", round(time.time() - began, 2))


def _still_works(contact: Contact, name: str) -> None:
    """Raises RuntimeError where what a kernel did has ended this process's work on the GPU: each later check would fail
    for that reason alone.
    """
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        contact.fact("context lost", f"{name}: {error}")
        raise RuntimeError(f"context lost in {name}; the checks after it were not made") from error
