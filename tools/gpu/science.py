"""Trains a GPT-1 of full size for some minutes and tests it: tools/gpu/science.sh.

    bash tools/gpu/science.sh TOKENS_PER_SECOND SECONDS_OF_TRAINING [--device cuda|cpu] [--tiny] [--budget 575]

On the packed dataset and tasks (tools/gpu/pack.py): pre-training for as many tokens as fit into the seconds at the rate
that contact.sh measured, at most ten epochs; zero-shot probes; fine-tuning with and without it. Weights do not return:
$OUT (default: ./gpu-science) gets console.txt, pretrain.jsonl, env.json and scores.json, together below 2 MB. The same
command again continues what was cut short.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.gpu import kit

TASKS = ("blimp", "cola", "sst2", "rte", "nli_slices")
BUDGET = 575.0  # seconds of all of it, where a call may take 600
PART = 0.9  # of the seconds: the rest is evaluation, saving and a rate that was the best of a short series
MOST_EPOCHS = 10
BYTES = 400_000  # of each file that returns
LEAST, GRACE = 15.0, 15.0  # seconds with which a program is started, and in which it ends when it is asked to
SNLI = ["task.train=[snli_slice_train.json]", "task.dev=[snli_slice_dev.json]", "task.test=[snli_dev.csv]"]
PROBES = {"blimp": 20_100, "cola": 1100}  # questions: of 67,000 pairs, of all sentences
FINETUNED = {  # preset: (folder of the task, settings)
    "sst2": ("sst2/glue", ["train.epochs=1", "task.train_examples=20000"]),  # of 67,349: as many as fit into the time
    "snli": ("nli_slices", ["train.epochs=1", *SNLI]),
    "rte": ("rte", ["train.epochs=3"]),
}
START = {"pre-trained": [], "not pre-trained": ["task.transfer_layers=-1"]}  # the same architecture and tokenizer
RECIPE = [  # the decay of its last fifth belongs to this very length: no schedule of a hundred epochs fits
    *("schedule.kind=wsd", "schedule.warmup_fraction=0.03", "schedule.decay_fraction=0.2", "optimizer.lr=4e-4"),
    *("optimizer.weight_decay=0.1", "optimizer.betas=[0.9,0.98]", "train.eval_batches=8", "train.eval_every=500"),
    *("train.log_every=20", "checkpoint.every=2000"),
]
TINY = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.global_batch=8"),
    *("train.micro_batch=8", "train.precision=fp32"),
]
TINY_PROBE = 40
TINY_TASK = [
    "task.train_examples=16",
    "task.scored_examples=16",
    "train.epochs=1",
    "train.global_batch=8",
    "train.micro_batch=8",
    "train.precision=fp32",
]


@dataclass(frozen=True)
class Science:
    """Where it works and how long it may."""

    out: Path
    work: Path  # holds data/ with what was packed, and runs/
    device: str
    tiny: bool
    until: float  # seconds of the clock

    def run(self, most: float, *arguments: str) -> int | None:
        """Runs `gpt1-ds ARGUMENTS` for at most so many seconds and shows what it prints. Returns its exit code, or None
        where it was ended or there was no time for it.
        """
        from tools.gpu.runner import program

        limit = min(most, self.until - time.time())
        print(f"\n$ gpt1-ds {' '.join(arguments)}", flush=True)
        if limit < LEAST:
            print("left out: no time is left", flush=True)
            return None
        began, process = time.time(), program(list(arguments), self.work)
        process.join(limit)
        code = process.exitcode
        process.terminate()  # a run that is asked to end saves what it has
        process.join(GRACE)
        process.kill()
        process.join()
        print(f"exit code {code} after {time.time() - began:.0f} s", flush=True)
        return code


def main() -> int:
    began, options = time.time(), _arguments()
    try:
        out, work = kit.output_folder("gpu-science"), kit.work_folder()
        kit.prepare(work, options.device)
        place = work / f"science{'-tiny' * options.tiny}"
        place.mkdir(exist_ok=True)
        data = kit.unpack(kit.DATA, place / "data")
        if data is None:
            raise kit.KitError(f"{kit.KIT / kit.DATA}: no dataset was packed; python tools/gpu/pack.py --text FOLDER")
        kit.unpack(kit.TASKS, place / "tasks")
    except kit.KitError as error:
        print(f"science.sh: {error}", file=sys.stderr)
        return 2
    load_libraries(options.device)
    study(Science(out, place, options.device, options.tiny, began + options.budget), options.rate, options.seconds)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="science.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rate", type=float, metavar="TOKENS_PER_SECOND")
    parser.add_argument("seconds", type=float, metavar="SECONDS_OF_TRAINING")
    kit.add_options(parser)
    budget = "of everything (default: %(default)g s)"
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="S", help=budget)
    options = parser.parse_args()
    for name, value in (("TOKENS_PER_SECOND", options.rate), ("SECONDS_OF_TRAINING", options.seconds)):
        if not 0 < value < 1e9:
            parser.error(f"{name}={value:g}: give a number above 0")
    return options


def load_libraries(device: str) -> None:
    """Imports once what every program needs, without touching the GPU."""
    from gpt1_ds.config import load
    from gpt1_ds.launcher import accelerator, libraries

    accelerator.prepare(load(["pretrain/gpt1_117m"], [f"train.device={device}"]))
    libraries.load()
    with libraries.counted_devices():
        for name in ("pretraining", "finetuning", "run"):
            __import__(f"gpt1_ds.training.{name}")


def study(science: Science, rate: float, seconds: float) -> None:
    """Pre-trains, probes and fine-tunes; every score is kept at once."""
    dataset = json.loads((science.work / "data" / "dataset.json").read_text())
    tokens = int(min(PART * rate * seconds, MOST_EPOCHS * dataset["splits"]["train"]["tokens"]))
    # the rate was measured with graphs, whether or not a proof of them was kept here
    device = [f"train.device={science.device}", *(["train.cuda_graphs=on"] if science.device == "cuda" else [])]
    size = TINY if science.tiny else []
    arguments = [
        f"model.vocab_size={dataset['tokenizer']['vocab_size']}",
        f"train.tokens={tokens}",
        *device,
        *RECIPE,
        *size,
    ]
    run = science.work / "runs" / "gpt1"
    places = ["run.dir=runs", "run.name=gpt1", "data.path=data"]
    science.run(seconds + 60, "pretrain", "-c", "pretrain/gpt1_117m", *arguments, *places)
    _copy(run / "metrics.jsonl", science.out / "pretrain.jsonl")
    _copy(run / "env.json", science.out / "env.json")
    _probe(science)
    for preset, (folder, settings) in FINETUNED.items():
        if not (science.work / "tasks" / folder).is_dir():
            print(f"\n{preset}: no {folder} was packed; left out")
            continue
        for row, start in START.items():
            name = f"{preset}-{row.replace(' ', '-')}"
            arguments = [
                f"task.path=tasks/{folder}",
                "checkpoint.init_from=runs/gpt1",
                "run.dir=runs",
                f"run.name={name}",
            ]
            arguments += [*device, "run.seed=1", "checkpoint.every=0", "train.precision=bf16", *settings, *start]
            arguments += TINY_TASK if science.tiny else []
            science.run(75, "finetune", "-c", f"finetune/{preset}", *arguments)
            _keep_scores(science, name)


def _probe(science: Science) -> None:
    there = {name: most for name, most in PROBES.items() if (science.work / "tasks" / name).is_dir()}
    limits = {name: TINY_PROBE if science.tiny else most for name, most in there.items()}
    probes = [f"{{name: {name}, path: tasks/{name}, limit: {limit}}}" for name, limit in limits.items()]
    if probes:
        science.run(70, "evaluate", "--checkpoint", "runs/gpt1", f"probes=[{', '.join(probes)}]")
        _keep_scores(science, "gpt1")


def _keep_scores(science: Science, name: str) -> None:
    """Adds what a run's eval.json says to scores.json."""
    found, kept = science.work / "runs" / name / "eval.json", science.out / "scores.json"
    scores: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if found.exists():
        kept.write_text(json.dumps({**scores, name: json.loads(found.read_text())}, indent=1) + "\n")


def _copy(source: Path, target: Path) -> None:
    """Copies the first and the last part of a text that may be long."""
    if source.exists():
        text = source.read_text()
        whole = len(text) <= BYTES
        target.write_text(text if whole else f"{text[: BYTES // 2]}\n[...]\n{text[-BYTES // 2 :]}")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libraries have threads and pools that nobody waits for
