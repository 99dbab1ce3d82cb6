"""Row 1: full-size GPT-1 training on one GPU, whole optimizer steps of 64 x 512 tokens in one micro-batch with dropout
0.1, beside transformers' model and a hand-written one in plain loops, compiled and not.

Every contender of a series has a process of its own, one after another: together they would need more memory than a
GPU has. What a process compiles lies in the user's cache for those of the next series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.bench.ranks import started
from tools.bench.rows import Options, Ratio, Row, Series, fastest, rate, ratio, take_turns

APART = True  # torch is imported by other processes
ROWS = {False: 64, True: 2}  # where it has to be quick
STEPS = 5  # between two looks at the clock
WARM_UP = 5  # steps before: they compile, and prove CUDA graphs
LEAST = 3  # series, whatever is asked for
COMPILED = ", compiled"
KINDS = {"ours, exact": "exact", "ours, fused": "fused"}
TRANSFORMERS = "transformers"
PLAIN = {"plain, sdpa, autocast": False, "plain, sdpa, fp32 masters": True}  # whether there are masters


def measure(options: Options) -> Row:
    compiles = apart("compiles", options)
    theirs = [TRANSFORMERS, *([TRANSFORMERS + COMPILED] if compiles else [])]
    checks: dict[str, Any] = apart("checks", options, compiles)
    rival, checks["plain settings tried, tokens/s"] = fastest_plain(options, compiles)
    contenders = {name: Contender(options, name, compiles) for name in (*KINDS, *theirs, rival)}
    series = in_turns(contenders, options)
    checks["peak memory, GiB"] = {name: one.peak for name, one in contenders.items()}
    best = fastest(series, KINDS)
    return Row(
        number=1,
        title="full-size GPT-1 on one GPU, whole step of 64 x 512 tokens",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio("ours, tokens/s", series[best], 700e3),
            Ratio("ours / transformers eager", ratio(series, best, TRANSFORMERS), 3),
            Ratio("ours / best plain loop", ratio(series, best, rival), 1.05),
            *(Ratio(f"ours / {name}", ratio(series, best, name)) for name in theirs[1:]),
        ],
        configuration={"rows": ROWS[options.quick], "compiled": compiles, "ours": best},
        checks=checks,
    )


@dataclass
class Contender:
    """Each call measures it in a new process: tokens per second. `overrides` are keys of the configuration."""

    options: Options
    name: str
    compiles: bool
    overrides: tuple[str, ...] = ()
    peak: float = 0.0  # GiB of a GPU's memory so far

    def __call__(self) -> float:
        found = apart("contender", self.options, self.name, self.compiles, self.overrides)
        self.peak = max(self.peak, found["GiB"])
        return float(found["tokens/s"])


def in_turns(contenders: Mapping[str, Contender], options: Options) -> Series:
    """At least three figures of each, after one that fills the cache of what is compiled."""
    if options.quick:
        return take_turns(contenders, options.rounds, warm_up=0)
    return take_turns(contenders, max(LEAST, options.rounds))


def fastest_plain(options: Options, compiles: bool) -> tuple[str, dict[str, float]]:
    """The plain model's fastest setting, and what each reached, in tokens/s."""
    names = [*PLAIN, *([name + COMPILED for name in PLAIN] if compiles else [])]
    tried = {name: Contender(options, name, compiles)() for name in names}
    return max(tried, key=lambda name: tried[name]), tried


def apart(function: str, options: Options, *arguments: Any) -> Any:
    """What `function` of this file gives of its arguments, in a process that ends then and leaves its memory."""
    with started(f"{__name__}:asked", (function, options, *arguments), 1, options.threads) as ranks:
        return ranks.ask()[0]


def asked(function: str, options: Options, *arguments: Any) -> Callable[[], Any]:
    """Runs in the process."""
    from gpt1_ds.launcher import accelerator

    if options.device == "cuda":
        accelerator.use()
    works: dict[str, Any] = {"compiles": _compiles, "checks": _checks, "contender": _contender}
    return partial(works[function], options, *arguments)


def _compiles(options: Options) -> bool:
    from tools.bench.ours import can_compile

    return can_compile(options)


def _checks(options: Options, compiles: bool) -> dict[str, Any]:
    """How far our losses and logits are from those of the peers, of the same weights."""
    from tools.bench.ours import Ours, Text
    from tools.bench.peers import Plain, Transformers, compare

    exact = _config(options, "exact", compiles)
    text, peer = Text(exact), Transformers(exact).to(options.device)
    found = {}
    for name, kind in KINDS.items():
        ours = Ours(_config(options, kind, compiles), text, options.device)
        found[name] = compare(ours, peer, autocast=True)
        if kind == "exact":
            found["plain"] = compare(ours, Plain(exact).to(options.device), autocast=True)
    return found


def _contender(options: Options, name: str, compiles: bool, overrides: tuple[str, ...]) -> dict[str, float]:
    """Its tokens per second, and the memory that it took of a GPU."""
    import torch

    from tools.bench.ours import tokens_per_step

    config = _config(options, KINDS.get(name, "exact"), compiles, *overrides)
    step, repeats = _step(options, name, config), 1 if options.quick else STEPS
    for _ in range(1 if options.quick else WARM_UP):
        step()
    found = rate(step, tokens_per_step(config), options.device, repeats)()
    taken = torch.cuda.max_memory_reserved() / 2**30 if options.device == "cuda" else 0.0
    return {"tokens/s": found, "GiB": taken}


def _step(options: Options, name: str, config: Any) -> Callable[[], Any]:
    """One optimizer step of a contender."""
    import torch

    from tools.bench.loop import Loop
    from tools.bench.ours import Ours, Text
    from tools.bench.peers import Plain, Transformers

    text, device = Text(config), options.device
    if name in KINDS:
        return Ours(config, text, device).step
    base = name.removesuffix(COMPILED)
    model: Any = Transformers(config) if base == TRANSFORMERS else Plain(config)
    masters = PLAIN.get(base, False)
    loop = Loop(model, config.optimizer, text.plain, device, masters)
    form = torch.compile(model, dynamic=False) if base != name else None
    return partial(loop.step, form, autocast=not masters)


def _config(options: Options, kind: str, compiles: bool, *overrides: str) -> Any:
    return ours_config(options, ROWS[options.quick], kind, compiles, *overrides)


def ours_config(options: Options, rows: int, kind: str, compiled: bool, *overrides: str) -> Any:
    from tools.bench.ours import gpt1

    return gpt1(options, rows, f"model.attention={kind}", f"train.compile={'on' if compiled else 'off'}", *overrides)
