"""Two ranks on one GPU: gloo carries their messages, because NCCL refuses ranks that share a device.

It shows the branches for CUDA of several ranks (copies, buckets, slices), not NCCL's values and rates. Each layout has
two processes of its own: a hang, or an operation that gloo does not have on a GPU, costs that layout alone.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tools.gpu.record import Contact
from tools.gpu.runner import die_with_parent

LIMIT = 1e-5  # nats, from the losses of one rank in fp32
LAYOUTS = {
    **{f"data 2, ZeRO {stage}": ["train.micro_batch=4", f"parallel.zero={stage}"] for stage in (1, 0, 2, 3)},
    "tensor 2": ["parallel.tensor=2"],
    "pipeline 2": ["parallel.pipeline=2", "train.micro_batch=4"],
}
TINY = ("data 2, ZeRO 1", "tensor 2")
SECONDS = 25.0  # of a layout
STEPS = 3


def two_ranks(contact: Contact) -> None:
    """Compares the losses of a few steps on every layout of two ranks with those of one rank on the same device."""
    limit = SECONDS * (4 if contact.device == "cpu" else 1)
    alone = together(contact.device, [], 1, limit)
    contact.fact("losses of one rank", alone)
    for name, overrides in LAYOUTS.items():
        if contact.tiny and name not in TINY:
            continue
        try:
            found = together(contact.device, overrides, 2, limit)
        except Exception as error:
            contact.failed(error, name=name)
            continue
        apart = max(abs(a - b) for a, b in zip(alone, found, strict=True))
        contact.check(f"two ranks, {name}: losses from one rank's", apart <= LIMIT, apart, LIMIT)


def together(device: str, overrides: list[str], world: int, seconds: float) -> list[float]:
    """Returns the losses that `world` ranks on one device give, each in a fork of this process. Raises RuntimeError for
    what a rank raised, and TimeoutError.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ends, processes = [], []
        for rank in range(world):
            here, there = context.Pipe(duplex=False)
            arguments = (there, device, overrides, rank, world, str(Path(folder) / "store"))
            process = context.Process(target=_rank, args=arguments)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        try:
            deadline = time.monotonic() + seconds
            answers = [_answer(end, deadline) for end in ends]
        finally:
            for process in processes:
                process.kill()
                process.join()
    return answers[0]


def _answer(end: Connection, deadline: float) -> list[float]:
    if not end.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("a rank gave no answer in time")
    try:
        losses, problem = end.recv()
    except EOFError:
        raise RuntimeError("a rank died") from None
    if problem:
        raise RuntimeError(problem)
    return losses  # type: ignore[no-any-return]


def _rank(answer: Connection, device: str, overrides: list[str], rank: int, world: int, store: str) -> None:
    die_with_parent()
    try:
        answer.send((_losses(device, overrides, rank, world, store), ""))
    except BaseException as error:
        traceback.print_exc()
        answer.send(([], f"rank {rank}: {type(error).__name__}: {error}"))
    os._exit(0)


def _losses(device: str, overrides: list[str], rank: int, world: int, store: str) -> list[float]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    from gpt1_ds.config import load
    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
    from gpt1_ds.engine.process_groups import ProcessGroups
    from gpt1_ds.model import proof
    from gpt1_ds.objectives.causal import Causal
    from tools.gpu.reference import RATE, SIZE

    config = load(["pretrain/gpt1_117m"], [*SIZE, "train.precision=fp32", "train.cuda_graphs=off", *overrides])
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("gloo", store=FileStore(store, world), rank=rank, world_size=world)
    deepspeed.init_distributed(verbose=False)
    groups = ProcessGroups(config)
    proof.decide(True)  # what one GPU has proven is not proven for two ranks
    engine: Any = build_engine(config, groups)
    found = []
    for step in range(STEPS):
        rows = [Rows(_tokens(numbers, step, config), numbers) for numbers in batch_shape(config, groups).rows()]
        result = engine.step(training_batches(Causal(), rows, config.run.seed, step), RATE)
        found.append(float(result.loss))
    return found


def _tokens(numbers: Any, step: int, config: Any) -> Any:
    """Returns int64 [B, T]: random tokens of these rows, the same on every layout."""
    import numpy as np

    size = config.model.context + 1
    rows = [np.random.default_rng((step, int(row))).integers(0, config.model.vocab_size, size) for row in numbers]
    return np.stack(rows).astype(np.int64)
