"""What a run on a GPU compiles, and what it launches as one CUDA graph. The configuration alone decides: the engine
does it, and the planner counts on it.
"""

from __future__ import annotations

from gpt1_ds.config.sections import Config


def is_compiled(config: Config) -> bool:
    """Returns whether blocks are compiled on a GPU. With train.compile=auto they are, but not under ZeRO 3: its
    parameters come and go inside a block, where a graph would break. Nor are they in a task's run with
    train.deterministic: its micro-batches have several lengths, and the compiler's sums depend on which of them a
    process meets first, another one when it resumes.
    """
    if config.train.compile == "auto":
        return config.parallel.zero < 3 and not (config.train.deterministic and config.task is not None)
    return config.train.compile == "on"


def has_graphs(config: Config) -> bool:
    """Returns whether forward and backward of a micro-batch are launched as one CUDA graph on a GPU, where the kernels
    of model/kernels/ run: at bf16 under ZeRO 1, whose gradients stay in one place. Fused attention seeds a generator
    from the host, sequence-parallel ranks gather into a buffer that may move, and an LSTM's host waits to know where
    documents begin.
    """
    train, parallel = config.train, config.parallel
    if train.cuda_graphs == "off" or train.deepspeed_patches != "fast" or config.model.attention != "exact":
        return False
    if config.model.kind == "lstm" and config.data.apart:
        return False
    return train.precision == "bf16" and parallel.zero == 1 and not parallel.pipelined and not parallel.sequence
