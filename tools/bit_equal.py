"""Is a change of the code one that changes no number? Runs the code of a commit and this checkout's, and compares.

    python tools/bit_equal.py COMMIT [--out FOLDER] [--only NAME ...]

Both train the same tiny models on the same machine: layouts, precisions, fine-tuning, the LSTM, a wsd schedule.
Compared are the bytes of the dataset, of every checkpoint and of an export, and every loss, norm and score of
metrics.jsonl. Times and the hash of the code itself are left out. Prints one line per configuration; exits with 1 where
something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pydoc_data
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASE = [
    *("model.layers=4", "model.width=64", "model.heads=4", "model.context=64", "data.path=data", "run.seed=7"),
    *("train.global_batch=16", "train.micro_batch=4", "optimizer.lr=1e-3", "optimizer.clip=0.5", "train.steps=12"),
    *("schedule.kind=cosine", "schedule.warmup_steps=3", "train.log_every=1", "train.eval_every=6"),
    *("train.eval_batches=2", "checkpoint.every=6"),
]
TASK = [
    *("checkpoint.init_from=runs/one", "train.global_batch=8", "train.micro_batch=2", "train.log_every=1"),
    *("train.epochs=2", "optimizer.name=adam2018", "optimizer.lr=1e-3", "run.seed=3", "task.name=table"),
]
PAIR = ["task.path=task", "task.kind=classification", "task.columns={text: a, text2: b, label: x}"]
ALIKE = ["task.path=task", "task.kind=similarity", "task.columns={text: a, text2: b, label: x}"]
CHOICE = ["task.path=task", "task.kind=choice", "task.columns={text: a, label: y, choices: [c]}"]
METRICS = ("step", "loss", "grad_norm", "learning_rate", "batch_fingerprint", "perplexity", "bits_per_byte", "metrics")


@dataclass(frozen=True)
class Run:
    name: str
    ranks: int
    command: str
    overrides: list[str]


RUNS = [
    Run("one", 1, "pretrain", BASE),
    Run("recompute-bf16", 1, "pretrain", [*BASE, "train.precision=bf16", "train.recompute=block"]),
    Run("dp2-zero0", 2, "pretrain", [*BASE, "parallel.zero=0"]),
    Run("dp2-zero2", 2, "pretrain", [*BASE, "parallel.zero=2"]),
    Run("dp2-zero3-bf16", 2, "pretrain", [*BASE, "parallel.zero=3", "train.precision=bf16"]),
    Run("tp2", 2, "pretrain", [*BASE, "parallel.tensor=2"]),
    Run("pp2", 2, "pretrain", [*BASE, "parallel.pipeline=2"]),
    Run("tp2-pp2-bf16", 4, "pretrain", [*BASE, "parallel.tensor=2", "parallel.pipeline=2", "train.precision=bf16"]),
    Run("lstm", 1, "pretrain", [*BASE, "model.kind=lstm", "model.layers=1", "model.units=96"]),
    Run("wsd", 1, "pretrain", [*BASE, "schedule.kind=wsd", "schedule.final_fraction=0"]),
    Run("pair", 1, "finetune", [*TASK, *PAIR]),
    Run("pair-tp2", 2, "finetune", [*TASK, *PAIR, "parallel.tensor=2"]),
    Run("similarity-pp2", 2, "finetune", [*TASK, *ALIKE, "task.lm_coefficient=0", "parallel.pipeline=2"]),
    Run("choice-dp2", 2, "finetune", [*TASK, *CHOICE]),
]


class Code:
    """A version of the package, and the folder that its runs are made in."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "GPT1_DS_MACHINE": "cpu"}

    def call(self, *arguments: str) -> None:
        """One command of the program. Raises SystemExit with its messages where it fails."""
        command = [sys.executable, "-P", "-m", "gpt1_ds", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-2000:]}")

    def prepare(self) -> None:
        """The dataset and the task, from text that comes with Python."""
        text = (Path(pydoc_data.__file__).parent / "topics.py").read_text()
        (self.folder / "text").mkdir(exist_ok=True)
        for number in range(8):
            part = self.folder / "text" / f"{number}.txt"
            part.write_text(text[number * 40000 : (number + 1) * 40000])
            os.utime(part, (0, 0))  # which the dataset's key knows
        arguments = text[:4000].split()
        (self.folder / "task").mkdir(exist_ok=True)
        for split, first, count in (("train", 0, 24), ("dev", 24, 8)):
            rows = [_row(arguments, number) for number in range(first, first + count)]
            (self.folder / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.call("tokenizer", "train", "--input", "text", "--out", "tokenizer", "--vocab-size", "400")
        self.call(
            *("data", "build", "--input", "text", "--tokenizer", "tokenizer", "--out", "data"), "--validation", "0.2"
        )

    def run(self, one: Run) -> dict[str, Any]:
        """What a run leaves behind, file by file."""
        self.call(one.command, "--nproc", str(one.ranks), f"run.name={one.name}", *one.overrides)
        folder = self.folder / "runs" / one.name
        return {"metrics.jsonl": list(_metrics(folder / "metrics.jsonl")), **digests(folder / "checkpoints")}


def _row(arguments: list[str], number: int) -> dict[str, Any]:
    texts = [" ".join(arguments[number * 12 + k * 4 :][:4]) for k in range(3)]
    return {"a": texts[0], "b": texts[1], "c": texts, "x": ("no", "yes")[number % 2], "y": number % 3}


def _metrics(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield {key: value for key, value in json.loads(line).items() if key in METRICS}


def digests(folder: Path) -> dict[str, Any]:
    """Returns a hash of every file below a folder; for a manifest, of its content without what names the code."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "manifest.json":
            manifest = json.loads(path.read_text())
            hashes = {key: value for key, value in manifest["hashes"].items() if key not in ("code", "version")}
            found[name] = {**manifest, "hashes": hashes, "checksum": None}
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def everything(source: Path, folder: Path, only: list[str]) -> dict[str, dict[str, Any]]:
    """Name of a configuration -> what the code in `source` makes of it, in `folder`."""
    code = Code(source, folder)
    code.prepare()
    found = {"dataset": digests(folder / "data")}
    for one in RUNS:
        if not only or one.name in only or one.name == "one":
            found[one.name] = code.run(one)
            print(f"{source.name}: {one.name}", file=sys.stderr, flush=True)
    code.call("checkpoint", "export", "runs/one", "--to", "hf", "--out", "export")
    return {**found, "export": digests(folder / "export")}


def report(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> bool:
    """Prints a line per configuration; whether all are the same."""
    same = True
    for name, found in before.items():
        other = now[name]
        different = sorted(item for item in found.keys() | other.keys() if found.get(item) != other.get(item))
        same &= not different
        print(f"{name:16} {'DIFFERENT: ' + ', '.join(different) if different else 'same'} ({len(found)} items)")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--out", type=Path, help="keep the runs here (a new folder)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help=", ".join(run.name for run in RUNS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = (options.out or Path(scratch)).absolute()
        before, runs = out / options.commit, out / "runs"  # the same place for both: files name where they lie
        before.mkdir(parents=True)
        archive = subprocess.run(["git", "-C", ROOT, "archive", options.commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", before], input=archive, check=True)
        old = everything(before, runs, options.only)
        runs.rename(out / "runs before")
        return 0 if report(old, everything(ROOT, runs, options.only)) else 1


if __name__ == "__main__":
    sys.exit(main())
