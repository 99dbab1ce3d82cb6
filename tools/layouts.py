"""Train the same tiny model on many layouts and compare every one with one process.

    python tools/layouts.py [--family gpt1] [--optimizer adamw] [--steps 20] [--only NAME ...] [--csv FILE]
                            [--patches fast|fixes|none]

Prints a table: largest difference in loss, gradient norm (relative) and in the weights after the last step (relative to
how far training moved them), and whether the batches were the same. tests/parallel/test_layouts.py asserts the bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config.sections import Patches
from gpt1_ds.launcher import launch
from gpt1_ds.scaling.tables import write_table
from tools.families import add_family, configured, family_data, open_workload

# The pinned recipe: learnable text, a rate at which training is not chaotic, warm-up, dropout, clipping that bites
RECIPE = [
    *("model.layers=4", "model.width=64", "model.heads=4", "model.context=64", "run.seed=7"),
    *("train.global_batch=16", "train.micro_batch=4", "optimizer.lr=1e-3", "optimizer.clip=0.5"),
    *("schedule.kind=constant", "schedule.warmup_steps=5"),
]


@dataclass(frozen=True)
class Layout:
    """A name, the ranks it needs and what it changes in the recipe."""

    name: str
    ranks: int
    overrides: list[str] = field(default_factory=list)


def _layout(ranks: int, arguments: str) -> Layout:
    keys = {"tp": "parallel.tensor", "pp": "parallel.pipeline", "zero": "parallel.zero", "mb": "train.micro_batch"}
    flags = {"recompute": "train.recompute=block", "sequence": "parallel.sequence=true"}
    flags["pipelined"] = "parallel.assembly=pipeline"
    overrides = []
    for argument in arguments.split():
        key = argument.rstrip("0123456789")
        overrides.append(flags.get(argument) or f"{keys[key]}={argument.removeprefix(key)}")
    return Layout(arguments or "dp" + str(ranks), ranks, overrides)


ONE = Layout("one process", 1)
LAYOUTS = [
    _layout(1, "zero0"),
    _layout(1, "zero3"),
    _layout(1, "mb1"),
    _layout(1, "mb16"),
    _layout(1, "recompute"),
    _layout(1, "pipelined"),
    _layout(2, ""),
    _layout(2, "zero0"),
    _layout(2, "zero2"),
    _layout(2, "zero3"),
    _layout(2, "zero3 recompute"),
    _layout(2, "tp2"),
    _layout(2, "tp2 zero0 mb8"),
    _layout(2, "tp2 sequence"),
    _layout(2, "pp2"),
    _layout(2, "pp2 recompute mb2"),
    _layout(3, "pp3"),
    _layout(4, "pp4 mb2"),
    _layout(4, "tp4"),
    _layout(4, "tp2 pp2"),
    _layout(4, "tp2 pp2 sequence recompute"),
    _layout(4, "tp2 zero2"),
    _layout(4, "tp2 zero3"),
    _layout(4, "pp2"),
    _layout(4, "tp2 sequence zero3"),
]


@dataclass(frozen=True)
class Trace:
    """What one layout computed: per step loss, gradient norm, batch fingerprint; final and initial weights by name."""

    losses: list[float]
    norms: list[float]
    fingerprints: list[str]
    weights: dict[str, np.ndarray]
    initial: dict[str, np.ndarray]
    seconds: float
    stages: set[tuple[int, int]]  # (number, layers that its ranks hold) of each pipeline stage
    drift: str  # what ranks hold in common and is not the same after the last step; empty: all is


@dataclass(frozen=True)
class Difference:
    """Largest deviations of a layout from one process."""

    loss: float
    norm: float
    weights: float  # of any parameter, relative to the size of its update
    worst: str
    same_batches: bool


def trace(layout: Layout, data: Path, steps: int, extra: Sequence[str] = ()) -> Trace:
    """Run `layout` on real local ranks."""
    overrides = [*RECIPE, f"data.path={data}", f"train.steps={steps}", *layout.overrides, *extra]
    began = time.monotonic()
    ranks = launch.run("tools.layouts:train_here", (overrides, steps), layout.ranks)
    first = ranks[0]
    return Trace(
        first["losses"],
        first["norms"],
        first["fingerprints"],
        whole_weights([rank["weights"] for rank in ranks]),
        whole_weights([rank["initial"] for rank in ranks]),
        time.monotonic() - began,
        {rank["stage"] for rank in ranks},
        first["drift"],
    )


def compare(one: Trace, other: Trace) -> Difference:
    """Key biases are left out: softmax ignores them, their gradient is pure rounding and Adam scales it up."""
    deviations = {}
    for name, weight in one.weights.items():
        moved = weight - one.initial[name]
        apart = other.weights[name] - weight
        if name.endswith("qkv.bias"):
            heads = apart.reshape(4, 3, -1)
            moved, apart = moved.reshape(4, 3, -1)[:, ::2], heads[:, ::2]
        deviations[name] = float(np.linalg.norm(apart) / np.linalg.norm(moved))
    worst = max(deviations, key=deviations.__getitem__)
    return Difference(
        max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)),
        max(abs(a / b - 1) for a, b in zip(other.norms, one.norms, strict=True)),
        deviations[worst],
        worst,
        one.fingerprints == other.fingerprints,
    )


def train_here(overrides: list[str], steps: int) -> dict[str, Any]:
    """Runs on every rank: the product's own process groups, workload and engine, without a run folder."""
    from gpt1_ds.checkpoint.replicas import Replicas
    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.training import schedule

    config = configured(overrides)
    with contextlib.ExitStack() as stack:
        if config.parallel.sequence:
            stack.enter_context(sequence_parallel_on_cpu())
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        connect(120)
        groups = ProcessGroups(config)
        workload = open_workload(config, groups)
        config = workload.config
        engine = build_engine(config, groups, objective=workload.objective)
        initial = pieces(engine, "master")
        losses, norms, fingerprints = [], [], []
        for step in range(1, steps + 1):
            batch = workload.batch(step, step)
            rate = schedule.learning_rate(config.schedule, config.optimizer.lr, step, steps)
            result = engine.step(batch.micro_batches, rate)
            total = torch.tensor([batch.fingerprint])
            dist.all_reduce(total, group=groups.control_group)
            losses.append(result.loss)
            norms.append(result.grad_norm)
            fingerprints.append(f"{int(total) % 2**64:016x}")
        difference = Replicas(engine).compare()
        module = engine.deepspeed.module
        layers = module.parts if config.parallel.pipelined else [0, len(engine.architecture.layers)]
        here = groups.pipeline_rank, layers[groups.pipeline_rank + 1] - layers[groups.pipeline_rank]
        result_here = {"stage": here, "losses": losses, "norms": norms, "fingerprints": fingerprints}
        result_here["drift"] = "" if difference is None else str(difference)
        weights = pieces(engine, "master")
        dist.destroy_process_group()
    return {**result_here, "weights": weights, "initial": initial}


