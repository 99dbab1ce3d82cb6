"""What every distributed verb begins and ends with: the process group, the run folder, its lock and its logs."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_CONTINUE, ConfigError, TrainingError, UserError
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.engine.process_groups import Grid, connect
from gpt1_ds.launcher.launch import STORE_VARIABLE


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Grid]:
    """This rank, connected to the others and placed in the layout."""
    share_cores()
    keep_memory()
    device = connect(config.guard.init_timeout)
    try:
        ConfigError.raise_all(device_problems(config, device))
        yield Grid(config)
    except (UserError, TrainingError):  # all ranks come here together
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()  # after any other error it would wait for what the other ranks do not do any more


def device_problems(config: Config, device: torch.device) -> Iterator[str]:
    """One line per setting that this kind of device cannot run."""
    if device.type == "cuda":
        return
    if config.parallel.sequence:
        yield "parallel.sequence=true needs CUDA (Megatron has no sequence-parallel regions on a CPU); leave it out"
    if config.model.attention == "fused":
        yield "model.attention=fused needs CUDA; leave it out for the exact kernel"
    if config.train.precision == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        yield "train.precision=fp16 is not supported by this CPU; use bf16 or fp32"


@contextlib.contextmanager
def opened(run_dir: RunDir, config: Config, grid: Grid) -> Iterator[None]:
    """The run folder, created, locked by rank 0 and with a log file per rank. Raises UserError alike on all ranks."""
    with contextlib.ExitStack() as stack:
        grid.on_rank_0(lambda: run_dir.create(config.run.share))
        os.umask(0o077 if config.run.share == "private" else 0o007)

        def take_lock() -> None:
            stack.enter_context(RunLock(run_dir.lock, config.guard.lock_timeout))

        grid.on_rank_0(take_lock)
        stack.enter_context(_logged(run_dir, grid.rank))
        yield


@contextlib.contextmanager
def _logged(run_dir: RunDir, rank: int) -> Iterator[None]:
    """Everything a library prints goes to the rank's log; only our own lines reach the terminal, from rank 0."""
    with open(run_dir.rank_log(rank), "a", buffering=1) as file:
        terminal = os.fdopen(os.dup(2), "w", buffering=1)
        log.setup(rank, run_dir.rank_log(rank), terminal)
        with _redirected(file):
            faulthandler.enable(file)
            try:
                yield
            except BaseException:
                log.LOGGER.debug("the run ends with an error", exc_info=True)
                raise
            finally:
                faulthandler.disable()
                log.teardown()


@contextlib.contextmanager
def _redirected(file: IO[str]) -> Iterator[None]:
    """C++ libraries write to the descriptor, so that is what is moved."""
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def exit_code(handover: bool) -> int:
    """75 for a run to be continued; 0 under torchrun or srun, which would take 75 for a crash and end the job."""
    under_launcher = "RANK" in os.environ and STORE_VARIABLE not in os.environ
    return EXIT_CONTINUE if handover and not under_launcher else 0


def run_folder(config: Config) -> RunDir:
    return RunDir(Path(config.run.dir) / config.run.name)


def share_cores() -> None:
    """Threads per rank: the cores this process may use, divided by the ranks on this machine."""
    if "OMP_NUM_THREADS" not in os.environ:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def keep_memory() -> None:
    """glibc hands every large tensor back to the system when it is freed and pays page faults for the next one: a
    quarter of a step of a small model. Keep such blocks instead."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: smaller blocks come from the heap
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD: and the heap does not shrink
