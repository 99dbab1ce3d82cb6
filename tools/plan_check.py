"""The planner beside measurement: memory and step time of real training on this machine's processors.

    python tools/plan_check.py [--memory] [--time] [--choice] [--only TEXT] [--machine NAME] [--csv FILE]

Without a choice of parts all three are done; take --time and --choice only on a quiet machine, after
`gpt1-ds plan --calibrate`. Every configuration trains a few steps in fresh ranks.

    memory  VmHWM of each rank less its resident memory once libraries are imported and the process groups stand, beside
            the planned peak. Freed blocks go back to the system at once here, so that this is what is alive, as a GPU's
            allocator counts it; a run keeps such blocks for speed, and its own VmHWM is up to a third larger.
    time    the median step beside the planned one.
    choice  the planner's first layout of 2 and of 4 ranks beside the fastest measured one of the same model and batch.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.architecture.head import pretraining_head
from gpt1_ds.config import Config, load, with_vocabulary
from gpt1_ds.data.loader import Rows
from gpt1_ds.data.rows import TextRows
from gpt1_ds.data.windows import Int64s
from gpt1_ds.launcher import launch
from gpt1_ds.objectives.base import TextObjective
from gpt1_ds.objectives.masked import Masked, MaskedText
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.objectives.spans import Spans, SpanText
from gpt1_ds.plan import machine
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.memory import memory
from gpt1_ds.plan.search import search
from gpt1_ds.scaling.tables import write_table
from tools.layouts import sequence_parallel_on_cpu

VOCABULARY = 8000
SMALL = ["model.layers=4", "model.width=768", "model.heads=12", "model.context=256"]
WIDE = ["model.layers=2", "model.width=1280", "model.heads=20", "model.context=256"]
DEEP = ["model.layers=12", "model.width=512", "model.heads=8", "model.context=256"]
GPT1 = ["model.layers=12", "model.width=768", "model.heads=12", "model.context=512"]
MASKED = [
    *("model.mask=bidirectional", "model.embedding_norm=true", "model.activation=gelu", "model.head=masked"),
    "objective.kind=masked",
]
BERT = [*MASKED, "model.segments=2", "objective.next_sentence=true", "data.text=pairs"]
ROBERTA = [*MASKED, "data.text=full_sentences"]
T5 = [
    *("model.kind=encoder_decoder", "model.norm=pre", "model.norm_kind=rms", "model.positions=relative"),
    *("model.biases=false", "model.attention_scale=one", "model.init=t5", "model.activation=relu"),
    *("model.logit_scale=inverse_root_width", "model.ffn_dropout=0.1", "objective.kind=spans"),
]
BF16, FP32 = ["train.precision=bf16"], ["train.precision=fp32"]
MUON = ["optimizer.name=muon"]
CHOICE = ["model.layers=4", "model.width=256", "model.heads=4", "model.context=256", "train.global_batch=16"]


def batch(rows: int, micro: int) -> list[str]:
    return [f"train.global_batch={rows}", f"train.micro_batch={micro}"]


def layout(tensor: int = 1, pipeline: int = 1, zero: int = 1, recompute: bool = False) -> list[str]:
    overrides = [f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"parallel.zero={zero}"]
    return overrides + ["train.recompute=block"] * recompute


CASES: dict[str, tuple[int, list[str]]] = {
    "small fp32 zero0": (1, [*SMALL, *FP32, *batch(4, 4), *layout(zero=0)]),
    "small fp32 zero1": (1, [*SMALL, *FP32, *batch(8, 4), *layout()]),
    "small fp32 zero3": (1, [*SMALL, *FP32, *batch(8, 4), *layout(zero=3)]),
    "small bf16 zero1": (1, [*SMALL, *BF16, *batch(16, 8), *layout()]),
    "small bf16 recompute": (1, [*SMALL, *BF16, *batch(8, 8), *layout(recompute=True)]),
    "small bf16 zero2": (1, [*SMALL, *BF16, *batch(8, 8), *layout(zero=2)]),
    "wide fp32 zero1": (1, [*WIDE, *FP32, *batch(4, 4), *layout()]),
    "wide fp32 recompute": (1, [*WIDE, *FP32, *batch(8, 8), *layout(recompute=True)]),
    "deep bf16 zero1": (1, [*DEEP, *BF16, *batch(8, 4), *layout()]),
    "deep fp32 recompute": (1, [*DEEP, *FP32, *batch(8, 8), *layout(recompute=True)]),
    "gpt1 bf16 zero1": (1, [*GPT1, *BF16, *batch(4, 2), *layout()]),
    "gpt1 bf16 recompute": (1, [*GPT1, *BF16, *batch(4, 2), *layout(recompute=True)]),
    "dp2 fp32 zero0": (2, [*SMALL, *FP32, *batch(8, 2), *layout(zero=0)]),
    "dp2 fp32 zero1": (2, [*SMALL, *FP32, *batch(8, 2), *layout()]),
    "dp2 fp32 zero2": (2, [*SMALL, *FP32, *batch(8, 2), *layout(zero=2)]),
    "dp2 fp32 zero3": (2, [*SMALL, *FP32, *batch(8, 2), *layout(zero=3)]),
    "dp2 bf16 zero1": (2, [*WIDE, *BF16, *batch(16, 4), *layout()]),
    "dp2 bf16 zero2": (2, [*WIDE, *BF16, *batch(16, 4), *layout(zero=2)]),
    "dp2 bf16 zero3": (2, [*WIDE, *BF16, *batch(16, 4), *layout(zero=3)]),
    "dp2 fp32 zero3 recompute": (2, [*WIDE, *FP32, *batch(8, 4), *layout(zero=3, recompute=True)]),
    "tp2 fp32": (2, [*WIDE, *FP32, *batch(8, 4), *layout(tensor=2)]),
    "tp2 bf16": (2, [*WIDE, *BF16, *batch(16, 8), *layout(tensor=2)]),
    "tp2 fp32 recompute": (2, [*SMALL, *FP32, *batch(16, 8), *layout(tensor=2, recompute=True)]),
    "pp2 fp32": (2, [*WIDE, *FP32, *batch(8, 2), *layout(pipeline=2)]),
    "pp2 bf16": (2, [*DEEP, *BF16, *batch(16, 4), *layout(pipeline=2)]),
    "pp2 bf16 recompute": (2, [*WIDE, *BF16, *batch(16, 4), *layout(pipeline=2, recompute=True)]),
    "tp2 pp2 fp32": (4, [*WIDE, *FP32, *batch(32, 8), *layout(tensor=2, pipeline=2)]),
    "tp2 dp2 fp32 zero3": (4, [*WIDE, *FP32, *batch(8, 2), *layout(tensor=2, zero=3)]),
    "pp2 dp2 bf16": (4, [*GPT1, *BF16, *batch(8, 2), *layout(pipeline=2)]),
    "bert fp32 zero1": (1, [*SMALL, *BERT, *FP32, *batch(8, 4), *layout()]),
    "bert pp2 fp32": (2, [*WIDE, *BERT, *FP32, *batch(8, 2), *layout(pipeline=2)]),
    "bert dp2 zero3 recompute": (2, [*SMALL, *BERT, *FP32, *batch(8, 4), *layout(zero=3, recompute=True)]),
    "roberta fp32 zero2": (1, [*SMALL, *ROBERTA, *FP32, *batch(8, 8), *layout(zero=2)]),
    "roberta tp2 sequence": (2, [*SMALL, *ROBERTA, *FP32, *batch(8, 4), *layout(tensor=2), "parallel.sequence=true"]),
    "t5 fp32 zero1": (1, [*WIDE, *T5, *FP32, *batch(8, 4), *layout()]),
    "t5 pp2 fp32": (2, [*WIDE, *T5, *FP32, *batch(8, 2), *layout(pipeline=2)]),
    "t5 tp2 fp32": (2, [*WIDE, *T5, *FP32, *batch(8, 4), *layout(tensor=2)]),
    "t5 dp2 zero3 recompute": (2, [*SMALL, *T5, *FP32, *batch(8, 4), *layout(zero=3, recompute=True)]),
    "muon fp32 zero1": (1, [*SMALL, *FP32, *MUON, *batch(8, 4), *layout()]),
    "muon dp2 fp32 zero0": (2, [*SMALL, *FP32, *MUON, *batch(8, 2), *layout(zero=0)]),
    "muon tp2 bf16": (2, [*WIDE, *BF16, *MUON, *batch(16, 8), *layout(tensor=2)]),
    "dp4 bf16 zero1": (4, [*SMALL, *BF16, *batch(32, 8), *layout()]),
}


@dataclass(frozen=True)
class Row:
    """Planned and measured: MiB of each rank above its baseline, or seconds of a step."""

    name: str
    part: str
    planned: list[float]
    measured: list[float]

    @property
    def errors(self) -> list[float]:
        return [plan / real - 1 for plan, real in zip(self.planned, self.measured, strict=True)]

    def lines(self) -> list[dict[str, Any]]:
        """As rows of a CSV file: one for each rank that was measured."""
        pairs = enumerate(zip(self.planned, self.measured, strict=True))
        here = {"configuration": self.name, "part": self.part}
        return [here | {"rank": rank, "planned": plan, "measured": real} for rank, (plan, real) in pairs]

    def __str__(self) -> str:
        numbers = ", ".join(
            f"{plan:.4g} / {real:.4g} ({error:+.1%})"
            for plan, real, error in zip(self.planned, self.measured, self.errors, strict=True)
        )
        return f"{self.name:26} {self.part:7} planned / measured: {numbers}"


@sequence_parallel_on_cpu()
def train(overrides: list[str], steps: int, keep: bool) -> dict[str, Any]:
    """On every rank: peak memory above the baseline (MiB) and the seconds of each step."""
    import torch.distributed as dist

    from gpt1_ds.engine.build import batch_shape, build_engine, training_batches
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.engine.session import keep_freed_blocks, share_cores

    config = load([], overrides)
    share_cores()
    if keep:
        keep_freed_blocks()
    else:
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: larger blocks go back when they are freed
    connect(300)
    groups = ProcessGroups(config)
    baseline = resident("VmRSS")
    objective = objective_of(config)
    engine = build_engine(with_vocabulary(config, VOCABULARY), groups, objective=objective)
    shape, draw, seconds = batch_shape(config, groups), np.random.default_rng(0), []
    for step in range(1, steps + 1):
        rows = [full_rows(config, draw, row_B) for row_B in shape.rows()]
        batches = training_batches(objective, rows, config.run.seed, step)
        dist.barrier()
        began = time.perf_counter()
        engine.step(batches, 1e-4)
        dist.barrier()
        seconds.append(time.perf_counter() - began)
    peak = resident("VmHWM")
    dist.destroy_process_group()
    return {"peak": (peak - baseline) / 2**20, "baseline": baseline / 2**20, "seconds": seconds}


def objective_of(config: Config) -> TextObjective:
    """That of pre-training, with the first id for <mask>, the last ones for sentinels."""
    if config.objective.kind == "causal":
        return pretraining_objective(config)
    if config.objective.kind == "spans":
        return Spans(config.objective, config.model, SpanText(last=VOCABULARY - 1, end=1, pad=0, key=0))
    return Masked(config.objective, pretraining_head(config), MaskedText(0, np.arange(1, VOCABULARY), key=0))


def full_rows(config: Config, draw: np.random.Generator, row_B: Int64s) -> Rows | TextRows:
    """Random tokens, and no padding."""
    tokens_BT = draw.integers(0, VOCABULARY, (len(row_B), config.row.text + 1))
    if config.objective.kind != "masked":
        return Rows(tokens_BT, row_B, np.arange(config.train.global_batch))
    lengths_G = np.full(config.train.global_batch, config.model.context)
    return TextRows.of_windows(tokens_BT, row_B, row_B, lengths_G)


def resident(field: str) -> int:
    """Bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def measured(overrides: list[str], ranks: int, steps: int, keep: bool) -> list[dict[str, Any]]:
    return launch.run("tools.plan_check:train", (overrides, steps, keep), ranks)


