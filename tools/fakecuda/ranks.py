"""Ranks of a world that is not there: each runs alone, in a process of its own, over torch's fake process group."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from gpt1_ds.launcher import libraries

T = TypeVar("T")
RANKS_PER_NODE = 8


LIBRARIES = (  # what a rank imports late, three seconds of it
    *("deepspeed.accelerator.cuda_accelerator", "deepspeed.compile.backend", "deepspeed.pipe"),
    *("megatron.core.tensor_parallel", "torch._dynamo", "torch.testing._internal.distributed.fake_pg"),
    *("gpt1_ds.engine.plain", "gpt1_ds.engine.pipelined", "gpt1_ds.model.kernels.attention_triton"),
)


def load() -> None:
    """Import what ranks need in this process, once, without touching a device."""
    libraries.load()
    for name in LIBRARIES:
        importlib.import_module(name)


def run(action: Callable[..., T], *arguments: Any, rank: int = 0, world: int = 1) -> T:
    """`action(*arguments)` as rank `rank` of `world` on the fake device; its result, which is pickled. Libraries that
    are loaded here are loaded there. Raises RuntimeError with the traceback of what it raises.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_rank, args=(theirs, action, arguments, rank, world))
    process.start()
    theirs.close()
    try:
        done, result = ours.recv()
    except EOFError:
        done, result = False, "it died"
    process.join()
    if not done:
        raise RuntimeError(f"rank {rank} of {world}: {result}")
    return result  # type: ignore[no-any-return]


def _in_rank(answer: Connection, action: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world: int) -> None:
    gc.freeze()  # DeepSpeed collects garbage six times, for half a second of a rank's two: only among what is new
    try:
        _become(rank, world)
        answer.send((True, action(*arguments)))
    except BaseException:
        answer.send((False, traceback.format_exc()))
    finally:
        answer.close()
        os._exit(0)  # nothing that the parent's tests hold is cleaned up here


def _become(rank: int, world: int) -> None:
    local, here = rank % RANKS_PER_NODE, min(world, RANKS_PER_NODE)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(here))
    os.environ.update(
        GPT1_DS_MACHINE="h100", DS_ACCELERATOR="cuda", CUDA_VISIBLE_DEVICES=",".join(map(str, range(RANKS_PER_NODE)))
    )
    from tools.fakecuda import device

    device.install()
    _choose_accelerator()
    _fake_groups()


def _choose_accelerator() -> None:
    """DeepSpeed chose one when it was imported, when no GPU was to be seen."""
    from deepspeed.accelerator import real_accelerator
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    real_accelerator.set_accelerator(CUDA_Accelerator())


def _fake_groups() -> None:
    """Whatever backend the program asks for, it gets the fake one; BACKENDS remembers which it was."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from gpt1_ds.engine import process_groups
    from tools.fakecuda.counter import BACKENDS

    process_groups._meet = lambda *_: FakeStore()  # nobody else is there to be met
    init, new = dist.init_process_group, dist.new_group
    default = ["nccl"]

    def init_process_group(backend: str | None = None, **named: Any) -> None:
        default[0] = backend or default[0]
        named.update(store=FakeStore())
        named.pop("device_id", None)  # would connect at once
        named.pop("init_method", None)
        init("fake", **named)
        BACKENDS[distributed_c10d._get_default_group().group_name] = default[0]

    def new_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **named: Any) -> Any:
        named = {key: value for key, value in named.items() if key in ("use_local_synchronization", "group_desc")}
        group = new(ranks, timeout, backend="fake", **named)
        if hasattr(group, "group_name"):
            BACKENDS[group.group_name] = backend or default[0]
        return group

    for module in (dist, distributed_c10d):
        module.init_process_group, module.new_group = init_process_group, new_group  # type: ignore[attr-defined]
