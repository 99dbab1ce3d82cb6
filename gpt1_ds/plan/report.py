"""A configuration and a plan of it, as people read them and as programs do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import yaml

from gpt1_ds.architecture.count import parameters, training_flops_per_token
from gpt1_ds.architecture.head import pretraining_head
from gpt1_ds.common.text import amount, byte_size, count, duration
from gpt1_ds.config import Config
from gpt1_ds.plan.cost import Cost
from gpt1_ds.plan.machine import Machine
from gpt1_ds.plan.memory import RankMemory
from gpt1_ds.plan.search import Candidate, Ranking, layout_keys
from gpt1_ds.plan.stages import stages

ASSUMED_VOCABULARY = 40000  # `tokenizer train`'s default, when no dataset says another one
SHOWN = 8  # layouts and refusals of a search, at most
GIB = 2**30


def describe(
    config: Config, world: int, vocab_size: int | None, data_tokens: int | None, steps: int | None = None
) -> Iterator[str]:
    """Yields the lines on the model, the length and the layout; `None` where the data is not there yet. Fine-tuning
    counts its `steps` by examples.
    """
    model, train, parallel = config.model, config.train, config.parallel
    vocabulary = vocab_size or ASSUMED_VOCABULARY
    total = parameters(model, vocabulary, pretraining_head(config))
    *most, last = model.blocks
    layers = " + ".join([*map(str, most), amount(last, "layer")])
    yield (
        f"model: {layers} x width {model.width}, {amount(model.heads, 'head')}, context {model.context}, vocabulary "
        f"{vocabulary}{'' if vocab_size else ' (assumed)'}: {total:,} parameters"
    )
    palm, megatron = (training_flops_per_token(config, vocabulary, causal) for causal in (False, True))
    half = f", {count(megatron)} (Megatron, causal)" if megatron < palm else ""  # of the scores
    pretrains = config.task is None  # a task's rows are as long as their texts, and its head is another one
    if pretrains:
        yield f"FLOPs per trained token: {count(palm)} (PaLM convention){half}"
    tokens_per_step = train.global_batch * config.row.fed
    steps = total_steps(config, data_tokens) if steps is None else steps
    tokens = total_tokens(config, data_tokens) if pretrains else None
    passes = grows = ""
    if tokens and data_tokens:
        used = min(data_tokens, config.data.unique_tokens or data_tokens)
        passes = f", {tokens / used:.3g} times the {count(used)} of the data"
    if train.batch_warmup_tokens is not None:
        grows = f", from {train.batch_warmup} over {count(train.batch_warmup_tokens)} tokens"
    length = "length known once the data is there"
    if steps is not None:
        length = amount(steps, "step") + (f" = {count(tokens)} tokens{passes}" if tokens else "")
    bound = "" if pretrains else " at most"
    yield f"batch: {train.global_batch} sequences = {count(tokens_per_step)} tokens per step{bound}{grows}; {length}"
    if tokens:
        yield f"compute: {palm * tokens:.3g} FLOPs"
    data_ranks = world // (parallel.tensor * parallel.pipeline)
    accumulate = train.global_batch // (train.micro_batch * data_ranks)
    yield (
        f"layout: {amount(world, 'rank')} = tensor {parallel.tensor} x pipeline {parallel.pipeline} x data "
        f"{data_ranks}, ZeRO {parallel.zero}, micro-batch {train.micro_batch} x {accumulate} accumulated, "
        f"{train.precision}"
    )
    if train.evaluations:
        yield _asked(config, total)
    if parallel.pipelined:
        loads = [sum(layer.costs.flops() for layer in stage.layers) for stage in stages(config, vocabulary)]
        shares = ", ".join(f"{load / sum(loads):.0%}" for load in loads)
        bubble = (parallel.pipeline - 1) / (accumulate + parallel.pipeline - 1)
        yield f"pipeline: shares of the work {shares}; {bubble:.0%} of the time is the pipeline filling and draining"
        if model.shared:
            yield "model.shared=true: a stage of each stack has a copy of the same block, so a pipeline saves no memory"


def _asked(config: Config, parameters: int) -> str:
    """Returns what train.evaluations asks, how often, and what that takes of every rank's memory."""
    train, best = config.train, config.checkpoint.best
    asked = []
    for one in train.evaluations:
        every = train.eval_every if one.every is None else one.every
        asked.append(f"{one.shown} every {amount(every, 'step')}" if every else f"{one.shown} at the end")
    kept = "" if best is None else f"; the best checkpoint by {best} is kept"
    whole = byte_size(4 * parameters)  # fp32
    return f"evaluations: {', '.join(asked)}; meanwhile each rank also holds the whole model, {whole}{kept}"


