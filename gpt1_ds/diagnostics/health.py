"""One rank's part of the health check: what it finds alone, then whether it reaches the others."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpt1_ds.common.files import write_json
from gpt1_ds.common.text import amount
from gpt1_ds.diagnostics import collectives
from gpt1_ds.launcher import accelerator
from gpt1_ds.launcher.network import choose_interface

FREE_GIB, FREE_INODES = 5, 10_000  # less than this in the run folder's file system is a problem
MIB = 4  # of the all-reduce
SECONDS = 45  # for all ranks to meet


def examine(folder: Path) -> int:
    """Writes `health-<rank>.json` into `folder`, at first without `reached`, which a rank that hangs never adds."""
    rank = int(os.environ.get("RANK", "0"))
    report: dict[str, Any] = {"host": os.environ.get("SLURMD_NODENAME", socket.gethostname()), "rank": rank}
    report["problems"] = [*_storage(folder), *_device()]
    path = folder / f"health-{rank}.json"
    write_json(path, report)
    report |= _reach()
    write_json(path, report)
    return 0


def _storage(folder: Path) -> Iterator[str]:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize / 2**30
    if free < FREE_GIB:
        yield f"{folder}: {free:.1f} GiB are free, {FREE_GIB} are wanted"
    if found.f_files and found.f_favail < FREE_INODES:
        yield f"{folder}: {found.f_favail} inodes are free, {FREE_INODES} are wanted"


def _device() -> Iterator[str]:
    """Every rank needs a device of its own that multiplies."""
    ranks, local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if not torch.cuda.is_available():
        if promise := accelerator.promised("auto", 0, os.environ):
            yield f"{promise}, but torch {torch.__version__} sees no GPU"
        return
    if torch.cuda.device_count() not in (1, ranks):
        yield f"{amount(torch.cuda.device_count(), 'GPU')} for {amount(ranks, 'rank')}"
        return
    try:
        ones = torch.ones(1024, 1024, device=f"cuda:{local % torch.cuda.device_count()}")
        if float((ones @ ones).mean()) != 1024:
            yield f"GPU {local} multiplies wrongly"
    except RuntimeError as error:
        yield f"GPU {local}: {str(error).splitlines()[0]}"


def _reach() -> dict[str, Any]:
    """All-reduce over all ranks, on their devices: whether it is right, and MiB per second."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda":
        torch.cuda.set_device(local % torch.cuda.device_count())
    choose_interface()
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(seconds=SECONDS))
    wrong, seconds = collectives.all_reduce(torch.device(kind), MIB)
    dist.destroy_process_group()
    return {"reached": wrong == 0, "mib_per_second": round(MIB / seconds, 1)}
