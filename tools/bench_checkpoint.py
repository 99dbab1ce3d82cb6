"""What saving and loading GPT-1 (117M, bf16 with fp32 masters) costs, side by side with plain writing and reading.

    python tools/bench_checkpoint.py stall [--rounds 5]
    python tools/bench_checkpoint.py resume

`stall`: seconds for which training stands still per save, in the foreground and in the background, beside torch.save
and fsync of the same tensors and DeepSpeed's own save; and how much a background save slows the 20 steps around it.
`resume`: a checkpoint written by TP2 x PP2 x DP2 (eight ranks, ZeRO 1) loaded on one fresh rank, and back: time beside
reading the same bytes into memory, and peak memory beside that of a training step. All rounds are interleaved.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import load
from gpt1_ds.launcher import launch
from tools.families import make_data

VOCABULARY = 40482
BASE = [
    "train.global_batch=8",
    "train.micro_batch=1",
    "train.precision=bf16",
    "model.vocab_size=40482",
    "data.path=none",
]
WIDE = ["parallel.tensor=2", "parallel.pipeline=2"]


class Bench:
    """An engine of this rank with a checkpoint manager, and steps on random tokens."""

    def __init__(self, overrides: list[str], place: Path) -> None:
        from gpt1_ds.checkpoint.manager import CheckpointManager
        from gpt1_ds.engine.build import build_engine
        from gpt1_ds.engine.process_groups import ProcessGroups, connect
        from gpt1_ds.engine.session import keep_freed_blocks

        keep_freed_blocks()
        self.config = load(["pretrain/gpt1_117m"], [*BASE, *overrides])
        connect(600)
        self.groups = ProcessGroups(self.config)
        self.engine = build_engine(self.config, self.groups)
        self.run_dir = RunDir(place)
        self.groups.on_rank_0(self.run_dir.create)
        self.manager = CheckpointManager(self.run_dir, self.engine, self.config)
        self.steps = 0

    def step(self) -> None:
        import torch

        from gpt1_ds.engine.build import MicroBatch, batch_shape
        from gpt1_ds.objectives.base import row_facts

        self.steps += 1
        batches = []
        for rows in batch_shape(self.config, self.groups).rows():
            torch.manual_seed(self.steps)
            tokens = torch.randint(VOCABULARY, (self.config.model.context + 1, len(rows)))
            weights = torch.full((self.config.model.context, len(rows)), 1 / self.config.model.context / len(rows))
            facts = torch.from_numpy(row_facts(rows))
            batches.append(MicroBatch((tokens[:-1].contiguous(), facts), (tokens[1:].contiguous(), weights)))
        self.engine.step(batches, 1e-4)

    def contents(self) -> Any:
        from gpt1_ds.checkpoint.manager import Contents
        from gpt1_ds.config import to_yaml
        from gpt1_ds.data.tokenizers.base import read_files
        from gpt1_ds.engine import master_weights

        facts = {"step": self.steps, "updates": master_weights.updates(self.engine), "loss_scaler": {}, "hashes": {}}
        tokenizer = read_files(self.run_dir.path.parent / "text" / "tokenizer")
        return Contents(self.steps, facts, to_yaml(self.config), tokenizer)

    def save(self, background: bool) -> None:
        self.manager.start(self.contents(), background)
        if not background:
            assert self.manager.finish() is not None


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def stall(place: Path, rounds: int) -> dict[str, list[float]]:
    """Runs on one rank: the seconds of every round."""
    import torch

    from gpt1_ds.engine import master_weights

    bench = Bench(["checkpoint.background=on", "train.global_batch=2", "train.micro_batch=2"], place)
    for _ in range(3):
        bench.step()
    found: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(seconds)

    def plain() -> None:
        tensors = {
            f"{f.info.name}.{kind}": values
            for f in master_weights.fragments(bench.engine)
            for kind, values in f.saved.items()
        }
        with open(place / "plain.pt", "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())

    def twenty(with_save: bool) -> float:
        paused = 0.0
        began = time.perf_counter()
        for number in range(20):
            bench.step()
            if with_save and number == 2:
                paused += timed(lambda: bench.save(background=True))
            if bench.manager.is_written:
                paused += timed(bench.manager.finish)
        whole = time.perf_counter() - began
        if with_save:
            bench.manager.finish()
            note("background save: stall", paused)
        return whole - paused

    bench.save(background=False)
    for _ in range(rounds):
        for name, action in (
            ("torch.save + fsync", plain),
            ("foreground save: stall", lambda: bench.save(background=False)),
            ("DeepSpeed save_checkpoint", lambda: bench.engine.deepspeed.save_checkpoint(str(place / "deepspeed"))),
        ):
            os.sync()
            note(name, timed(action))
            shutil.rmtree(place / "deepspeed", ignore_errors=True)
        os.sync()
        note("20 steps", twenty(with_save=False))
        note("20 steps around a background save", twenty(with_save=True))
        for old in (place / "checkpoints").glob("step-*"):
            shutil.rmtree(old)
    return found


def write_on(place: Path, overrides: list[str]) -> Path:
    bench = Bench(overrides, place)
    bench.step()
    bench.save(background=False)
    return bench.run_dir.checkpoint(bench.steps)


def load_on(place: Path, overrides: list[str], folder: Path) -> tuple[float, float, float]:
    """Runs on fresh ranks: seconds of verifying and loading, peak GiB after that, and after a training step."""
    from gpt1_ds.checkpoint.restore import restore, verify_checkpoint
    from gpt1_ds.tracking.throughput import peak_process_gib

    bench = Bench(overrides, place)
    seconds = timed(lambda: (verify_checkpoint(bench.engine, folder), restore(bench.engine, bench.config, folder)))
    loaded = peak_process_gib()
    bench.step()
    return seconds, loaded, peak_process_gib()


def read_on(place: Path, overrides: list[str], folder: Path) -> tuple[float]:
    """Runs on fresh ranks with the same engine: seconds of reading the files, shared among the ranks, into memory."""
    bench = Bench(overrides, place)
    files = sorted(path for path in folder.rglob("*") if path.is_file())[bench.groups.rank :: bench.groups.world]

    def read() -> None:
        kept = [path.read_bytes() for path in files]
        bench.groups.gather(len(kept))

    return (timed(read),)


def resume(place: Path, rounds: int) -> None:
    for target_ranks, target, source_ranks, source in ((1, [], 8, WIDE), (8, WIDE, 1, [])):
        folder = launch.run("tools.bench_checkpoint:write_on", (place / "from", source), source_ranks)[0]
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        loads, reads = [], []
        for _ in range(rounds):
            arguments = (place / "on", target, folder)
            ranks = launch.run("tools.bench_checkpoint:load_on", arguments, target_ranks)
            loads.append(tuple(map(max, zip(*ranks, strict=True))))
            reads.append(max(launch.run("tools.bench_checkpoint:read_on", arguments, target_ranks))[0])
        load_s, plain_s = statistics.median(load[0] for load in loads), statistics.median(reads)
        print(f"{source_ranks} ranks -> {target_ranks}: {size / 2**30:.2f} GiB verified and loaded in {load_s:.2f} s")
        print(f"    read plainly in {plain_s:.2f} s: {load_s / plain_s:.2f} times that")
        print(f"    peak of the largest rank after loading {loads[0][1]:.2f} GiB, after a step {loads[0][2]:.2f} GiB")
        left = [
            path.name for path in (place / "from" / "checkpoints").iterdir() if path.name not in ("latest", folder.name)
        ]
        print(f"    left behind on disk: {left or 'nothing'}")
        shutil.rmtree(place / "from")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stall", "resume"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-checkpoint-") as name:
        place = Path(name).absolute()
        make_data(place / "text")  # for its tokenizer
        if options.what == "stall":
            found = launch.run("tools.bench_checkpoint:stall", (place / "stall", options.rounds), 1)[0]
            for what, seconds in found.items():
                low, high = min(seconds), max(seconds)
                print(f"{what:38} {statistics.median(seconds):7.3f} s  ({low:.3f} to {high:.3f})")
            plain = statistics.median(found["torch.save + fsync"])
            for what in ("foreground save: stall", "background save: stall", "DeepSpeed save_checkpoint"):
                print(f"{what} / torch.save + fsync: {statistics.median(found[what]) / plain:.2f}")
            around, calm = (statistics.median(found[k]) for k in ("20 steps around a background save", "20 steps"))
            print(f"20 steps around a background save are slower by {100 * (around / calm - 1):.1f} %")
            return
        resume(place, options.rounds)


if __name__ == "__main__":
    main()
