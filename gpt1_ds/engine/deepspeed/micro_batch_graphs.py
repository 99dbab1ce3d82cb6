"""Which engines launch their micro-batches as CUDA graphs, and what they do while one is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

from gpt1_ds.config import Config
from gpt1_ds.config.policy import has_graphs
from gpt1_ds.engine.base import Engine, ignore_progress
from gpt1_ds.engine.deepspeed.bf16 import FlatGradients
from gpt1_ds.engine.deepspeed.overlap import OverlappedReduction, Reduction
from gpt1_ds.engine.graphs import CudaRecorder, GraphedPasses, Pass
from gpt1_ds.model import dropout, kernels
from gpt1_ds.model.kernels import attention_cpu


def graphed_passes(engine: Engine, work: Pass, reduction: Reduction | None, config: Config) -> GraphedPasses | None:
    """Returns CUDA graphs of the passes of `work` where the configuration has them and the kernels run; else None."""
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
    """Keeps from the device what a stream must not see while it is captured. Progress is not reported, because its
    receiver may use the device. Cached tensors would be in the graph's memory, so that they must not be read after it
    or freed before it. Later batches wait, so that no copy is in flight and no memory is pinned.
    """
    progress = engine.progress
    progress("capture of a CUDA graph")
    engine.progress = ignore_progress
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
        engine.progress = progress


def _forget() -> None:
    """Drops what functions keep on the device from call to call."""
    for kept in (dropout.counters, attention_cpu.future):
        kept.cache_clear()
