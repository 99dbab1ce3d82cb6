"""Row 17: the small books model (configs/pretrain/books_cpu.yaml) on a processor, beside the same model in plain torch
in its fastest setting: compiled or not, SDPA or softmax, bf16 autocast or bf16 weights with fp32 masters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpt1_ds.config import Config, load
from tools.bench import matrix
from tools.bench.loop import Loop
from tools.bench.ours import TINY, Ours, Text, can_compile, tokens_per_step
from tools.bench.peers import Plain, compare
from tools.bench.rows import Options, Ratio, Row, Series, fastest, rate, ratio, take_turns

COMPILED = ", compiled"
BATCH = ("train.global_batch=16", "train.micro_batch=8")
VOCABULARY = "model.vocab_size=8000"  # of tools/books.sh
TRIALS = 3  # rounds in which the settings are tried out


def measure(options: Options) -> Row:
    arguments = [*TINY, "train.global_batch=4", "train.micro_batch=2"] if options.quick else [*BATCH, VOCABULARY]
    arguments += [f"model.{kind}_dropout=0.1" for kind in ("residual", "embedding", "attention")]
    config = load(["pretrain/books_cpu"], [*arguments, "train.compile=off"])
    text, compiled, device = Text(config), can_compile(options), options.device
    tokens, repeats = tokens_per_step(config), 1 if options.quick else 4
    eager = Ours(config, text, device)
    ours = {"ours": eager.step}
    if compiled:
        ours["ours" + COMPILED] = Ours(
            load(["pretrain/books_cpu"], [*arguments, "train.compile=on"]), text, device
        ).step
    checks: dict[str, Any] = {
        kind: compare(eager, Plain(config, kind).to(device), autocast=True) for kind in ("sdpa", "softmax")
    }
    best, checks["our settings tried, tokens/s"] = try_out(ours, tokens, options)
    plain = plain_steps(config, text, options, compiled)
    rival, tried = try_out(plain, tokens, options)
    rivals = {"in its fastest setting": rival}
    if compiled:
        rivals["compiled"] = fastest(tried, [name for name in tried if name.endswith(COMPILED)])
    checks["plain settings tried, tokens/s"] = tried
    work = {name: rate({**ours, **plain}[name], tokens, device, repeats) for name in (best, *rivals.values())}
    products = matrix.step_seconds(matrix.of_model(config.model, config.train.micro_batch), device)
    micro_batch = config.train.micro_batch * config.model.context
    series = take_turns({**work, "matrix products": lambda: micro_batch / products()}, options.rounds)
    return Row(
        number=17,
        title="the books model, whole step",
        unit="tokens/s",
        series=series,
        ratios=[
            *(Ratio(f"ours / plain PyTorch, {how}", ratio(series, best, name), 1.5) for how, name in rivals.items()),
            Ratio("ours / its matrix products alone", ratio(series, best, "matrix products")),
            Ratio("plain PyTorch / its matrix products alone", ratio(series, rival, "matrix products")),
        ],
        configuration={
            "rows": config.train.global_batch,
            "micro-batch": config.train.micro_batch,
            "context": config.model.context,
            "vocabulary": config.model.vocab_size,
            "threads": torch.get_num_threads(),
            "ours": best,
        },
        checks=checks,
    )


def plain_steps(
    config: Config, text: Text, options: Options, compiled: bool, kinds: tuple[str, ...] = ("sdpa", "softmax")
) -> dict[str, Callable[[], Any]]:
    """The plain model's step in each of its settings."""
    steps: dict[str, Callable[[], Any]] = {}
    for kind in kinds:
        for masters in (False, True):
            model = Plain(config, kind)
            loop = Loop(model, config.optimizer, text.plain, options.device, masters)
            name = f"plain, {kind}, {'fp32 masters' if masters else 'autocast'}"
            forms: dict[str, Any] = {name: model}
            if compiled:
                forms[name + COMPILED] = torch.compile(model, dynamic=False)
            steps |= {label: partial(loop.step, form, not masters) for label, form in forms.items()}
    return steps


def try_out(steps: dict[str, Callable[[], Any]], tokens: int, options: Options) -> tuple[str, Series]:
    """The fastest of them, and what all reached, in tokens/s."""
    tried = take_turns({name: rate(step, tokens, options.device) for name, step in steps.items()}, TRIALS)
    return fastest(tried, tried), tried
