"""Row 7: from gradients to new weights of full-size GPT-1 (norm, clip, AdamW, cast to bf16, zero) beside the time that
the memory needs to move what must be moved.

Bytes per parameter: fp32 master 8 (read and written), two fp32 moments 16, the fp32 gradient 4 for the norm and 4 for
the update, which cannot begin before the norm is known, the bf16 weight 2: 34. The memory's pace is that of torch's own
copy, or addition in place if that is faster, of tensors far larger than its caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpt1_ds.architecture import count
from tools.bench.loop import Loop
from tools.bench.ours import Ours, Text, gpt1
from tools.bench.rows import Options, Ratio, Row, ratio, seconds, take_turns
from tools.bench.tax import dense_model, stock_engine

BYTES = 8 + 16 + 4 + 4 + 2
ROWS, CONTEXT = 1, 16  # of the batch that the gradients come from: the update does not know


def measure(options: Options) -> Row:
    config = gpt1(options, ROWS, f"model.context={CONTEXT}")
    parameters = count.parameters(config.model, config.model.vocab_size or 0)
    text, device = Text(config), options.device
    fp32 = Loop(dense_model(config, device), config.optimizer, text.bare, device)
    ours, stock = Ours(config, text, device), stock_engine(config, device)

    def of_engine(engine: Any) -> float:
        for batch in text.bare(0):
            engine.backward(engine(*(part.to(device) for part in batch)))
        return 1e3 * seconds(engine.step, device)

    def of_fp32() -> float:
        for batch in text.bare(0):
            fp32.micro_step(batch)
        return 1e3 * seconds(fp32.update, device)

    memory = pace(options)
    work = {
        "ours": lambda: of_engine(ours.engine.deepspeed),
        "DeepSpeed as it comes": lambda: of_engine(stock),
        "torch, fp32, fused, foreach clip": of_fp32,
        "memory": lambda: 1e3 * BYTES * parameters / memory(),
    }
    series = take_turns(work, options.rounds)
    return Row(
        number=7,
        title="optimizer step of full-size GPT-1",
        unit="ms",
        series=series,
        ratios=[
            Ratio("ours / the memory's limit", ratio(series, "ours", "memory"), 1.5, at_least=False),
            Ratio("DeepSpeed as it comes / ours", ratio(series, "DeepSpeed as it comes", "ours")),
            Ratio("torch fp32 / ours", ratio(series, "torch, fp32, fused, foreach clip", "ours")),
        ],
        configuration={"parameters": parameters, "bytes": BYTES, "threads": torch.get_num_threads()},
    )


def pace(options: Options) -> Callable[[], float]:
    """Bytes per second, read and written, of the faster of copy and addition in place."""
    count = (1 << 20) if options.quick else (1 << 28)
    source, target = torch.ones(count, device=options.device), torch.zeros(count, device=options.device)
    moved = 2 * 4 * count
    return lambda: (
        moved
        / min(seconds(lambda: target.copy_(source), options.device), seconds(lambda: target.add_(1.0), options.device))
    )
