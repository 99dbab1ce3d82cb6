"""Which engines launch their micro-batches as CUDA graphs, and what they do while one is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

from gpt1_ds.config import Config
from gpt1_ds.engine.base import Engine, unheard
from gpt1_ds.engine.bf16_optimizer_patch import FlatGradients
from gpt1_ds.engine.graphs import CudaRecorder, GraphedPasses, Pass
from gpt1_ds.engine.overlap import OverlappedReduction, Reduction
from gpt1_ds.model import dropout, kernels


def graphed_passes(engine: Engine, work: Pass, reduction: Reduction | None, config: Config) -> GraphedPasses | None:
    """Where the host is what limits: at bf16 on a GPU, whose gradients lie in one place (BF16_Optimizer). Fused
    attention seeds a generator from the host, and sequence-parallel ranks gather into a buffer that may move.
    """
    optimizer = engine.deepspeed.optimizer
    if config.train.cuda_graphs == "off" or not isinstance(optimizer, BF16_Optimizer):
        return None
    if config.model.attention != "exact" or config.parallel.sequence or not kernels.available(engine.device):
        return None
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
    and must be neither read after it nor freed before it.
    """
    heard = engine.progress
    heard("capture of a CUDA graph")
    engine.progress = unheard
    dropout.counters.cache_clear()
    try:
        yield
    except Exception:  # in the midst of a backward pass
        engine.deepspeed.optimizer.clear_lp_grads()
        engine.deepspeed.optimizer.exit_backward()
        if isinstance(reduction, OverlappedReduction):
            reduction.forget()
        raise
    finally:
        dropout.counters.cache_clear()
        engine.progress = heard