def pieces(engine: Any, kind: str, owned: bool = True) -> list[tuple[Any, Any, np.ndarray]]:
    """This rank's (parameter info, slice, values) of `master`, `exp_avg` or `exp_avg_sq`; all copies unless `owned`."""
    from gpt1_ds.checkpoint.shard import slice_of
    from gpt1_ds.engine import master_weights

    found = []
    for fragment in master_weights.fragments(engine):
        if not owned or master_weights.is_saved_here(engine, fragment.info):
            values = fragment.master if kind == "master" else fragment.moments[kind]
            found.append((fragment.info, slice_of(fragment), values.cpu().numpy().copy()))
    return found


def whole_weights(ranks: list[list[tuple[Any, Any, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Every parameter at its full size, from all ranks' pieces (parameter info, slice, values)."""
    import torch

    from gpt1_ds.checkpoint.shard import Geometry, Slice, assemble

    pieces: dict[str, list[tuple[Any, np.ndarray]]] = {}
    shapes = {}
    for info, part, values in (piece for rank in ranks for piece in rank):
        pieces.setdefault(info.name, []).append((part, values))
        shapes[info.name] = info
    whole = {}
    for name, parts in pieces.items():
        info = shapes[name]
        values_of = {id(part): values for part, values in parts}
        stop = info.shape[info.dim] if info.dim is not None else 1
        want = Slice(0, stop, 0, int(np.prod(info.shape)))
        numbered = [Slice(p.start, p.stop, p.offset, p.count, key=str(id(p))) for p, _ in parts]
        read = lambda part, first, count, of=values_of: torch.from_numpy(of[int(part.key)][first : first + count])  # noqa: E731
        whole[name] = assemble(Geometry.of(info.shape, info.dim), want, numbered, read).view(info.shape).numpy()
    return whole


@contextlib.contextmanager
def sequence_parallel_on_cpu() -> Iterator[None]:
    """Megatron allocates sequence-parallel buffers on the current CUDA device; let that be the CPU."""
    import torch

    real = torch.cuda.current_device
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    add_family(parser, tasks=True)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument(
        "--patches", default="fast", choices=get_args(Patches), help="train.deepspeed_patches of layouts"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--plot", type=Path, help="draw the loss curves of fp32 and bf16 over one another")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        data, family = family_data(Path(folder), options.family)
        if options.plot:
            plot_precisions(data, options.steps, options.plot)
            return
        family = [*family, f"optimizer.name={options.optimizer}"]
        one = trace(ONE, data, options.steps, family)
        rows = []
        print(f"{'layout':32} {'ranks':>5} {'loss':>9} {'norm':>9} {'weights':>9} {'batches':>8} {'seconds':>8}")
        for layout in LAYOUTS:
            if options.only and layout.name not in options.only:
                continue
            if options.precision != "fp32" and "zero0" in layout.name:
                continue
            arguments = [f"train.precision={options.precision}", f"train.deepspeed_patches={options.patches}"]
            other = trace(layout, data, options.steps, [*family, *arguments])
            apart = compare(one, other)
            print(
                f"{layout.name:32} {layout.ranks:5} {apart.loss:9.1e} {apart.norm:9.1e} {apart.weights:9.1e} "
                f"{'same' if apart.same_batches else 'DIFFER':>8} {other.seconds:8.1f}",
                flush=True,
            )
            rows.append({"layout": layout.name, "ranks": layout.ranks, **asdict(apart)})
        if options.csv:
            write_table(options.csv, rows[0], rows)


def plot_precisions(data: Path, steps: int, path: Path) -> None:
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 3.5))).subplots()
    others = ONE, _layout(4, "tp2 pp2"), _layout(2, "zero3")
    for precision, layout in [("fp32", ONE), *(("bf16", other) for other in others)]:
        losses = trace(layout, data, steps, [f"train.precision={precision}"]).losses
        axes.plot(range(1, steps + 1), losses, label=f"{precision}, {layout.name}", lw=1, alpha=0.8)
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main()