def check_memory(name: str, ranks: int, overrides: list[str]) -> Row:
    """Checks the memory of one rank of each stage: the rank that measured most."""
    config = load([], overrides)
    found = measured(overrides, ranks, 2, keep=False)  # moments are there from the second step on
    planned = memory(config, ranks, VOCABULARY, "cpu")
    share = ranks // len(planned)
    peaks = [max(one["peak"] for one in found[i * share : (i + 1) * share]) for i in range(len(planned))]
    return Row(name, "memory", [stage.peak / 2**20 for stage in planned], peaks)


def check_time(name: str, ranks: int, overrides: list[str], here: machine.Machine) -> Row:
    found = measured(overrides, ranks, 6, keep=True)
    return Row(name, "time", [cost(load([], overrides), ranks, VOCABULARY, here).step], [step_seconds(found)])


def step_seconds(found: list[dict[str, Any]]) -> float:
    """The median step behind the first two, of the slowest rank."""
    return max(statistics.median(one["seconds"][2:]) for one in found)


def check_choice(ranks: int, here: machine.Machine, rounds: int = 3) -> tuple[float, str]:
    """(how much slower the planner's first layout is than the fastest measured one, in words)."""
    config: Config = load([], CHOICE)
    ranked = search(config, ranks, VOCABULARY, here, 1 << 40).ranked
    field = {one.values["pipeline"]: one for one in reversed(ranked)}  # the best of each kind, then the best of all
    field |= {("tensor", one.values["tensor"]): one for one in reversed(ranked)}
    field |= {("zero", one.values["zero"]): one for one in reversed(ranked)}
    rivals = {str(one): one for one in [*ranked[:5], *field.values()]}
    times: dict[str, list[float]] = {}
    for _ in range(rounds):  # interleaved, so that a slow minute hits all of them
        for name, one in rivals.items():
            seconds = step_seconds(measured([*CHOICE, *one.overrides()], ranks, 6, keep=True))
            times.setdefault(name, []).append(seconds)
    medians = {name: statistics.median(some) for name, some in times.items()}
    first, best = str(ranked[0]), min(medians, key=lambda name: medians[name])
    slower = medians[first] / medians[best] - 1
    listing = "".join(f"\n    {seconds:.4f} s  {name}" for name, seconds in sorted(medians.items(), key=lambda x: x[1]))
    return slower, f"{ranks} ranks: first choice {first} is {slower:.1%} slower than the fastest, {best}{listing}"


def main() -> None:
    options = arguments()
    everything = not (options.memory or options.time or options.choice)
    here = machine.find_machine(options.machine, "cpu")
    rows: list[Row] = []
    for name, (ranks, overrides) in CASES.items():
        if options.only and options.only not in name:
            continue
        if options.memory or everything:
            rows.append(check_memory(name, ranks, overrides))
            print(rows[-1], flush=True)
        if options.time or everything:
            rows.append(check_time(name, ranks, overrides, here))
            print(rows[-1], flush=True)
    for part in ("memory", "time"):
        errors = [abs(error) for row in rows if row.part == part for error in row.errors]
        if errors:
            print(f"{part}: mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}, {len(errors)} peaks")
    for ranks in (2, 4) if options.choice or everything else ():
        print(check_choice(ranks, here)[1])
    if options.csv:
        lines = [line for row in rows for line in row.lines()]
        write_table(options.csv, lines[0], lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("memory", "time", "choice"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--only", metavar="TEXT", help="configurations whose name contains it")
    parser.add_argument(
        "--machine", metavar="NAME", help="preset or file (default: what --calibrate measured, else cpu)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write memory and times there, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
