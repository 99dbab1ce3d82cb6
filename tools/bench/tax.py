"""Row 2: what DeepSpeed costs. Our engine beside the very same model in a bare loop, and beside DeepSpeed as it comes.

At full size, and for the quickstart's model, whose steps are short. All three compute the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deepspeed
import torch

from gpt1_ds.config import Config, load
from gpt1_ds.engine.optimizer import parameter_groups
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.launcher.libraries import quiet
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel, compile_blocks
from gpt1_ds.model.layers import TensorParallel
from tools.bench.loop import Loop
from tools.bench.ours import (
    LEARNING_RATE,
    TINY,
    Ours,
    Text,
    can_compile,
    connect,
    gpt1,
    initial_weights,
    tokens_per_step,
)
from tools.bench.rows import Options, Ratio, Row, Series, rate, ratio, take_turns

ROWS = {"cpu": 4, "cuda": 64}
AGREEMENT = 1e-2  # nats, of the losses of three steps
SMALL = [
    *("model.layers=4", "model.width=128", "model.heads=4", "model.context=128"),
    *("train.global_batch=32", "train.micro_batch=8", "optimizer.lr=2e-3"),
]
TARGETS = {"full size": 0.97, "4 x 512": 0.92, "4 x 128": 0.90}


def measure(options: Options) -> Row:
    compiled = options.device == "cuda" and can_compile(options)
    overrides = [f"train.compile={'on' if compiled else 'off'}"]
    small = [*TINY, "train.global_batch=4", "train.micro_batch=2"] if options.quick else ["model.vocab_size=4096"]
    sizes = {
        "full size": gpt1(options, ROWS[options.device], *overrides),
        "4 x 128": load([], [*overrides, *SMALL, *small]),
    }
    if options.device == "cuda":
        sizes["4 x 512"] = gpt1(options, 4, *overrides)
    series: Series = {}
    ratios, checks = [], {}
    for size, config in sizes.items():
        found, checks[size] = compare_loops(size, config, options)
        series |= found
        ratios.append(Ratio(f"{size}: engine / bare", ratio(found, f"{size}: engine", f"{size}: bare"), TARGETS[size]))
        stock = f"{size}: DeepSpeed as it comes"
        ratios.append(Ratio(f"{size}: engine / DeepSpeed as it comes", ratio(found, f"{size}: engine", stock)))
    return Row(
        number=2,
        title="framework tax: the same model through DeepSpeed and in a bare loop",
        unit="tokens/s",
        series=series,
        ratios=ratios,
        configuration={
            "compiled": compiled,
            "threads": torch.get_num_threads(),
            **{f"{size}: tokens per step": tokens_per_step(config) for size, config in sizes.items()},
        },
        checks=checks,
    )


def compare_loops(size: str, config: Config, options: Options) -> tuple[Series, dict[str, Any]]:
    text = Text(config)
    steps = {
        f"{size}: engine": Ours(config, text, options.device).step,
        f"{size}: bare": bare(config, text, options.device).step,
        f"{size}: DeepSpeed as it comes": as_it_comes(config, text, options.device),
    }
    losses = {name: [float(step()) for _ in range(3)] for name, step in steps.items()}
    first, *others = losses.values()
    for other in others:
        assert all(abs(a - b) < AGREEMENT for a, b in zip(first, other, strict=True)), losses
    short = size == "4 x 128" and not options.quick
    tokens = tokens_per_step(config)
    work = {name: rate(step, tokens, options.device, 10 if short else 1) for name, step in steps.items()}
    return take_turns(work, options.rounds), {"losses": losses}


def dense_model(config: Config, device: str) -> DenseModel:
    """The engine's model with the engine's first weights."""
    connect(device)
    assert config.model.vocab_size is not None, "it is known here"
    model = DenseModel(config, config.model.vocab_size, TensorParallel(ProcessGroups(config).tensor_group))
    weights = initial_weights(config)
    with torch.no_grad():
        for parameter in model.parameters():
            value = weights[names.info(parameter).name]
            parameter[: len(value)].copy_(value)
    if config.train.compile == "on":
        compile_blocks(model)
    return model.to(device)


def bare(config: Config, text: Text, device: str) -> Loop:
    masters = config.train.precision == "bf16"
    return Loop(dense_model(config, device), config.optimizer, text.bare, device, masters)


def stock_engine(config: Config, device: str) -> Any:
    """DeepSpeed with ZeRO 1 and what its tutorials set, everything else at its defaults."""
    model = dense_model(config, device)
    train = config.train
    settings = {
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_accumulation_steps": train.global_batch // train.micro_batch,
        "gradient_clipping": config.optimizer.clip,
        "bf16": {"enabled": train.precision == "bf16"},
        "zero_optimization": {"stage": 1},
    }
    with quiet():
        groups, arguments = parameter_groups(model, config.optimizer.weight_decay), config.optimizer
        optimizer = torch.optim.AdamW(groups, LEARNING_RATE, tuple(arguments.betas), arguments.eps, fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine


def as_it_comes(config: Config, text: Text, device: str) -> Callable[[], float]:
    engine, done = stock_engine(config, device), 0

    def step() -> float:
        nonlocal done
        losses = []
        for batch in text.bare(done):
            loss = engine(*(part.to(device) for part in batch))
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        done += 1
        return float(torch.stack(losses).mean())

    return step
