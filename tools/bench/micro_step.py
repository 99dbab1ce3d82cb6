"""Row 3: forward and backward of 4 x 512 tokens on a GPU, without an update: so little work that the time to launch it
shows. The limit is how long the GPU itself is busy with our step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tools.bench.gpu_training import KINDS, ours_config
from tools.bench.loop import Loop
from tools.bench.ours import Ours, Text, can_compile, gpt1
from tools.bench.peers import Plain, Transformers
from tools.bench.rows import Options, Ratio, Row, ratio, seconds, take_turns, wait_for

ROWS = 4
REPEATS = 10
NEVER = "train.global_batch=1048576"  # so many micro-batches to a step that none is its last


def measure(options: Options) -> Row:
    device, compiled = options.device, can_compile(options)
    config = gpt1(options, ROWS)
    text = Text(config)
    steps: dict[str, Callable[[], Any]] = {}
    for name, kind in KINDS.items():
        engine = Ours(ours_config(options, ROWS, kind, compiled, NEVER), text, device).engine.deepspeed
        steps[name] = of_engine(engine, text.bare(0)[0], device)
    if compiled:
        engine = Ours(ours_config(options, ROWS, "fused", False, NEVER), text, device).engine.deepspeed
        steps["ours, fused, eager"] = of_engine(engine, text.bare(0)[0], device)
    batch = text.plain(0)[0]
    for name, model, masters in (("plain", Plain(config), True), ("transformers", Transformers(config), False)):
        loop = Loop(model, config.optimizer, text.plain, device, masters)
        form: Any = torch.compile(model, dynamic=False) if compiled and name == "plain" else model
        steps[name] = lambda loop=loop, form=form, auto=not masters: loop.micro_step(batch, 1, form, auto)
    work = {name: milliseconds(step, device) for name, step in steps.items()}
    work["GPU busy, ours, fused"] = lambda: busy(steps["ours, fused"], device)
    series = take_turns(work, options.rounds)
    return Row(
        number=3,
        title="forward and backward of 4 x 512 tokens",
        unit="ms",
        series=series,
        ratios=[
            Ratio("ours / GPU busy", ratio(series, "ours, fused", "GPU busy, ours, fused"), 1.15, at_least=False),
            Ratio("plain / ours", ratio(series, "plain", "ours, fused")),
            Ratio("transformers / ours", ratio(series, "transformers", "ours, fused")),
        ],
        configuration={"rows": ROWS, "context": config.model.context, "compiled": compiled},
    )


def of_engine(engine: Any, batch: Sequence[Any], device: str) -> Callable[[], None]:
    def step() -> None:
        engine.backward(engine(*(part.to(device, non_blocking=True) for part in batch)))
        engine.step()

    return step


def milliseconds(step: Callable[[], Any], device: str) -> Callable[[], float]:
    def repeated() -> None:
        for _ in range(REPEATS):
            step()

    return lambda: 1e3 * seconds(repeated, device) / REPEATS


def busy(step: Callable[[], Any], device: str) -> float:
    """Milliseconds of a step's kernels, one after the other."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        step()
        wait_for(device)
    if not cuda:
        return sum(one.self_cpu_time_total for one in found.key_averages()) / 1e3
    kernels = (one for one in found.key_averages() if one.device_type == DeviceType.CUDA)
    return sum(one.self_device_time_total for one in kernels if not one.is_user_annotation) / 1e3
