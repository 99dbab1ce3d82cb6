"""Which engines launch their micro-batches as CUDA graphs, and what they do while one is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

from gpt1_ds.config import Config
from gpt1_ds.config.policy import has_graphs
from gpt1_ds.engine.base import Engine, unheard
from gpt1_ds.engine.deepspeed.bf16 import FlatGradients
from gpt1_ds.engine.deepspeed.overlap import OverlappedReduction, Reduction
from gpt1_ds.engine.graphs import CudaRecorder, GraphedPasses, Pass
from gpt1_ds.model import dropout, kernels
from gpt1_ds.model.kernels import attention_cpu


def graphed_passes(engine: Engine, work: Pass, reduction: Reduction | None, config: Config) -> GraphedPasses | None:
    """Where the plan says so and the kernels run."""
    if not has_graphs(config) or not kernels.available(engine.device):
        return None
    optimizer = engine.deepspeed.optimizer
    assert isinstance(optimizer, BF16_Optimizer), "DeepSpeed's choice for bf16 under ZeRO 1"
    return GraphedPasses(
        work,
        FlatGradients(optimizer),
        CudaRecorder(engine.device),
        reduces=reduction is not None,
        capturing=lambda: _capturing(engine, reduction),
        gather=engine.groups.gather,
    )


@contextlib.contextmanager
def _capturing(engine: Engine, reduction: Reduction | None) -> Iterator[None]:
    """No progress is announced, because who hears it may use the device. What is cached lies in the graph's memory,
    and must be neither read after it nor freed before it. Later batches wait: no copy is in flight, and no memory
    is pinned, while a stream is captured.
    """
    heard = engine.progress
    heard("capture of a CUDA graph")
    engine.progress = unheard
    _forget()
    try:
        with engine.sender.lock:
            yield
    except Exception:  # in the midst of a backward pass
        engine.deepspeed.optimizer.clear_lp_grads()
        engine.deepspeed.optimizer.exit_backward()
        if isinstance(reduction, OverlappedReduction):
            reduction.forget()
        raise
    finally:
        _forget()
        engine.progress = heard


def _forget() -> None:
    """Drops what functions keep on the device from call to call."""
    for kept in (dropout.counters, attention_cpu.future):
        kept.cache_clear()
