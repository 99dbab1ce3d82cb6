"""Save on each of eight layouts, resume on each of them: the next five losses against a run that was not interrupted.

    python tools/resume_matrix.py [--family gpt1] [--precision fp32|bf16] [--only NAME ...]

Prints a table: rows are the layouts that saved after ten steps, columns those that went on; a cell is the largest
relative difference of losses 11 to 15 from one process, dropout on. Masters and moments are compared tensor by
tensor with what is in the checkpoint: a cell says WRONG when any bit differs. tests/parallel/test_resume_matrix.py
asserts the bounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.launcher import launch
from gpt1_ds.scaling.tables import write_table
from tools.families import add_family, configured, family_data, open_workload
from tools.layouts import ONE, RECIPE, Layout, _layout, trace

SAVED, MORE = 10, 5
LAYOUTS = [
    _layout(1, "zero1"),
    _layout(2, "zero0"),
    _layout(2, "zero2"),
    _layout(2, "pp2"),
    _layout(2, "tp2 pipelined"),
    _layout(4, "tp2 zero3"),
    _layout(4, "pp4 mb2"),
    _layout(8, "tp2 pp2 mb2"),
]
BF16_LAYOUTS = [layout for layout in LAYOUTS if "zero0" not in layout.name]  # it accumulates in bf16, and is refused
QUIET = ["train.eval_every=0", "checkpoint.every=0", "train.eval_batches=1", f"train.steps={SAVED}"]


def save_on(
    layout: Layout, data: Path, folder: Path, precision: str, steps: int = SAVED, extra: Sequence[str] = ()
) -> Path:
    """Train `steps` steps with the product's own command; its checkpoint."""
    name = layout.name.replace(" ", "-")
    arguments = [*RECIPE, *QUIET, *layout.overrides, f"data.path={data}", f"run.dir={folder}", f"run.name={name}"]
    arguments += [f"train.steps={steps}", f"train.precision={precision}"]
    config = configured([*arguments, *extra])
    life = "finetuning:finetune" if config.task else "pretraining:pretrain"
    assert launch.launch(f"gpt1_ds.training.{life}", (config,), layout.ranks) == 0
    return find_checkpoint(folder / name)


def resume_on(
    layout: Layout,
    data: Path,
    checkpoints: list[Path],
    precision: str,
    saved: int = SAVED,
    more: int = MORE,
    extra: Sequence[str] = (),
) -> list[tuple[list[float], str]]:
    """Per checkpoint: the `more` losses after it, and the name of a tensor that was not restored to the bit, or ''."""
    arguments = [*RECIPE, *QUIET, *layout.overrides, f"data.path={data}", f"train.precision={precision}", *extra]
    ranks = launch.run("tools.resume_matrix:resume_here", (arguments, checkpoints, saved, more), layout.ranks)
    return [
        (ranks[0][number][0], next((rank[number][1] for rank in ranks if rank[number][1]), ""))
        for number in range(len(checkpoints))
    ]


def resume_here(overrides: list[str], checkpoints: list[Path], saved: int, more: int) -> list[tuple[list[float], str]]:
    """Runs on every rank: one engine that is loaded with one checkpoint after the other."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.checkpoint.restore import restore, verify_checkpoint
    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.training import schedule

    config = configured(overrides)
    torch.set_num_threads(1)
    connect(120)
    groups = ProcessGroups(config)
    workload = open_workload(config, groups)
    config = workload.config
    engine = build_engine(config, groups, objective=workload.objective)
    results = []
    for checkpoint in checkpoints:
        verify_checkpoint(engine, checkpoint)
        restore(engine, config, checkpoint)
        wrong = _not_restored(engine, config, checkpoint)
        losses = []
        for step in range(saved + 1, saved + more + 1):
            batch = workload.batch(step, step)
            rate = schedule.learning_rate(config.schedule, config.optimizer.lr, step, saved + more)
            losses.append(engine.step(batch.micro_batches, rate).loss)
        results.append((losses, wrong))
    dist.destroy_process_group()
    return results


def _not_restored(engine: Any, config: Any, checkpoint: Path) -> str:
    """The first tensor whose part on this rank is not that part of the whole tensor in the checkpoint, bit for bit."""
    import torch

    from gpt1_ds.checkpoint.reader import StateReader
    from gpt1_ds.engine import master_weights

    reader = StateReader(checkpoint)
    for fragment in master_weights.fragments(engine):
        info = fragment.info
        for kind, values in {"master": fragment.master, **fragment.moments}.items():
            whole = reader.whole(kind, info)
            here = whole if info.dim is None else whole.narrow(info.dim, info.start, info.stop - info.start)
            if not torch.equal(here.reshape(-1)[fragment.offset : fragment.offset + len(values)], values):
                return f"{kind} of {info.name}"
        for kind, values in fragment.factors.items():
            if not torch.equal(reader.factor(kind, info, len(values)), values):
                return f"{kind} of {info.name}"
        if len(fragment.moments) + len(fragment.factors) != _kept(config.optimizer.name, info):
            return f"moments of {info.name}"
    return ""


def _kept(optimizer: str, info: Any) -> int:
    """How many moments or factors an optimizer keeps of a parameter."""
    if optimizer == "adafactor":
        return min(2, len(info.shape))
    return 1 if optimizer == "muon" and info.matrices is not None else 2


def relative(losses: list[float], wanted: list[float]) -> float:
    return max(abs(found / want - 1) for found, want in zip(losses, wanted, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_family(parser, tasks=True)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="layouts that resume")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        data, family = family_data(Path(folder), options.family)
        layouts = LAYOUTS if options.precision == "fp32" else BF16_LAYOUTS
        wanted = trace(ONE, data, SAVED + MORE, family).losses[SAVED:]
        runs, precision = Path(folder) / "runs", options.precision
        saved = [save_on(layout, data, runs, precision, extra=family) for layout in layouts]
        targets = [layout for layout in layouts if not options.only or layout.name in options.only]
        columns = [resume_on(layout, data, saved, precision, extra=family) for layout in targets]
    print("| saved on \\ resumed on | " + " | ".join(f"{t.name} ({t.ranks})" for t in targets) + " |")
    print("|---" * (len(targets) + 1) + "|")
    rows = []
    for number, layout in enumerate(layouts):
        cells = [column[number] for column in columns]
        texts = ["WRONG " + wrong if wrong else f"{relative(losses, wanted):.1e}" for losses, wrong in cells]
        print(f"| {layout.name} ({layout.ranks}) | " + " | ".join(texts) + " |")
        rows += [
            {"saved_on": layout.name, "ranks": layout.ranks, "resumed_on": target.name, "resumed_ranks": target.ranks}
            | {"wrong": wrong, "loss_difference": relative(losses, wanted)}
            for target, (losses, wrong) in zip(targets, cells, strict=True)
        ]
    if options.csv:
        write_table(options.csv, rows[0], rows)


if __name__ == "__main__":
    main()