def total_steps(config: Config, data_tokens: int | None) -> int | None:
    """Returns the steps of the whole run; None where that depends on data that is not there yet."""
    train = config.train
    if data_tokens is None:
        return None if train.steps is None and train.tokens is None else train.all_steps(config.row, 0)
    return train.all_steps(config.row, min(data_tokens, config.data.unique_tokens or data_tokens))


def total_tokens(config: Config, data_tokens: int | None) -> int | None:
    """Returns the tokens that the model is fed with in the whole run; None where that depends on data that is not there
    yet.
    """
    steps = total_steps(config, data_tokens)
    return None if steps is None else config.batch_sizes.before(steps + 1) * config.row.fed


def machine_line(machine: Machine) -> str:
    doubt = "" if machine.measured else "; `gpt1-ds plan --calibrate` on such a machine measures it"
    return f"machine: {machine.name}, {machine.source}{doubt}"


def memory_lines(ranks: list[RankMemory], limit: int, world: int, machine: Machine) -> Iterator[str]:
    """Yields a table of stages, and what makes the peak of the one that needs most."""
    yield "memory of one rank, GiB (activations of all micro-batches in flight, a chunk's logits included):"
    titles = ("stage", "parameters", "weights", "gradients", "optimizer", "activations", "in flight", "buffers", "peak")
    yield "  " + " ".join(f"{title:>11}" for title in titles)
    for rank in ranks:
        sizes = (rank.weights, rank.gradients, rank.optimizer, rank.activations)
        cells = [f"{size / GIB:.2f}" for size in sizes]
        cells += [str(rank.in_flight), f"{rank.buffers / GIB:.2f}", f"{rank.peak / GIB:.2f}"]
        yield "  " + " ".join(f"{cell:>11}" for cell in (str(rank.stage), count(rank.parameters), *cells))
    most = max(ranks, key=lambda rank: rank.peak)
    fits = "fits" if most.peak <= limit else "does NOT fit"
    yield f"peak: {byte_size(most.peak)} on stage {most.stage}, at the {most.peak_at}; {fits} in {byte_size(limit)}"
    if machine.device == "cuda":
        host = max(rank.host for rank in ranks)
        node = host * min(world, machine.ranks_per_node)
        yield f"start: each rank needs {byte_size(host)} on the host, {byte_size(node)} a node: {ranks[0].host_for}"


def cost_lines(
    cost: Cost, config: Config, world: int, machine: Machine, tokens: int | None, seconds: float
) -> Iterator[str]:
    """Yields what a step of a full batch takes; `seconds` are those of the whole run of `tokens`."""
    micro_batches = f"{1e3 * cost.forward:.3g} + {1e3 * cost.backward:.3g} ms per micro-batch"
    yield (
        f"step: {_seconds(cost.step)} = {_seconds(cost.pipeline)} forward and backward ({micro_batches}"
        + (f", {cost.bubble:.0%} of it waiting" if config.parallel.pipeline > 1 else "")
        + f") + {_seconds(cost.reduction)} reducing gradients"
        + (f" ({_seconds(cost.hidden)} more under the backward pass)" if cost.hidden else "")
        + f" + {_seconds(cost.update)} update"
    )
    sent = (("data", cost.data_bytes), ("tensor", cost.tensor_bytes), ("pipeline", cost.pipeline_bytes))
    yield "sent by one rank per step: " + ", ".join(f"{byte_size(size)} {name}-parallel" for name, size in sent)
    yield (
        f"speed: {count(cost.tokens_per_second)} tokens per second, {count(cost.tokens_per_second / world)} per rank, "
        + _share_of_peak(cost.mfu)
    )
    if tokens:
        nodes = math.ceil(world / machine.ranks_per_node)
        yield f"length: {count(tokens)} tokens take {duration(seconds)} = {seconds / 3600 * nodes:.3g} node-hours"


