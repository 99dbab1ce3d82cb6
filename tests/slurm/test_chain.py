"""Jobs that follow one another: data, pre-training, a task, its scores; and what becomes of them when one fails."""

from __future__ import annotations

import json

from gpt1_ds.common.rundir import RunDir
from tests.helpers.jobs import BARE, outcomes
from tools import runs
from tools.cluster import Cluster

ONE = ["slurm.cpus_per_task=1", "slurm.time=0:20:00"]
TASK = [
    *("task.name=table", "task.kind=classification", "task.path=task", "task.columns.text=text"),
    *("task.columns.label=label", "task.max_length=16", "train.global_batch=4", "train.micro_batch=4"),
    *("train.steps=4", "train.log_every=1", "checkpoint.every=0", "run.name=task"),
]


def submitted(cluster: Cluster, *arguments: str) -> str:
    answer = cluster.program("slurm", "submit", "--parsable", *arguments)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def test_a_chain_that_is_submitted_at_once(cluster: Cluster) -> None:
    """The pre-training hands over to a second job; what follows it waits for that one."""
    text = cluster.place / "text.txt"
    text.write_text("".join(f"{number} and {number + 1} are {2 * number + 1}.\n" for number in range(4000)))
    (cluster.place / "task").mkdir()
    rows = "".join(f"{number},{'even' if number % 2 == 0 else 'odd'}\n" for number in range(16))
    for name in ("train", "dev"):
        (cluster.place / "task" / f"{name}.csv").write_text(f"text,label\n{rows}")
    tokenizer = cluster.data.parent / "tokenizer"
    data = submitted(
        cluster, "data", "build", "--input", str(text), "--tokenizer", str(tokenizer), "--out", "made", *ONE
    )
    cell = [argument for argument in cluster.arguments("base", *BARE) if not argument.startswith("data.path=")]
    base = submitted(cluster, "pretrain", *cell, "data.path=made", "--after", data)
    task = submitted(cluster, "finetune", *TASK, *ONE, "checkpoint.init_from=runs/base", "--after", "runs/base")
    last = submitted(cluster, "evaluate", "runs/task", *ONE, f"slurm.after=[{task}]")

    run_dir = cluster.run_dir("base")
    cluster.wait_for_step(run_dir, 3)
    cluster.call("scancel", "--batch", "--signal=USR1", base)
    cluster.wait(lambda: outcomes(run_dir)[:1] == [75])
    cluster.wait(lambda: cluster.state(base)["JobState"] == "FAILED")
    assert cluster.state(task)["JobState"] == "PENDING", "it waits for the run, not for its first job"
    cluster.wait(lambda: cluster.state(last)["JobState"] not in ("PENDING", "RUNNING"))
    assert [cluster.state(job)["JobState"] for job in (data, task, last)] == ["COMPLETED"] * 3, cluster.said()
    assert outcomes(run_dir) == [75, 0]
    assert sorted(runs.losses(run_dir)) == list(range(1, 41)), "the run went on to its end"
    assert json.loads(cluster.run_dir("task").evaluation.read_text()), "the task has scores"
    assert f"for job {data}: COMPLETED" in cluster.program("slurm", "status", "runs/base").out


def test_a_chain_that_breaks_says_what_will_not_run(cluster: Cluster) -> None:
    first = submitted(cluster, "pretrain", *cluster.arguments("broken", *BARE), "data.path=nowhere")
    second = submitted(cluster, "evaluate", "runs/broken", *ONE, "--after", first)
    third = submitted(cluster, "evaluate", "runs/broken", *ONE, "--after", second)
    cluster.wait(lambda: not cluster.call("squeue", "--noheader"))
    assert [cluster.state(job)["JobState"] for job in (second, third)] == ["CANCELLED"] * 2, cluster.said()
    said = (cluster.run_dir("broken").slurm / f"{first}.out").read_text()
    assert f"job {second} waits for job {first}, which did not end well, and will not run" in said
    jobs = RunDir(cluster.place / "runs" / "jobs")
    assert (
        f"job {third} waits, or waited, for job {second}: CANCELLED"
        in cluster.program("slurm", "status", str(jobs.path)).out
    )


def test_a_study_trains_its_models_then_its_cells_then_writes_its_page(cluster: Cluster) -> None:
    """Two arrays, and a job behind each."""
    (cluster.place / "task").mkdir()
    rows = "".join(f"{number},{'even' if number % 2 == 0 else 'odd'}\n" for number in range(16))
    for name in ("train", "dev"):
        (cluster.place / "task" / f"{name}.csv").write_text(f"text,label\n{rows}")
    table = dict(argument.split("=") for argument in TASK if argument.startswith(("task.", "train.")))
    model = {**dict(argument.split("=") for argument in runs.TINY), "data.path": str(cluster.data), "train.steps": 3}
    study = {
        "seeds": [1],
        "pretrain": [{"preset": "pretrain/tiny_cpu", "name": "small", **model, "checkpoint.every": 0}],
        "tasks": [{"preset": "finetune/table", "name": "numbers", **table}],
        "variants": {"slow": {"pretrained": "small", "optimizer.lr": 1e-6}},
        "overrides": {"slurm.cpus_per_task": 1, "slurm.launcher": "srun", "checkpoint.every": 0},
    }
    (cluster.place / "table.yaml").write_text(json.dumps(study))
    submitted(cluster, "finetune", "study", "table.yaml", "slurm.time=0:20:00")
    told = cluster.program("slurm", "status", "runs/table/pretrained").out
    assert "slurm submit finetune study table.yaml slurm.time=0:20:00 --stage 2: PENDING" in told
    page = cluster.place / "runs" / "table" / "study.html"
    cluster.wait(lambda: page.exists() or not cluster.call("squeue", "--noheader"))
    cluster.wait(lambda: not cluster.call("squeue", "--noheader"))
    assert page.exists(), cluster.said()
    assert "2 done, 0 to do" in cluster.program("finetune", "study", "table.yaml", "--dry-run").out
    assert (cluster.place / "runs" / "table" / "pretrained" / "small" / "seed-1" / "DONE").exists()
    again = cluster.program("slurm", "submit", "finetune", "study", "table.yaml")
    assert again.out.endswith("all cells are done\n")
