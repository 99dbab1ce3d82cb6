"""Disturb a scaling study of 30 cells that is an array of the SLURM sandbox, and compare it with the study run here.

    python tools/array_campaign.py --out OUT [--faults 24] [--seed 1]

At random moments a random cell that runs is interrupted in one of the four ways of tools/cluster.py, or SLURM is told
that a node is down, and after some seconds that it is up again. One cell's folder is on a full disk until its first job
has ended; that needs root. In the end every cell must be done, none twice, and results.csv must be what `scaling run`
writes without SLURM, apart from seconds. OUT has array_jobs.csv and array_faults.csv (seconds since the study was
submitted), array_results.csv and array.png.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpt1_ds.common.rundir import RunDir  # noqa: E402
from gpt1_ds.scaling.tables import write_table  # noqa: E402
from tools import runs  # noqa: E402
from tools.cluster import WAYS, Cluster, sandbox  # noqa: E402
from tools.families import make_data  # noqa: E402
from tools.timeline import Timeline, legend  # noqa: E402

NODE, DISK = "node down", "full disk"
FAULTS = (*WAYS, NODE, DISK)
EVERY_NODE = 8  # the number of faults from one lost node to the next
DOWN = 5  # seconds of a lost node
COLLECTS = "the job after them"
FULL = "l2w32-64K-seed3"  # the cell whose disk is full
SECONDS = ("seconds", "rank_hours")  # columns that are never twice the same
STUDY = "study"


def write_study(place: Path, data: Path) -> None:
    """30 cells: three depths, two numbers of tokens, five seeds."""
    tiny = [argument for argument in runs.TINY if not argument.startswith(("model.", "checkpoint."))]
    overrides = dict(argument.split("=", 1) for argument in [*tiny, "model.context=32", f"data.path={data}"])
    asked = {"slurm.nodes": 1, "slurm.cpus_per_task": 1, "slurm.launcher": "srun", "slurm.time": "0:20:00"}
    arm = {"name": "depth", "kind": "depth", "width": 32, "layers": [1, 2, 3], "tokens": ["32K", "64K"]}
    study = {
        "name": STUDY,
        "overrides": {**overrides, **asked, "slurm.pause": 5},
        "head_width": 16,
        "jobs": 2,
        "epochs_limit": 8,
        "arms": [{**arm, "seeds": [1, 2, 3, 4, 5]}],
    }
    (place / "study.yaml").write_text(json.dumps(study))


@dataclass
class Campaign:
    """A study under way. `tasks` says which cell a task of an array is."""

    cluster: Cluster
    draw: random.Random
    tasks: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.cluster.place / "runs" / STUDY

    def submit(self) -> None:
        """Submits the cells that are not done."""
        answer = self.cluster.program("slurm", "submit", "scaling", "run", "study.yaml")
        assert answer.code == 0, answer.err
        for job, manifest in re.findall(r"^job (\d+): .* (\S+\.jsonl)$", answer.out, flags=re.MULTILINE):
            for number, line in enumerate(Path(manifest).read_text().splitlines()):
                self.tasks[f"{job}_{number}"] = Path(json.loads(line)[2]).stem
        print(f"{len(self.left())} cells submitted", flush=True)

    def row(self, job: str, _: str) -> str:
        return self.tasks.get(job, COLLECTS)

    def cells(self) -> list[str]:
        return list(dict.fromkeys(self.tasks.values()))

    def left(self) -> list[str]:
        """The cells that are not done."""
        return [cell for cell in self.cells() if not RunDir(self.folder / cell).done.exists()]

    def running(self, *arguments: str) -> dict[str, str]:
        """Tasks of the array that run, with the numbers of their jobs."""
        queue = self.cluster.call("squeue", "--noheader", "--states=RUNNING", "--format=%i %A", *arguments)
        pairs = [line.split() for line in queue.splitlines()]
        return {task: job for task, job in pairs if task in self.tasks}

    def disturb(self, timeline: Timeline, faults: int) -> None:
        """Makes so many faults, if there are cells left so long."""
        made = 0
        while made < faults and self.left():
            time.sleep(self.draw.uniform(1, 5))
            self.free_disk(timeline)
            found = [task for task, job in self.running().items() if self.cluster.ranks(job)]
            if not found:
                continue
            if made % EVERY_NODE == EVERY_NODE - 1:
                self.lose_node(timeline)
            else:
                task, how, now = self.draw.choice(found), self.draw.choice(WAYS), timeline.now
                try:
                    self.cluster.interrupt(task, how, self.draw)
                except (AssertionError, IndexError, ProcessLookupError):
                    if task in self.running():
                        raise
                    continue  # it ended by itself at this moment
                timeline.mark(self.tasks[task], how, now)
                print(f"{made + 1}: {how}, {self.tasks[task]}", flush=True)
            made += 1
        while self.cluster.call("squeue", "--noheader"):
            self.free_disk(timeline)
            time.sleep(1)

    def lose_node(self, timeline: Timeline) -> None:
        """SLURM takes a node for lost, and requeues what ran there."""
        node = self.draw.choice(["node1", "node2"])
        hit = self.running(f"--nodelist={node}")
        self.cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=campaign")
        for task in hit:
            timeline.mark(self.tasks[task], NODE)
        print(f"{node} is down with {', '.join(self.tasks[task] for task in hit) or 'no cell'}", flush=True)
        time.sleep(DOWN)
        arguments = ["scontrol", "update", f"nodename={node}", "state=resume"]
        self.cluster.call(*arguments, check=False)  # it may have come back by itself (ReturnToService=2)

    @property
    def disk(self) -> Path:
        return self.folder / FULL

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """The folder of one cell is a small file system of its own, in which no checkpoint has space."""
        self.disk.mkdir(parents=True)
        arguments = ["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs", str(self.disk)]
        subprocess.run(arguments, check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(self.disk)], check=True)

    def free_disk(self, timeline: Timeline) -> None:
        """Once, when the job of that cell has said what is in the way."""
        if any(what == DISK for _, _, what in timeline.marks):
            return
        task = next((task for task, cell in self.tasks.items() if cell == FULL), None)
        said = self.folder / "slurm" / f"{task}.out"
        if said.exists() and "tried again in" in said.read_text():
            timeline.mark(FULL, DISK)
            print(f"{FULL}: {DISK}", flush=True)
            subprocess.run(["mount", "-o", "remount,size=64m", str(self.disk)], check=True)


def results(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as lines:
        return [{key: x for key, x in row.items() if key not in SECONDS} for row in csv.DictReader(lines)]


def check(campaign: Campaign, local: Path) -> None:
    """Every cell is done, none twice, with the results of the study that ran without SLURM."""
    for cell in campaign.cells():
        run_dir = RunDir(campaign.folder / cell)
        ends = [event["reason"] for event in runs.events(run_dir, "stopped")].count("done")
        assert (run_dir.done.exists(), ends) == (True, 1), f"{cell} was done {ends} times\n{campaign.cluster.said()}"
        losses = runs.losses(run_dir)  # one line per step
        assert losses == runs.losses(RunDir(local / cell)), f"{cell}: other losses"
    assert results(campaign.folder / "results.csv") == results(local / "results.csv"), "other results"


def keep(out: Path, campaign: Campaign, timeline: Timeline) -> None:
    """Writes the tables and the figure."""
    shutil.copy(campaign.folder / "results.csv", out / "array_results.csv")
    jobs = [span.line() for span in timeline.spans]
    write_table(out / "array_jobs.csv", list(jobs[0]), jobs)
    marks = [{"row": row, "seconds": round(at, 1), "fault": what} for row, at, what in timeline.marks]
    write_table(out / "array_faults.csv", list(marks[0]), marks)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    timeline.draw(axes, [*campaign.cells(), COLLECTS], FAULTS)
    axes.set(xlabel="seconds since the study was submitted", xlim=(0, None))
    axes.tick_params(axis="y", labelsize="small")
    figure.legend(handles=legend(FAULTS), loc="outside lower center", ncols=len(FAULTS), fontsize="small")
    figure.savefig(out / "array.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a disk that is full needs root")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sandbox(Path(scratch) / "s") as folder:
        place, submissions = Path(scratch), 0
        data = make_data(place)
        for name in ("array", "local"):
            (place / name).mkdir()
            write_study(place / name, data)
        campaign = Campaign(Cluster(folder, place / "array", data), random.Random(options.seed))
        timeline = Timeline(campaign.cluster, campaign.row)
        with campaign.full_disk():
            with timeline.followed():
                while not submissions or campaign.left():
                    assert submissions < 3, campaign.cluster.said()
                    campaign.submit()
                    submissions += 1
                    campaign.disturb(timeline, options.faults - len(timeline.marks))
            here = Cluster(folder, place / "local", data).program("scaling", "run", "study.yaml", seconds=1200)
            assert here.code == 0, here.err
            check(campaign, place / "local" / "runs" / STUDY)
            keep(options.out, campaign, timeline)
        told = dict(Counter(what for _, _, what in timeline.marks))
        print(f"{len(campaign.cells())} cells, {submissions} submissions, faults {told}: bit-identical")


if __name__ == "__main__":
    main()
