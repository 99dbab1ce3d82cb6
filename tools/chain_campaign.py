"""Interrupt every job of a chain on the SLURM sandbox, and compare what the chain makes with an undisturbed one.

    python tools/chain_campaign.py --out OUT [--chains 4] [--seed 1]

A chain is submitted at once: data build, pretrain, finetune, evaluate, each after the one before. Each of its jobs is
interrupted once while it works, at a random moment, in one of the four ways of tools/cluster.py; from chain to chain
the ways change places, so that in four chains each job meets all of them. In the end the dataset, the losses and
weights of both runs, the predictions and the scores must be those of the undisturbed chain, byte for byte. OUT has
chain_jobs.csv and chain_interruptions.csv (seconds since the chain was submitted), and chain.png.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpt1_ds.data.python_docs import documents  # noqa: E402
from gpt1_ds.scaling.tables import write_table  # noqa: E402
from tools import runs  # noqa: E402
from tools.cluster import NODES, WAYS, Cluster, sandbox  # noqa: E402
from tools.families import make_data  # noqa: E402
from tools.timeline import Timeline, legend  # noqa: E402

NAMES = {"data build": "data-build", "pretrain": "base", "finetune": "task", "evaluate": "evaluate"}  # of SLURM's jobs
DATA, BASE, TASK, SCORES = NAMES
LONGEST = {DATA: 6, BASE: 3, TASK: 3, SCORES: 6}  # seconds from the beginning of its work to the interruption
ONE = ["slurm.cpus_per_task=1", "slurm.time=0:20:00"]
COPIES = 30  # of the corpus, so that its build takes a while
_BUILD = ["data", "build", "--sentences", "--workers", "1"]


def write_inputs(place: Path) -> None:
    """Text, a tokenizer, and a task with two classes, for all chains."""
    make_data(place)
    corpus = list(documents())
    (place / "texts").mkdir()
    for number in range(COPIES):
        (place / "texts" / f"{number:02d}.txt").write_text(f"Copy {number}.\n" + "\n".join(corpus))
    (place / "task").mkdir()
    for name, rows in (("train", 400), ("dev", 2000)):
        lines = [f"{number} and {number + 1},{'even' if number % 2 == 0 else 'odd'}\n" for number in range(rows)]
        (place / "task" / f"{name}.csv").write_text("text,label\n" + "".join(lines))
    (place / "lines.txt").write_text("".join(line.partition(",")[0] + "\n" for line in lines))


def submit(cluster: Cluster, inputs: Path) -> None:
    """The four jobs."""
    table = [
        *("task.name=table", "task.kind=classification", f"task.path={inputs / 'task'}", "task.max_length=16"),
        *("task.columns.text=text", "task.columns.label=label", "train.steps=200", "train.log_every=1"),
        *("checkpoint.every=20", "checkpoint.init_from=runs/base", "run.name=task"),
    ]
    text, tokenizer = str(inputs / "texts"), str(inputs / "tokenizer")
    after: list[str] = []
    for arguments in (
        [*_BUILD, "--input", text, "--tokenizer", tokenizer, "--out", "made", *ONE],
        ["pretrain", *cluster.arguments("base", "train.steps=300")],
        ["finetune", *table, *NODES],
        ["evaluate", "runs/task", *ONE],
    ):
        answer = cluster.program("slurm", "submit", "--parsable", *arguments, *after)
        assert answer.code == 0, answer.err
        after = ["--after", answer.out.strip()]


def is_at_work(cluster: Cluster, kind: str) -> bool:
    """Whether there is something to lose: finished parts, a checkpoint, or a process of the evaluation."""
    if kind == DATA:
        return any(not path.name.startswith(".") for path in cluster.place.glob("made/.parts/*/*"))
    if kind in (BASE, TASK):
        return bool(runs.events(cluster.run_dir(NAMES[kind]), "saved"))
    return any(cluster.ranks(job) for job in running(cluster, kind))


def running(cluster: Cluster, kind: str) -> list[str]:
    return cluster.call("squeue", "--noheader", "--states=RUNNING", f"--name={NAMES[kind]}", "--format=%i").split()


def interrupt_each(timeline: Timeline, ways: Sequence[str], draw: random.Random) -> None:
    """Interrupts each kind of job once, in its way."""
    cluster = timeline.cluster
    for kind, how in zip(NAMES, ways, strict=True):
        cluster.wait(lambda kind=kind: is_at_work(cluster, kind), 300)
        time.sleep(draw.random() * LONGEST[kind])
        (job,) = running(cluster, kind)
        timeline.mark(kind, how)
        seconds = cluster.interrupt(job, how, draw)
        print(f"  {kind}: {how}; its processes were gone after {seconds:.1f} s", flush=True)


def made(cluster: Cluster, inputs: Path) -> dict[str, Any]:
    """What a chain made, by what it is called."""
    base, task = cluster.run_dir("base"), cluster.run_dir("task")
    answer = cluster.program("predict", "runs/task", "--input", str(inputs / "lines.txt"))
    assert answer.code == 0, answer.err
    files = sorted(path for path in (cluster.place / "made").rglob("*") if path.is_file())
    return {
        "dataset": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "losses": runs.losses(base),
        "weights": runs.weights(base),
        "losses of the task": runs.losses(task),
        "weights of the task": runs.weights(task),
        "predictions": answer.out,
        "scores": task.evaluation.read_text(),
    }


def run_chain(cluster: Cluster, inputs: Path, ways: Sequence[str], draw: random.Random) -> Timeline:
    """A whole chain; with no `ways` nobody disturbs it."""
    cluster.place.mkdir()
    names = {name: kind for kind, name in NAMES.items()}
    submit(cluster, inputs)
    with Timeline(cluster, lambda _, name: names[name]).followed() as timeline:
        if ways:
            interrupt_each(timeline, ways, draw)
        cluster.wait(lambda: not cluster.call("squeue", "--noheader"), 600, pause=1)
    assert cluster.run_dir("task").evaluation.exists(), cluster.said()
    for kind in NAMES if ways else ():
        tries = sum(span.row == kind for span in timeline.spans)
        restarted = runs.events(cluster.run_dir(NAMES[kind]), "restarted")  # in the same job
        assert tries > 1 or restarted, f"nothing interrupted {kind}\n{cluster.said()}"
    return timeline


def keep(out: Path, chains: dict[str, Timeline]) -> None:
    """Writes both tables and the figure."""
    jobs = [span.line(chain=name) for name, timeline in chains.items() for span in timeline.spans]
    write_table(out / "chain_jobs.csv", list(jobs[0]), jobs)
    marks = [
        {"chain": name, "row": row, "seconds": round(seconds, 1), "how": how}
        for name, timeline in chains.items()
        for row, seconds, how in timeline.marks
    ]
    write_table(out / "chain_interruptions.csv", list(marks[0]), marks)
    figure = Figure(figsize=(8, 1.3 * len(chains) + 0.8), layout="constrained")
    panels = figure.subplots(len(chains), sharex=True)
    for axes, (name, timeline) in zip(panels, chains.items(), strict=True):
        timeline.draw(axes, list(NAMES), WAYS)
        axes.set_title(name, loc="left", fontsize="medium")
    panels[-1].set(xlabel="seconds since the chain was submitted", xlim=(0, None))
    figure.legend(handles=legend(WAYS), loc="outside lower center", ncols=len(WAYS))
    figure.savefig(out / "chain.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chains", type=int, default=len(WAYS))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch, sandbox(Path(scratch) / "s") as folder:
        place = Path(scratch)
        write_inputs(place)
        calm = Cluster(folder, place / "calm", Path("made"))
        chains = {"undisturbed": run_chain(calm, place, [], draw)}
        expected = made(calm, place)
        for number in range(options.chains):
            turn = number % len(WAYS)
            ways = [*WAYS[turn:], *WAYS[:turn]]
            print(f"chain {number + 1}", flush=True)
            cluster = Cluster(folder, place / f"chain-{number + 1}", Path("made"))
            chains[f"chain {number + 1}"] = run_chain(cluster, place, ways, draw)
            found = made(cluster, place)
            for what, value in expected.items():
                assert found[what] == value, f"chain {number + 1}: other {what}\n{cluster.said()}"
            keep(options.out, chains)
    interrupted = sum(len(timeline.marks) for timeline in chains.values())
    sizes = f"{len(expected['losses'])} and {len(expected['losses of the task'])} losses"
    lines = len(expected["predictions"].splitlines())
    print(
        f"{options.chains} chains, {interrupted} jobs interrupted; {sizes}, {lines} lines of predictions: bit-identical"
    )


if __name__ == "__main__":
    main()
