"""Measure what the planner needs to know of this machine: gpt1_ds/plan/machine.py says what each number is.

Every operation is the model's own, timed alone on each rank while as many others do the same, because ranks on one node
share its memory and, on processors, its cores. The median of a few short bursts is taken, of the slowest rank.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpt1_ds.common.memory import available_bytes
from gpt1_ds.engine.adamw import AdamW
from gpt1_ds.engine.process_groups import connect
from gpt1_ds.engine.session import keep_freed_blocks, share_cores
from gpt1_ds.launcher import launch
from gpt1_ds.model import dropout, proof
from gpt1_ds.model.kernels import attention
from gpt1_ds.model.kernels.cross_entropy import chunk_loss
from gpt1_ds.model.kernels.gelu import bias_activation
from gpt1_ds.model.kernels.inputs import Drop
from gpt1_ds.plan.machine import RATES, Link, Machine, Speeds
from gpt1_ds.tracking.throughput import peak_tflops_of

BURST = 0.15
REPEATS = 3
SIZES = {"cpu": (64, 256, 512, 1024, 2048), "cuda": (512, 1024, 2048, 4096, 8192)}  # of square matrix products
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
Numbers = dict[str, Any]


def calibrate(burst: float = BURST, largest: int | None = None) -> Machine:
    """Returns this node, with one rank and with as many as it has devices (cores on a node without GPUs); `burst` are
    the seconds of one measurement, about; no matrix product is larger than `largest` (square; default: all of SIZES).
    """
    here = launch.run("gpt1_ds.training.calibrate:measure", (burst, largest), 1)[0]
    most = here["devices"]
    counts = sorted({1, *(n for n in (2, 4, 8) if n <= most), most})
    if here["device"] == "cpu":
        counts = sorted({*counts, 2, 4})  # more ranks than cores are how layouts are tried out
    runs = {1: [here]}
    runs |= {n: launch.run("gpt1_ds.training.calibrate:measure", (burst, largest), n) for n in counts if n > 1}
    speeds = {name: tuple(_speeds(n, runs[n], name) for n in counts) for name in PRECISIONS}
    link = _link(runs.get(2, []))
    peaks = {name: max(rate for one in of for _, rate in one.gemm) / 1e12 for name, of in speeds.items()}
    if here["device"] == "cpu":
        peaks = {name: max(one.ranks * one.gemm[-1][1] for one in of) / 1e12 for name, of in speeds.items()}
    else:
        peaks |= {name: peak for name in PRECISIONS if (peak := peak_tflops_of(here["name"], name))}
    return Machine(
        name=here["name"],
        source=f"measured {datetime.now(UTC):%Y-%m-%d} with {', '.join(map(str, counts))} ranks",
        device=here["device"],
        memory_gib=here["memory"] / 2**30,
        ranks_per_node=most,
        peak_tflops=peaks,
        speeds=speeds,
        node=link,
        network=link,  # one node cannot tell; edit the file for a cluster
    )


def measure(burst: float, largest: int | None = None) -> Numbers:
    """Returns one rank's numbers, all ranks measuring the same at once."""
    share_cores()
    keep_freed_blocks()
    device = connect(300)
    bench = _Bench(device, burst, [size for size in SIZES[device.type] if size <= (largest or size)])
    cuda = device.type == "cuda"
    if cuda:
        proof.decide(True)  # the speed of what runs once it is proven
    found: Numbers = {
        "device": device.type,
        "name": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "devices": torch.cuda.device_count() if cuda else len(os.sched_getaffinity(0)),
        "memory": torch.cuda.get_device_properties(device).total_memory if cuda else available_bytes(),
        "speeds": {name: bench.speeds(dtype) for name, dtype in PRECISIONS.items()},
        "link": bench.link() if dist.get_world_size() > 1 else None,
    }
    dist.destroy_process_group()
    return found


LARGE = 1 << 24  # numbers: more than caches hold


