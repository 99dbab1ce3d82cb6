"""Whether a GPU learns what a CPU learns: a few steps of every family, of what a run can do besides, and of every kind
of task, in fp32; and the same in bf16, where micro-batches are CUDA graphs. The program itself runs both, each case in
a process of its own.

python tools/gpu/parity.py FOLDER     the half that a phase starts beside its own: FOLDER/cases.json on this CPU
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt1_ds.common.files import parse_json, write_json
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.tracking.record import WATCHED
from tools.families import ENCODER, FAMILIES, SENTINELS, make_data
from tools.gpu.record import Contact
from tools.gpu.runner import program
from tools.small_tasks import make_task

SECONDS, SLOW = 90.0, 75.0  # of a run, and after which the log says where it is
LOG_LINES = 15  # of a case that differs
LOSS, OTHER = 1e-5, 1e-3  # how far from the CPU: nats; a fraction of its number, or of 1 where that is more
LOSS_BF16 = 2e-3
SMALL = [
    *("model.layers=2", "model.width=64", "model.heads=2", "model.context=64", "run.seed=3", "train.compile=off"),
    *("train.global_batch=8", "train.micro_batch=4", "train.steps=4", "train.log_every=1", "checkpoint.every=0"),
    *("optimizer.lr=1e-4", "schedule.warmup_steps=1"),
]
HELD_OUT = ["train.eval_every=2", "train.eval_batches=2"]
FAMILY_CASES = {
    **{name: FAMILIES[name] for name in ("gpt1", "gpt2", "bert", "roberta", "t5", "t5_relu", "prefix")},
    "lstm": ["model.kind=lstm", "model.layers=1", "model.units=64"],
}
OPTIONS = {
    "watch": ["train.watch=all"],
    "documents": ["data.documents=masked"],
    "batch warm-up": ["train.batch_warmup=4", "train.batch_warmup_tokens=1024"],
    "evaluations": ["train.evaluations=[{name: repeat, path: TEXT, every: 2, limit: 40}]"],
    "muon": ["optimizer.name=muon"],
    "recompute": ["train.recompute=block"],
}
TASKS: dict[str, list[str]] = {  # by the shapes of tools/small_tasks.py
    **{shape: [] for shape in ("pair", "regression", "question", "tagging")},
    "span": [*ENCODER, "model.segments=2", "task.stride=16"],
    "generation": [*FAMILIES["t5"], "task.form=text"],
    "sentences-nli": ENCODER,
}
NEEDS = {"generation": ("sacrebleu", "rouge_score")}  # what scores a case's answers
GRAPHS, COMPILED = "graphs", "compiled"  # groups in bf16; the second compiles blocks on a GPU
GROUPS = {
    "families": FAMILY_CASES,
    "options": OPTIONS,
    "tasks": TASKS,
    GRAPHS: {
        **FAMILY_CASES,
        **{name: OPTIONS[name] for name in ("documents", "evaluations")},
        "batch warm-up": [*OPTIONS["batch warm-up"], "train.steps=12"],  # graphs of either size
    },
    COMPILED: {"t5": FAMILIES["t5"], "documents": OPTIONS["documents"], "roberta": FAMILIES["roberta"]},
}
WITHOUT = "micro-batches run without CUDA graphs"  # words of engine/graphs.py, where one could not be made
NUMBERS = ("loss", "grad_norm", "pair_loss", "task_loss", "language_loss", "metrics", *WATCHED)  # of a line
CASES = "cases.json"


def parity(contact: Contact, group: str) -> None:
    """Compares the losses of each case of a group with those of the same case on this CPU; in fp32 its other numbers,
    too, and in bf16 whether it kept its graphs.
    """
    place = contact.work / "parity" / group
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    cases = {}
    for name in GROUPS[group]:
        if lacking := [library for library in NEEDS.get(name, ()) if importlib.util.find_spec(library) is None]:
            contact.fact(f"{name}: left out", f"{', '.join(lacking)} cannot be imported here")
        else:
            cases[name] = arguments(place, group, name)
    write_json(place / CASES, cases)
    beside = subprocess.Popen([sys.executable, __file__, str(place)])
    fast = ["train.cuda_graphs=on", *(["train.compile=on"] if group == COMPILED else [])]
    bf16 = group in (GRAPHS, COMPILED)
    for name, case in cases.items():
        here = [*case, *(fast if contact.device == "cuda" else [])]
        halves = [place / half / _folder(name) for half in ("here", "cpu")]
        code = run(halves[0], contact.device, here, SECONDS)
        while not (beside_code := _code(place / "cpu" / _folder(name))).exists() and beside.poll() is None:
            time.sleep(0.05)
        if code != 0 or not beside_code.exists() or parse_json(beside_code.read_bytes()) != 0:
            contact.check(f"{name}: ends well on both", False, code, 0)
            _tell_logs(contact, name, halves)
            continue
        same = compare(contact, name, *(dict(numbers(half)) for half in halves), bf16=bf16)
        if bf16:
            same = kept_graphs(contact, name, halves[0]) and same
        if not same:
            _tell_logs(contact, name, halves)
    shutil.rmtree(place, ignore_errors=True)


def kept_graphs(contact: Contact, name: str, run_folder: Path) -> bool:
    """Records whether a run has kept its CUDA graphs: its log says where it has not. Returns whether it has."""
    said = next((line for line in _log(run_folder) if WITHOUT in line), "")
    contact.check(f"{name}: keeps its graphs", not said, int(bool(said)), 0, said)
    return not said


def _log(run_folder: Path) -> list[str]:
    """Returns the lines of rank 0's log; none where there is none."""
    log = RunDir(run_folder).rank_log(0)
    return log.read_text(errors="replace").splitlines() if log.exists() else []


