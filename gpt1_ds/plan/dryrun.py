"""What a configuration amounts to, in a few lines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpt1_ds.architecture.count import flops_per_token, parameters
from gpt1_ds.common.units import count
from gpt1_ds.config import Config
from gpt1_ds.plan.stages import stages

ASSUMED_VOCABULARY = 40000  # `tokenizer train`'s default, when no dataset says otherwise


def describe(config: Config, world: int, vocab_size: int | None, data_tokens: int | None) -> Iterator[str]:
    """Lines on the model, the length and the layout; `None` where the data is not there yet."""
    model, train, parallel = config.model, config.train, config.parallel
    vocabulary = vocab_size or ASSUMED_VOCABULARY
    total = parameters(model, vocabulary)
    yield (
        f"model: {model.layers} layers x width {model.width}, {model.heads} heads, context {model.context}, vocabulary "
        f"{vocabulary}{'' if vocab_size else ' (assumed)'}: {total:,} parameters"
    )
    palm, megatron = flops_per_token(model, vocabulary), flops_per_token(model, vocabulary, causal=True)
    yield f"operations per trained token: {count(palm)} (PaLM convention), {count(megatron)} (Megatron, causal)"
    tokens_per_step = train.global_batch * model.context
    steps = total_steps(config, tokens_per_step, data_tokens)
    yield (
        f"batch: {train.global_batch} sequences = {count(tokens_per_step)} tokens per step; "
        + (
            f"{steps} steps = {count(steps * tokens_per_step)} tokens"
            if steps
            else "length known once the data is there"
        )
    )
    if steps:
        yield f"compute: {palm * steps * tokens_per_step:.3g} operations"
    data_ranks = world // (parallel.tensor * parallel.pipeline)
    accumulate = train.global_batch // (train.micro_batch * data_ranks)
    yield (
        f"layout: {world} ranks = tensor {parallel.tensor} x pipeline {parallel.pipeline} x data {data_ranks}, ZeRO "
        f"{parallel.zero}, micro-batch {train.micro_batch} x {accumulate} accumulated, {train.precision}"
    )
    if parallel.pipelined:
        loads = [sum(layer.flops() for layer in stage.layers) for stage in stages(config, vocabulary)]
        shares = ", ".join(f"{load / sum(loads):.0%}" for load in loads)
        bubble = (parallel.pipeline - 1) / (accumulate + parallel.pipeline - 1)
        yield f"pipeline: shares of the work {shares}; {bubble:.0%} of the time is the pipeline filling and draining"


def total_steps(config: Config, tokens_per_step: int, data_tokens: int | None) -> int | None:
    """Of the whole run; None where that depends on data that is not there yet."""
    train = config.train
    if train.steps is not None:
        return train.steps
    if train.tokens is not None:
        return math.ceil(train.tokens / tokens_per_step)
    if data_tokens is None:
        return None
    used = min(data_tokens, config.data.unique_tokens or data_tokens)
    return math.ceil((1.0 if train.epochs is None else train.epochs) * used / tokens_per_step)
