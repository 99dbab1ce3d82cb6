"""Row 1: full-size GPT-1 training on one GPU, whole optimizer steps of 64 x 512 tokens in one micro-batch with dropout
0.1, beside transformers' model and a hand-written one in plain loops, compiled and not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tools.bench.books import plain_steps, try_out
from tools.bench.loop import Loop
from tools.bench.ours import Ours, Text, can_compile, gpt1, tokens_per_step
from tools.bench.peers import Plain, Transformers, compare
from tools.bench.rows import Options, Ratio, Row, fastest, rate, ratio, take_turns

ROWS = {False: 64, True: 2}  # where it has to be quick
STEPS = 5  # between two looks at the clock
KINDS = ("exact", "fused")


def measure(options: Options) -> Row:
    rows, compiled, device = ROWS[options.quick], can_compile(options), options.device
    configs = {kind: ours_config(options, rows, kind, compiled) for kind in KINDS}
    config = configs["exact"]
    text, tokens = Text(config), tokens_per_step(config)
    ours = {f"ours, {kind}": Ours(one, text, device) for kind, one in configs.items()}
    peer = Transformers(config).to(device)
    checks: dict[str, Any] = {name: compare(one, peer, autocast=True) for name, one in ours.items()}
    checks["plain"] = compare(ours["ours, exact"], Plain(config).to(device), autocast=True)
    loop = Loop(peer, config.optimizer, text.plain, device)
    theirs = {"transformers": partial(loop.step, autocast=True)}
    if compiled:
        form: Any = torch.compile(peer, dynamic=False)
        theirs["transformers, compiled"] = partial(loop.step, form, autocast=True)
    plain = plain_steps(config, text, options, compiled, ("sdpa",))
    rival, checks["plain settings tried, tokens/s"] = try_out(plain, tokens, options)
    steps = {**{name: one.step for name, one in ours.items()}, **theirs, rival: plain[rival]}
    repeats = 1 if options.quick else STEPS
    series = take_turns({name: rate(step, tokens, device, repeats) for name, step in steps.items()}, options.rounds)
    best = fastest(series, ours)
    return Row(
        number=1,
        title="full-size GPT-1 on one GPU, whole step of 64 x 512 tokens",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio("ours, tokens/s", series[best], 700e3),
            Ratio("ours / transformers eager", ratio(series, best, "transformers"), 3),
            Ratio("ours / best plain loop", ratio(series, best, rival), 1.05),
            *(Ratio(f"ours / {name}", ratio(series, best, name)) for name in list(theirs)[1:]),
        ],
        configuration={"rows": rows, "context": config.model.context, "compiled": compiled, "ours": best},
        checks=checks,
    )


def ours_config(options: Options, rows: int, kind: str, compiled: bool, *words: str) -> Any:
    return gpt1(options, rows, f"model.attention={kind}", f"train.compile={'on' if compiled else 'off'}", *words)