def _share_of_peak(mfu: float) -> str:
    """Returns the sentence on the peak. A CPU is described by round figures, and may be faster than they say."""
    if mfu <= 1:
        return f"{mfu:.1%} of the peak (PaLM convention)"
    return "more than the peak that is assumed of this machine (`plan --calibrate` measures it)"


def graphs_lines(cost: Cost, without: Cost) -> Iterator[str]:
    """Yields what CUDA graphs gain, where that is something; `without` is the same layout without them."""
    slower = without.step / cost.step - 1
    if slower >= 0.001:
        proof = "once `gpt1-ds doctor --gpu` has passed"
        yield f"launches: hidden by CUDA graphs {proof}; {slower:.0%} slower with train.cuda_graphs=off"


def search_lines(ranking: Ranking) -> Iterator[str]:
    yield (
        f"layouts: {ranking.total} of {amount(ranking.world, 'rank')}, {len(ranking.ranked)} legal and within "
        f"{byte_size(ranking.limit)}, {len(ranking.too_large)} too large, {sum(ranking.refused.values())} not legal"
    )
    for place, one in enumerate(ranking.ranked[:SHOWN], 1):
        costs, memory = one.cost, one.memory
        yield (
            f"  {place}. {one}: {_seconds(costs.step)}, {count(costs.tokens_per_second)} tokens/s, {costs.mfu:.1%} of "
            f"the peak, {byte_size(memory.peak)} ({memory.peak_at})"
        )
    yield from (f"  {line}" for line in ranking.losers())
    refused = sorted(ranking.refused.items(), key=lambda pair: -pair[1])
    yield from (f"  not legal, {number} layouts: {reason}" for reason, number in refused[:SHOWN])
    if not ranking.ranked and ranking.too_large:
        least = min(ranking.too_large, key=lambda one: one.memory.peak)
        yield f"  nothing fits; least: {least}: {byte_size(least.memory.peak)} at the {least.memory.peak_at}"


def request_overrides(world: int, machine: Machine) -> list[str]:
    """Returns the SLURM request, as keys."""
    on_node = min(world, machine.ranks_per_node)
    return [f"slurm.nodes={math.ceil(world / machine.ranks_per_node)}", f"slurm.gpus_per_node={on_node}"]


def layout_yaml(best: Candidate, machine: Machine) -> str:
    """Returns a configuration file of the layout alone."""
    return (
        f"# {amount(best.world, 'rank')} of {machine.name} ({machine.source}): {_seconds(best.cost.step)} a step, "
        f"{byte_size(best.memory.peak)} a rank\n"
    ) + yaml.safe_dump(layout_keys(best.config), sort_keys=False)


def as_json(one: Config, ranks: list[RankMemory], cost: Cost, world: int) -> dict[str, Any]:
    """Returns the layout, its memory by stage (bytes) and its cost (seconds, bytes)."""
    keys, data = layout_keys(one), world // (one.parallel.tensor * one.parallel.pipeline)
    return {
        "layout": {**keys["parallel"], "data": data, **keys["train"], "precision": one.train.precision},
        "memory": [{**asdict(rank), "peak": rank.peak, "peak_at": rank.peak_at} for rank in ranks],
        "cost": {**asdict(cost), "step": cost.step},
    }


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
