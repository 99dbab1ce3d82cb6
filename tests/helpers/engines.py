"""Things that ranks do in parallel tests. Every function here runs on each rank; results are plain numpy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpt1_ds.config import load, with_vocabulary
from tools.layouts import pieces


def on_engine(overrides: list[str], vocab_size: int, action: Callable[..., Any], *arguments: Any) -> Any:
    """Build the engine that `overrides` describe on this rank and call `action(engine, config, *arguments)`."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from tools.layouts import sequence_parallel_on_cpu

    config = load([], overrides)
    with contextlib.ExitStack() as stack:
        if config.parallel.sequence:
            stack.enter_context(sequence_parallel_on_cpu())
        torch.set_num_threads(1)
        connect(120)
        engine = build_engine(with_vocabulary(config, vocab_size), ProcessGroups(config))
        result = action(engine, config, *arguments)
        dist.destroy_process_group()
    return result


def gradients(
    engine: Any, config: Any, rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]], step: int
) -> dict[str, Any]:
    """One step on a global batch given as (tokens, labels, weights) arrays [B, S]; gradients are read off Adam's first
    moment, which after the first update is (1 - beta1) x gradient on every layout and ZeRO stage."""
    import torch

    from gpt1_ds.engine.base import MicroBatch
    from gpt1_ds.engine.build import batch_shape
    from gpt1_ds.model.dropout import row_keys
    from gpt1_ds.objectives.base import row_facts

    tokens, labels, weights = rows
    shape = batch_shape(config, engine.groups)
    batches = []
    for numbers in shape.rows():
        part = [torch.from_numpy(np.ascontiguousarray(array[numbers].T)) for array in (tokens, labels, weights)]
        facts = torch.from_numpy(row_facts(row_keys(config.run.seed, step, numbers)))
        batches.append(MicroBatch((part[0], facts), (part[1], part[2])))
    result = engine.step(batches, 1e-3)
    scale = 1 / (1 - config.optimizer.betas[0])
    return {
        "loss": result.loss,
        "norm": result.grad_norm,
        "applied": result.applied,
        "gradients": [(info, part, values * scale) for info, part, values in pieces(engine, "exp_avg")],
    }


def fine_tune(config: Any, tokenizer: Any, weights: dict[str, np.ndarray], steps: int) -> dict[str, Any]:
    """Predict the dev split with `weights`, then train `steps` updates on the product's own batches.

    Gradients are the first update's, as in `gradients`.
    """
    import torch
    import torch.distributed as dist

    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.tasks.reading import read_task
    from gpt1_ds.training import schedule
    from gpt1_ds.training.finetuning import Finetuning

    torch.set_num_threads(1)
    connect(120)
    groups = ProcessGroups(config)
    workload = Finetuning(config, read_task(config.task), tokenizer, groups)
    engine = build_engine(workload.config, groups, objective=workload.objective)
    fill(engine, weights)
    predictions, dev_loss = workload.scorer.predict(engine, "dev")
    found: dict[str, Any] = {"predictions": predictions, "dev_loss": dev_loss, "steps": [], "examples": []}
    for step in range(1, steps + 1):
        rate = schedule.learning_rate(config.schedule, config.optimizer.lr, step, workload.steps)
        result = engine.step(workload.batch(step, step).micro_batches, rate)
        found["steps"].append((result.loss, result.grad_norm))
        batch = workload.batches.at(step - 1)
        found["examples"].append(batch.examples)
        if step == 1:
            scale = 1 / (1 - config.optimizer.betas[0])
            first = pieces(engine, "exp_avg")
            found["gradients"] = [(info, part, values * scale) for info, part, values in first]
    found["weights"] = pieces(engine, "master")
    dist.destroy_process_group()
    return found


def fill(engine: Any, weights: dict[str, np.ndarray]) -> None:
    """Set every master to its part of `weights`, which are whole."""
    import torch

    from gpt1_ds.engine import master_weights

    for fragment in master_weights.fragments(engine):
        info, value = fragment.info, torch.from_numpy(weights[fragment.info.name])
        here = value if info.dim is None else value.narrow(info.dim, info.start, info.stop - info.start)
        fragment.master.copy_(here.reshape(-1)[fragment.offset : fragment.offset + len(fragment.master)])
    master_weights.publish(engine)


def differences_here(given: list[str]) -> str:
    """What differs between copies on the ranks after three steps, or nothing."""
    from gpt1_ds.checkpoint.replicas import Replicas
    from gpt1_ds.data.sources import open_data
    from gpt1_ds.engine.build import batch_shape, training_batches

    def train(engine: Any, config: Any) -> str:
        data, shape = open_data(config), batch_shape(config, engine.groups)
        for step in (1, 2, 3):
            rows = data.training.batch(step, shape).micro_batches
            engine.step(training_batches(engine.objective, rows, config.run.seed, step), 1e-2)
        return str(Replicas(engine).compare() or "")

    return on_engine(given, 500, train)  # type: ignore[no-any-return]
