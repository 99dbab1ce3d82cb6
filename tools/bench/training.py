"""Row 13: full-size GPT-1 training on a processor, whole optimizer steps of 4 x 512 tokens with dropout 0.1, beside
transformers' model in the best loop that it can be put in, and beside its own matrix products alone; and in fp32, for
processors without units for bf16, beside plain PyTorch with SDPA, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tools.bench import matrix
from tools.bench.loop import Loop
from tools.bench.ours import Ours, Text, can_compile, gpt1, tokens_per_step
from tools.bench.peers import Plain, Transformers, compare
from tools.bench.rows import Options, Ratio, Row, fastest, rate, ratio, take_turns

ROWS = 4


def measure(options: Options) -> Row:
    config, compiled = gpt1(options, ROWS, "train.compile=off"), can_compile(options)
    text, tokens, device = Text(config), tokens_per_step(config), options.device
    ours = {"ours": Ours(config, text, device)}
    if compiled:
        ours["ours, compiled"] = Ours(gpt1(options, ROWS, "train.compile=on"), text, device)
    wide = Ours(gpt1(options, ROWS, "train.compile=off", "train.precision=fp32"), text, device)
    plain = Loop(Plain(config), config.optimizer, text.plain, device)
    peer = Transformers(config)
    loop = Loop(peer, config.optimizer, text.plain, device)
    theirs = {"transformers bf16": partial(loop.step, autocast=True)}
    if compiled:
        form: Any = torch.compile(peer, dynamic=False)
        theirs["transformers bf16, compiled"] = partial(loop.step, form, autocast=True)
    checks = {"bf16": compare(ours["ours"], peer, autocast=True), "fp32": compare(ours["ours"], peer, autocast=False)}
    steps = {**{name: one.step for name, one in ours.items()}, **theirs, "transformers fp32": loop.step}
    steps |= {"ours fp32": wide.step, "plain SDPA fp32": plain.step}
    work = {name: rate(step, tokens, device) for name, step in steps.items()}
    products = matrix.step_seconds(matrix.of_model(config.model, ROWS), device)
    series = take_turns({**work, "matrix products": lambda: tokens / products()}, options.rounds)
    best, rival = fastest(series, ours), fastest(series, theirs)
    return Row(
        number=13,
        title="full-size GPT-1, whole step of 4 x 512 tokens",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio("ours / its matrix products alone", ratio(series, best, "matrix products"), 0.65),
            Ratio("ours / transformers bf16 autocast", ratio(series, best, rival), 3.2),
            Ratio("ours / transformers fp32", ratio(series, best, "transformers fp32"), 8),
            Ratio("ours fp32 / plain SDPA fp32", ratio(series, "ours fp32", "plain SDPA fp32"), 1.0),
        ],
        configuration={
            "rows": ROWS,
            "context": config.model.context,
            "vocabulary": config.model.vocab_size,
            "threads": torch.get_num_threads(),
            "ours": best,
            "transformers": f"{rival}, attention {peer.attention}, AdamW fused",
        },
        checks=checks,
    )
