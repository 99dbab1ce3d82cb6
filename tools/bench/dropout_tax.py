"""Row 4: what dropout 0.1 at every site costs a step of full-size GPT-1 on a GPU, with either attention and in plain
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.bench.books import plain_steps, try_out
from tools.bench.gpu_training import KINDS, ROWS, STEPS, ours_config
from tools.bench.ours import Ours, Text, can_compile, tokens_per_step
from tools.bench.rows import Options, Ratio, Row, rate, ratio, take_turns

SITES = ("residual", "embedding", "attention")


def measure(options: Options) -> Row:
    rows, compiled, device = ROWS[options.quick], can_compile(options), options.device
    steps: dict[str, Callable[[], Any]] = {}
    for share in ("0", "0.1"):
        words = [f"model.{site}_dropout={share}" for site in SITES]
        for kind in KINDS:
            config = ours_config(options, rows, kind, compiled, *words)
            steps[f"{kind} {share}"] = Ours(config, Text(config), device).step
        tokens = tokens_per_step(config)
        plain = plain_steps(config, Text(config), options, compiled, ("sdpa",))
        steps[f"plain {share}"] = plain[try_out(plain, tokens, options)[0]]
    work = {name: rate(step, tokens, device, 1 if options.quick else STEPS) for name, step in steps.items()}
    series = take_turns(work, options.rounds)
    taxes = {kind: ratio(series, f"{kind} 0", f"{kind} 0.1") for kind in (*KINDS, "plain")}
    return Row(
        number=4,
        title="full-size GPT-1 on one GPU with dropout 0.1 and without",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio("time with dropout / without, fused", taxes["fused"], 1.03, at_least=False),
            Ratio("time with dropout / without, exact", taxes["exact"]),
            Ratio("time with dropout / without, plain torch", taxes["plain"]),
        ],
        configuration={"rows": rows, "context": config.model.context, "compiled": compiled},
    )