class _Bench:
    def __init__(self, device: torch.device, burst: float, sizes: Sequence[int]) -> None:
        self.device, self.cuda, self.burst, self.sizes = device, device.type == "cuda", burst, sizes

    def speeds(self, dtype: torch.dtype) -> Numbers:
        tokens, width = (512, 512) if not self.cuda else (8192, 1024)
        elements = tokens * width
        x_SBD = self._random(tokens, 1, width, dtype=dtype).requires_grad_()
        keys_B = torch.ones(1, dtype=torch.int64, device=self.device)
        weight = torch.ones(width, dtype=dtype, device=self.device)

        def norm() -> None:
            _both_ways(torch.nn.functional.layer_norm(x_SBD + x_SBD, (width,), weight, weight), x_SBD)

        def gelu() -> None:
            _both_ways(bias_activation(x_SBD, weight, "gelu_tanh"), x_SBD)

        def drop() -> None:
            _both_ways(dropout.dropout(x_SBD, keys_B, 1, 0.1), x_SBD)

        y = torch.empty_like(x_SBD)
        stream = 2 * elements * x_SBD.element_size()
        return {
            "gemm": [self._product(size, dtype) for size in self.sizes],
            "exact": self._attention(dtype, attention.exact),
            "fused": self._attention(dtype, None),
            "gelu": elements / self.seconds(gelu),
            "norm": elements / self.seconds(norm),
            "dropout": elements / self.seconds(drop),
            "loss": self._loss(dtype),
            "stream": stream / self.seconds(lambda: y.copy_(x_SBD.detach())),
            "memory": self._memory(),
            "update": self._update(dtype),
            "launch": self._launch(dtype),
        }

    def seconds(self, action: Callable[[], Any], synchronise: bool = True) -> float:
        """Returns the seconds of one call, the median of a few bursts; every rank starts together."""
        action()
        began = time.perf_counter()
        action()
        self._wait()
        calls = max(1, int(self.burst / REPEATS / max(time.perf_counter() - began, 1e-7)))
        calls = self._agreed(min(calls, 10_000))
        bursts = []
        for _ in range(REPEATS):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                action()
            if synchronise:
                self._wait()
            bursts.append((time.perf_counter() - began) / calls)
            self._wait()
        return statistics.median(bursts)

    def link(self) -> Numbers:
        """Returns the seconds of reductions over all ranks: of a few bytes, and of many."""
        small, large = torch.zeros(64, device=self.device), torch.zeros(4 << 20, device=self.device)
        return {
            "small": self.seconds(lambda: dist.all_reduce(small)),
            "large": self.seconds(lambda: dist.all_reduce(large)),
            "bytes": large.numel() * large.element_size(),
        }

    def _product(self, size: int, dtype: torch.dtype) -> tuple[float, float]:
        a, b = self._random(size, size, dtype=dtype), self._random(size, size, dtype=dtype)
        return 2.0 * size**3, 2.0 * size**3 / self.seconds(lambda: a @ b.T)

    def _attention(self, dtype: torch.dtype, kernel: Callable[..., Tensor] | None) -> tuple[float, float]:
        """Returns the scores per second, forward and backward."""
        heads, positions = (8, 512) if not self.cuda else (256, 512)
        q, k, v = (self._random(heads, positions, 64, dtype=dtype).requires_grad_() for _ in range(3))
        key_G = torch.ones(heads, dtype=torch.int32, device=self.device)
        mask = Drop(key_G, key_G, dropout.threshold(0.1), dropout.scale(0.1), positions // 2)

        def forward() -> Tensor:
            return kernel(q, k, v, mask) if kernel else attention.fused(q, k, v, 0.1 if self.cuda else 0.0)

        scores = heads * positions**2
        once = self.seconds(forward)
        both = self.seconds(lambda: _both_ways(forward(), q))
        return scores / once, scores / max(both - once, 0.1 * once)

    def _loss(self, dtype: torch.dtype) -> float:
        tokens, columns = (128, 8192) if not self.cuda else (4096, 40576)
        logits_TV = self._random(tokens, columns, dtype=dtype)
        labels_T = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        weights_T = torch.ones(tokens, device=self.device)
        arguments = (labels_T, weights_T, columns, _OneRank(), 1.0)
        return tokens * columns / self.seconds(lambda: chunk_loss(logits_TV, *arguments))  # type: ignore[arg-type]

    def _memory(self) -> float:
        """Returns the bytes per second of adding one tensor to another, as gradients are."""
        x, y = (torch.ones(LARGE, device=self.device) for _ in range(2))
        return 3 * x.element_size() * LARGE / self.seconds(lambda: x.add_(y))

    def _launch(self, dtype: torch.dtype) -> float:
        """Returns the seconds of the host per operation, in a chain of small ones forward and backward."""
        x, length = self._random(16, dtype=dtype).requires_grad_(), 20

        def chain() -> None:
            y = x
            for _ in range(length):
                y = y * 1.5
            _both_ways(y, x)

        return self.seconds(chain, synchronise=False) / (2 * length)

    def _update(self, dtype: torch.dtype) -> float:
        count = LARGE
        parameter = torch.nn.Parameter(torch.zeros(count, device=self.device))
        parameter.grad = torch.ones_like(parameter)
        optimizer = AdamW([parameter], fused=True)
        if dtype != torch.float32 and not self.cuda:  # as engine/deepspeed/bf16.py sets it
            optimizer.copies = {parameter: torch.empty(count, dtype=dtype)}

        def update() -> None:
            torch.linalg.vector_norm(parameter.grad)
            optimizer.step()

        return count / self.seconds(update)

    def _random(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, device=self.device).to(dtype)

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def _agreed(self, calls: int) -> int:
        most = torch.tensor(calls, device=self.device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)


class _OneRank:
    """The loss's view of ranks that share nothing."""

    size, rank, group = 1, 0, None


def _both_ways(output: Tensor, *inputs: Tensor) -> None:
    torch.autograd.grad(output, inputs, torch.ones_like(output))


def _speeds(ranks: int, of: list[Numbers], precision: str) -> Speeds:
    """Returns the speeds of the slowest rank."""
    rows = [one["speeds"][precision] for one in of]
    rates = {name: min(row[name] for row in rows) for name in RATES}
    pairs = {name: tuple(min(row[name][way] for row in rows) for way in (0, 1)) for name in ("exact", "fused")}
    sizes = [size for size, _ in rows[0]["gemm"]]
    gemm = tuple((size, min(row["gemm"][index][1] for row in rows)) for index, size in enumerate(sizes))
    launch = max(row["launch"] for row in rows)
    return Speeds(ranks=ranks, gemm=gemm, launch=launch, exact=pairs["exact"], fused=pairs["fused"], **rates)


def _link(of: list[Numbers]) -> Link:
    """Returns the link, from reductions over two ranks: two latencies, and as many bytes each way as are reduced."""
    if not of:
        return Link(1e-5, 1e11)  # one device: nothing is sent
    small, large, size = (max(one["link"][key] for one in of) for key in ("small", "large", "bytes"))
    return Link(small / 2, size / max(large - small, 1e-9))
