"""What every distributed command runs in: threads, heap and memory of this rank, and the processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist

from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError, TrainingError, UserError
from gpt1_ds.common.memory import resident_bytes
from gpt1_ds.config import Config
from gpt1_ds.config.validate import cpu_problems
from gpt1_ds.engine import agreement
from gpt1_ds.engine.build import release_engines
from gpt1_ds.engine.process_groups import ProcessGroups, connect
from gpt1_ds.launcher.accelerator import choose
from gpt1_ds.launcher.network import on_loopback
from gpt1_ds.model import proof

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)
SPARE = 2  # times the memory in use: what may be kept


def keep_freed_blocks() -> None:
    """glibc hands every large tensor back to the system when it is freed and pays page faults for the next one: a
    quarter of a step of a small model. Keep such blocks instead."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)  # smaller blocks come from the heap
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)  # and the heap does not shrink


class Heap:
    """Large blocks among small ones that live longer leave holes in which nothing large fits, so that the heap grows:
    from 0.5 GiB to 5 GiB in 2,000 steps of a small GPT-2 on two ranks.
    """

    def __init__(self) -> None:
        self._limit = 0

    def trim(self) -> None:
        """Between two steps: give free pages back where memory is much more than at the first call."""
        self._limit = self._limit or SPARE * resident_bytes()
        if resident_bytes() > self._limit:
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            self._limit = max(self._limit, SPARE * resident_bytes())  # what is in use has grown


@contextlib.contextmanager
def distributed_session(config: Config, **arguments: object) -> Iterator[ProcessGroups]:
    """This rank, connected to the others and placed in the layout; `arguments` are those of its command beside the
    configuration. Raises ConfigError on all ranks where they differ in either (engine/agreement.py).
    """
    before = dist.group.WORLD
    share_cores()
    keep_freed_blocks()
    device = choose(config)
    with on_loopback():
        connect(config.guard.init_timeout, device, lambda: agreement.facts(config, device.type, arguments))
        end = release_engines if dist.group.WORLD is before else _disconnect  # what was there before stays
        try:
            ConfigError.raise_all(device_problems(config, device))
            groups = ProcessGroups(config)
            agree_on_proof(config, groups, device)
            yield groups
        except (UserError, TrainingError) as error:  # all ranks come here together
            error.on_all_ranks = True
            end()
            raise
        end()  # after any other error it would wait for what the other ranks do not do any more


def with_common_micro_batch(config: Config, groups: ProcessGroups) -> Config:
    """Returns `config` with the smallest micro-batch of all ranks: train.micro_batch=auto asks each for its host's
    memory, and ranks of unlike hosts would not meet in their collectives.
    """
    smallest = min(groups.gather(config.train.micro_batch))
    return replace(config, train=replace(config.train, micro_batch=smallest))


def agree_on_proof(config: Config, groups: ProcessGroups, device: torch.device) -> None:
    """What only saves time is on where train.cuda_graphs=on says so, or where every rank has the proof: ranks that
    differ would not meet in their collectives. Who has decided in this process before is not asked again.
    """
    if device.type != "cuda":
        return
    if config.train.cuda_graphs == "on":
        proof.decide(True)
    elif not proof.is_decided():
        passed = all(groups.gather(proof.has_passed(device, groups.world)))
        proof.decide(passed)
        if not passed and groups.rank == 0:
            log.say(proof.unproven(device))


def _disconnect() -> None:
    release_engines()
    dist.destroy_process_group()


def device_problems(config: Config, device: torch.device) -> Iterator[str]:
    """Yields one line per setting that this kind of device cannot run."""
    if device.type == "cuda":
        return
    yield from cpu_problems(config)
    if config.train.precision == "fp16" and not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        yield "train.precision=fp16 is not supported by this CPU; use bf16 or fp32"


def share_cores() -> None:
    """Threads per rank: the cores this process may use, divided by the ranks on this machine."""
    if "OMP_NUM_THREADS" not in os.environ:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
