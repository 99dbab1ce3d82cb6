"""What the figures were measured on and with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpt1_ds.common.versions import installed

PACKAGES = ("torch", "deepspeed", "megatron-core", "transformers", "sentencepiece", "numpy")
MATRIX_UNITS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # the best first


def describe(device: str) -> dict[str, Any]:
    """Describes this machine as a run on `device` (cpu or cuda) begins."""
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in cpu.splitlines())}
    flags = set(facts.get("flags", "").split())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "matrix_units": next((name for name in MATRIX_UNITS if name in flags), "unknown"),
        "load": os.getloadavg()[0],  # other work on the machine when the run began
        "device": _gpu() if device == "cuda" else None,
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
    }


def _gpu() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
