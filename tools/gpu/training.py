"""Whole optimizer steps of GPT-1 at full size, 64 x 512 tokens with dropout 0.1 in bf16.

Our engine in its variants, and what others write. Each is a process of its own, because it takes tens of gigabytes.
"""

from __future__ import annotations

import gc
import gzip
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args, get_type_hints

import torch

from gpt1_ds.architecture.count import flops_per_token
from gpt1_ds.config import Config
from gpt1_ds.config.sections import TrainConfig
from gpt1_ds.plan import memory
from tools.bench.loop import Loop
from tools.bench.ours import Ours, Text, gpt1, tokens_per_step
from tools.bench.peers import Plain, Transformers
from tools.bench.rows import Options, wait_for
from tools.gpu.measuring import three
from tools.gpu.record import Contact

ROWS, TINY_ROWS = 64, 2
WARM_UP = 6  # steps: two of each kind, its capture and its proof, and one with the graph
TRACE_BYTES = 15 << 20
MOST_OPERATORS = 45


def options(contact: Contact) -> Options:
    return Options(contact.device, quick=contact.tiny)


def rows(contact: Contact) -> int:
    return TINY_ROWS if contact.tiny else ROWS


def with_rows(contact: Contact, most: int, measure: Callable[[int], None]) -> None:
    """Calls `measure` with `most` rows, or with half or a quarter of them where the GPU's memory runs out. Raises
    RuntimeError where it always does.
    """
    for count in (most, most // 2, most // 4):
        try:
            return measure(count)
        except torch.OutOfMemoryError:
            contact.fact("out of memory, rows", count)
        gc.collect()  # what the error's traceback kept
        torch.cuda.empty_cache()
    raise RuntimeError(f"out of memory even with {most // 4} rows")


def graphs() -> list[str]:
    """Returns the arguments that ask for CUDA graphs, whether or not they were proven here before."""
    kinds = get_args(get_type_hints(TrainConfig)["cuda_graphs"])
    return ["train.cuda_graphs=on"] if "on" in kinds else []


def timed(
    contact: Contact,
    name: str,
    step: Callable[[], Any],
    tokens: int,
    warm_up: int,
    ready: Callable[[], None] | None = None,
    **facts: Any,
) -> None:
    """Records three series of `step`, in tokens per second, after first steps, whose seconds and losses are kept. What
    is known is written at once: a phase may be killed at any time.
    """
    contact.fact(f"{name}, before its first step", facts)
    firsts, losses = [], []
    for number in range(1, warm_up + 1):
        began = time.perf_counter()
        losses.append(float(step()))
        wait_for(contact.device)
        firsts.append(round(time.perf_counter() - began, 3))
        contact.fact(f"{name}, step {number}", {"seconds": firsts[-1], "loss": losses[-1]})
    if ready is not None:
        ready()
    values = three(contact, name, "tokens/s", step, tokens)
    contact.series(name, "tokens/s", values, tokens=tokens, first_steps_s=firsts, losses=losses, **used(), **facts)


def used() -> dict[str, float]:
    """Returns the peak memory of this process on the GPU, GiB; nothing on a CPU."""
    if not torch.cuda.is_available():
        return {}
    peaks = {"allocated_gib": torch.cuda.max_memory_allocated(), "reserved_gib": torch.cuda.max_memory_reserved()}
    return {name: round(size / 2**30, 3) for name, size in peaks.items()}


def ours(contact: Contact, *arguments: str) -> None:
    """Measures our engine, with `arguments` over its usual settings, and its memory beside the plan's."""
    config = gpt1(options(contact), rows(contact), *arguments)
    began = time.perf_counter()
    text = Text(config)
    engine = Ours(config, text, contact.device)
    facts = {"build_s": round(time.perf_counter() - began, 1), "rows": config.train.global_batch, **_planned(config)}
    contact.fact("ours, built", facts)
    facts["first_loss"] = first_loss(engine, text.ours(0))
    ready = partial(tell_graphs, contact, engine)
    timed(contact, "ours", engine.step, tokens_per_step(config), WARM_UP, ready, **facts)


def graphed(contact: Contact) -> None:
    """Measures compiled blocks, each micro-batch a CUDA graph."""
    ours(contact, *graphs())


def eager_graph(contact: Contact) -> None:
    """Measures a CUDA graph of blocks that are not compiled."""
    ours(contact, "train.compile=off", *graphs())


def micro_batches(contact: Contact) -> None:
    """Measures a step of eight micro-batches, each a CUDA graph."""
    ours(contact, f"train.micro_batch={max(1, rows(contact) // 8)}", *graphs())


def graph_facts(engine: Ours) -> dict[str, Any]:
    """Returns how many CUDA graphs an engine uses, and why it uses none."""
    passes = getattr(engine.engine, "graphs", None)
    return {"count": passes.count, "problem": passes.problem} if passes else {"count": 0, "problem": "none are made"}


def tell_graphs(contact: Contact, engine: Ours) -> None:
    """Records the graphs of an engine whose first steps are done."""
    contact.fact("graphs", graph_facts(engine))


def first_loss(engine: Ours, batches: Sequence[Any]) -> float:
    """Returns the loss of a batch without dropout, before training; the memory that it takes is not counted."""
    with torch.compiler.set_stance("force_eager"):  # graphs for evaluation would never be used again
        found = float(engine.engine.evaluate(batches))
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    return found


def _planned(config: Config) -> dict[str, Any]:
    assert config.model.vocab_size is not None, "it is known here"
    found = memory.peak(config, 1, config.model.vocab_size, "cuda")
    flops = flops_per_token(config.model, config.model.vocab_size)
    return {"flops_per_token": flops, "planned_gib": round(found.peak / 2**30, 3), "planned_at": found.peak_at}


def transformers(contact: Contact) -> None:
    """Measures OpenAIGPTLMHeadModel in bf16 autocast with fused AdamW, as people run it."""

    def measure(count: int) -> None:
        config = gpt1(options(contact), count)
        model = Transformers(config)
        _loop(contact, "transformers", config, model, model, attention=model.attention)

    with_rows(contact, rows(contact), measure)


def plain(contact: Contact, compiled: bool) -> None:
    """Measures a hand-written GPT-1 with SDPA and its dropout, in bf16 autocast; where it is compiled also with bf16
    weights on fp32 masters. A ratio takes the faster one.
    """
    backend = "inductor" if contact.device == "cuda" else "eager"  # a CPU shows that it is traced

    def measure(count: int, masters: bool) -> None:
        torch.compiler.reset()  # what was compiled for the other one
        config = gpt1(options(contact), count)
        model = Plain(config)
        form = torch.compile(model, dynamic=False, backend=backend) if compiled else model
        name = f"plain{', compiled' * compiled}{', fp32 masters' * masters}"
        _loop(contact, name, config, model, form, masters)

    for masters in (False, True) if compiled else (False,):
        with_rows(contact, rows(contact), partial(measure, masters=masters))
        gc.collect()  # the model before it
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _loop(
    contact: Contact, name: str, config: Config, model: Any, form: Any, masters: bool = False, **facts: Any
) -> None:
    text = Text(config)
    loop = Loop(model, config.optimizer, text.plain, contact.device, masters)
    first = evaluated(model, text.plain(0), contact.device)
    step = partial(loop.step, form, autocast=not masters)
    facts |= {"first_loss": first, "rows": config.train.micro_batch}
    timed(contact, name, step, tokens_per_step(config), WARM_UP // 2, **facts)


@torch.no_grad()
def evaluated(model: Any, batches: Any, device: str) -> float:
    """Returns the loss of a batch without dropout; the model is in training mode afterwards."""
    model.eval()
    with torch.autocast(device, torch.bfloat16):
        losses = [model(*(part.to(device) for part in batch)) for batch in batches]
    model.train()
    return float(torch.stack(losses).mean())


def profile(contact: Contact) -> None:
    """Records the milliseconds of each operator in a step without graphs, and a trace for a browser."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    config = gpt1(options(contact), rows(contact), "train.cuda_graphs=off")
    engine = Ours(config, Text(config), contact.device)
    for _ in range(4):
        engine.step()
    cuda, steps = contact.device == "cuda", 2
    with profiler(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
        for _ in range(steps):
            engine.step()
        wait_for(contact.device)
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    operators = sorted(found.key_averages(), key=lambda one: -getattr(one, key))[:MOST_OPERATORS]
    table = [[one.key[:100], one.count / steps, round(getattr(one, key) / 1e3 / steps, 4)] for one in operators]
    contact.fact("operators: calls, ms a step", table)
    trace = contact.work / "trace.json"
    found.export_chrome_trace(str(trace))
    packed = contact.out / "trace.json.gz"
    with trace.open("rb") as source, gzip.open(packed, "wb", 6) as target:
        shutil.copyfileobj(source, target)
    trace.unlink()
    if packed.stat().st_size > TRACE_BYTES:
        contact.fact("the trace is left out, bytes", packed.stat().st_size)
        packed.unlink()
