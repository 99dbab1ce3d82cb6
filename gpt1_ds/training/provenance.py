"""What a run was made with: for manifests and for env.json. Only what is listed here is ever written; no secrets."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import gpt1_ds
from gpt1_ds.common import memory
from gpt1_ds.common.versions import installed, source_hash
from gpt1_ds.model.proof import proven

PACKAGES = (
    *("torch", "deepspeed", "megatron-core", "omegaconf", "sentencepiece", "tokenizers", "numpy"),
    *("safetensors", "wandb"),
)
VARIABLES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "SLURM_JOB_ID", "SLURM_JOB_NAME")
PREFIXES = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_JOB_NODELIST", "SLURM_CPUS_PER_TASK", "NCCL_", "GLOO_")
PROGRAMS = ("gpt1-ds", "__main__.py")  # how sys.argv names this program
# a resume is promised to be bit-identical only when these are what they were
DECIDING = (
    *("gpt1_ds", "python", "torch", "deepspeed", "megatron-core", "numpy", "threads", "processor", "device"),
    *("compiled", "cuda", "cudnn", "nccl", "driver", "proven"),
)


def provenance() -> dict[str, str]:
    """Returns hash of this package's source and its version."""
    return {"code": source_hash(), "version": gpt1_ds.__version__}


def git_revision() -> str | None:
    """Returns the commit that this package is checked out at; None for an installed one."""
    checkout = Path(gpt1_ds.__file__).parents[1]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def command() -> str | None:
    """Returns the line that began this run, as a shell reads it; None where a program of somebody else calls this
    package.

    Its arguments are file names and `key=value`, all of which `config.yaml` holds too: no key of the configuration
    takes a secret.
    """
    program, *arguments = sys.argv
    return shlex.join(["gpt1-ds", *arguments]) if Path(program).name in PROGRAMS else None


def environment(compiled: bool) -> dict[str, Any]:
    """Returns versions, devices and the few environment variables that explain a run."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    variables = {
        name: value for name, value in sorted(os.environ.items()) if name in VARIABLES or name.startswith(PREFIXES)
    }
    return {
        "command": command(),
        "commit": git_revision(),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
        "gpt1_ds": provenance(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": device,
        **cuda_versions(),
        **({"proven": proven(torch.device("cuda", torch.cuda.current_device()))} if device != "cpu" else {}),
        "compiled": compiled,
        "variables": variables,
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns name -> (before, now) of what changed of the things that decide the last bit of a result."""
    old, new = _deciding(before), _deciding(now)
    return {key: (old[key], new[key]) for key in DECIDING if key in old and old[key] != new[key]}


def _deciding(environment: dict[str, Any]) -> dict[str, Any]:
    found = {key: environment[key] for key in DECIDING if key in environment}
    if isinstance(own := found.get("gpt1_ds"), dict):
        found["gpt1_ds"] = f"{own.get('version')} (code {own.get('code')})"
    return found


def cuda_versions() -> dict[str, str | None]:
    """Returns versions of what computes on a GPU; None without one."""
    if not torch.cuda.is_available():
        return dict.fromkeys(("cuda", "cudnn", "nccl", "driver"))
    nccl, cudnn = ".".join(map(str, torch.cuda.nccl.version())), str(torch.backends.cudnn.version())
    return {"cuda": torch.version.cuda, "cudnn": cudnn, "nccl": nccl, "driver": memory.driver_version()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