def _tell_logs(contact: Contact, name: str, halves: list[Path]) -> None:
    """Records the last lines of both halves' logs: the folders go when the phase ends."""
    for what, half in zip(("here", "on the CPU"), halves, strict=True):
        contact.fact(f"{name}: the log {what}", "\n".join(_log(half)[-LOG_LINES:]))


def compare(contact: Contact, name: str, here: dict[str, float], there: dict[str, float], bf16: bool = False) -> bool:
    """Records how far a case's losses are from the CPU's, and the rest of its numbers; notes the worst of each, and all
    of them where one is too far. Returns whether none is.
    """
    same = True
    for what, limit in (("losses", LOSS_BF16),) if bf16 else (("losses", LOSS), ("other numbers", OTHER)):
        keys = [key for key in here | there if key.endswith(" loss") == (what == "losses")]
        apart = {key: distance(here, there, key) for key in keys}
        worst = max(keys, key=lambda key: apart[key], default="there are none")
        value = apart.get(worst, math.inf)
        contact.check(f"{name}: {what} from the CPU's", value <= limit, value, limit, worst)
        if value > limit and keys:
            numbers_of_both = {key: [here.get(key), there.get(key)] for key in keys}
            contact.fact(f"{name}: {what} here and on the CPU", numbers_of_both)
        same = same and value <= limit
    return same


def arguments(place: Path, group: str, name: str) -> list[str]:
    """Returns what the program is asked, without the run's folder and device; makes the files that it reads."""
    case = [*SMALL, *GROUPS[group][name], f"train.precision={'bf16' if group in (GRAPHS, COMPILED) else 'fp32'}"]
    masks, spans = "objective.kind=masked" in case, "objective.kind=spans" in case
    data = make_data(place.parent / f"text{'-masks' * masks}{'-spans' * spans}", masks, SENTINELS if spans else 0)
    if group != "tasks":
        case = [argument.replace("TEXT", str(data.parent / "text")) for argument in case]
        return ["pretrain", f"data.path={data}", *case, *HELD_OUT]
    task = make_task(place.parent / "tasks" / name, name, train=24, dev=6)
    return ["finetune", f"task.tokenizer={data.parent / 'tokenizer'}", *task, *case]


def run(folder: Path, device: str, case: list[str], seconds: float) -> int | None:
    """Runs a case in a run folder. Returns its exit code; None: it took longer than `seconds`."""
    folder.parent.mkdir(exist_ok=True)
    where = [f"run.dir={folder.parent}", f"run.name={folder.name}", f"train.device={device}"]
    process = program([*case, *where], folder.parent, SLOW)
    process.join(seconds)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def _folder(name: str) -> str:
    return name.replace(" ", "-")


def _code(folder: Path) -> Path:
    """Returns the file in which the CPU's half writes the exit code of a run that has ended."""
    return folder.with_name(f"{folder.name}.json")


def numbers(run_folder: Path) -> Iterator[tuple[str, float]]:
    """Yields what a run's lines say of the model, each number with a name of its own: step, kind of line, and key."""
    for line in read_jsonl(RunDir(run_folder).metrics):
        for key in NUMBERS:
            yield from _leaves(f"step {line['step']} {line['kind']} {key}", line.get(key))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(f"{name} {key}", one)
    elif isinstance(value, int | float):
        yield name, float(value)


def distance(here: dict[str, float], there: dict[str, float], key: str) -> float:
    """Returns how far a number is from the CPU's, as LOSS and OTHER mean it; infinity where one half lacks it."""
    found, wanted = here.get(key, math.inf), there.get(key, math.inf)
    apart = abs(found - wanted) / (1.0 if key.endswith(" loss") else max(1.0, abs(wanted)))
    return math.inf if math.isnan(apart) else apart


def main() -> int:
    place = Path(sys.argv[1])
    os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    from gpt1_ds.launcher import libraries

    libraries.load()
    for name, case in parse_json((place / CASES).read_bytes()).items():
        folder = place / "cpu" / _folder(name)
        write_json(_code(folder), run(folder, "cpu", case, 4 * SECONDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
