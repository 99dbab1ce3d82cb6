"""Which hosts the health check calls bad."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.cli import main
from gpt1_ds.common.errors import LaunchError
from gpt1_ds.common.files import shipped, write_json
from gpt1_ds.common.rundir import RUN_VARIABLE, RunDir
from gpt1_ds.config import load
from gpt1_ds.diagnostics.report import Record, Report, read_report, write
from gpt1_ds.launcher import launch
from gpt1_ds.slurm import faults
from gpt1_ds.slurm.status import proof_arguments, read_proof, verdict

ONE = "slurm.gpus_per_node=8"
HEALTH = ["health", "verdict"]  # steps of the script


def report(host: str, rank: int, *problems: str, reached: bool | None = True) -> dict[str, Any]:
    found: dict[str, Any] = {"host": host, "rank": rank, "problems": list(problems)}
    return found if reached is None else {**found, "reached": reached, "mib_per_second": 100.0}


def test_all_is_well() -> None:
    well, lines = verdict([report("a", 0), report("b", 1)], ["a", "b"])
    assert well
    assert lines == ["2 ranks on a, b reach one another; all-reduce at 100.0 MiB/s"]


def test_a_silent_host_and_a_full_disk() -> None:
    well, lines = verdict([report("a", 0), report("b", 1, "disk: full")], ["a", "b", "c"])
    assert not well
    assert lines == ["c: did not answer", "b: disk: full", "leave them out: slurm.exclude=c,b"]


def test_no_host_is_blamed_where_none_answered() -> None:
    """srun starts a step on all nodes or on none."""
    well, lines = verdict([], ["a", "b"])
    assert not well
    assert lines == ["none of a, b answered: the step did not start; what srun said is above"]


def test_one_rank_that_reaches_nobody_is_named() -> None:
    reports = [report("a", 0), report("b", 1, reached=None), report("c", 2)]
    well, lines = verdict(reports, ["a", "b", "c"])
    assert not well
    assert lines[0] == "b: rank 1 did not reach the others"


def test_nobody_reaches_anybody() -> None:
    well, lines = verdict([report("a", 0, reached=None), report("b", 1, reached=None)], ["a", "b"])
    assert not well
    assert "NCCL_SOCKET_IFNAME" in lines[0]


@pytest.mark.parametrize(("hosts", "left_out"), [(["a", "b", "c"], ["b", "c"]), (["b", "c"], [])])
def test_a_job_is_tried_again_without_the_bad_hosts(
    hosts: list[str], left_out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all of them have, a full disk say, is no fault of theirs."""
    run_dir = RunDir(tmp_path)
    run_dir.create(job=True)
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for rank, host in enumerate(host for host in hosts if host != "c"):
        found = report(host, rank, *["disk: full"] * (host == "b"))
        write_json(run_dir.slurm / f"health-{rank}.json", found)
    code = main(["slurm", "verdict", str(run_dir.slurm), *hosts])
    fault = faults.find(run_dir, "7")
    assert code == 1
    assert fault is not None
    assert sorted(fault.hosts) == left_out
    assert fault.reason == "c: did not answer; b: disk: full"


@pytest.mark.parametrize(("spares", "code", "out"), [("1", 0, "b\n"), ("0", 1, "")])
def test_a_job_with_spare_nodes_begins_without_a_bad_host(
    spares: str, code: int, out: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for rank, host in enumerate("abc"):
        write_json(tmp_path / f"health-{rank}.json", report(host, rank, *["disk: full"] * (host == "b")))
    assert main(["slurm", "verdict", "--spares", spares, str(tmp_path), *"abc"]) == code
    said = capfd.readouterr()
    assert said.out == out
    assert said.err.startswith("b: disk: full\n")


@pytest.mark.parametrize(("step", "overlap"), [({}, "no"), ({"SLURM_STEP_ID": "0"}, "1")])
def test_ranks_start_from_the_shell_of_a_step(step: dict[str, str], overlap: str, tmp_path: Path) -> None:
    """`srun --pty bash` holds all cores of the job: a step from there waited for them, without a word, for ever."""
    variables = {**os.environ, "SLURM_JOB_ID": "7", **step}
    command = ["bash", "-c", f". {shipped('launch') / 'env.sh'}; echo ${{SLURM_OVERLAP:-no}}"]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{overlap}\n"


def test_ranks_go_on_on_the_nodes_that_are_left(tmp_path: Path) -> None:
    """`b` starts no step, the site drains `d`, which waits; so `c` takes the place of `b`, and `e` is left."""
    stubs = {
        "scontrol": "printf '%s\\n' a b c d e\n",
        "srun": 'case "$*" in *--nodelist=b*) exit 1;; esac\n',
        "sinfo": "echo d\n",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "[a-e]", "SLURM_NNODES": "5", "SLURMD_NODENAME": "a"}
    say = 'spare_nodes=2; settle; echo "${where[@]}"; gone; settle; echo "${where[@]}"; echo "${losses[@]}"'
    command = ["bash", "-c", f". {shipped('launch') / 'env.sh'}; {say}"]
    environment = {**os.environ, **variables, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "--overlap --nodes=3 --ntasks=3 --nodelist=a,b,c",
        "--overlap --nodes=3 --ntasks=3 --nodelist=a,c,e",
        "--lost b --spares 0",
    ], done.stderr


@pytest.mark.parametrize(
    ("state", "nodes", "said"),
    [
        ("RUNNING Requeue=1", "a b c", "looked looked"),
        ("RUNNING Requeue=1", "b c", "looked requeue 7_1 looked requeue 7_1"),
        ("RUNNING Requeue=0", "b c", "looked cancel 7_1 looked cancel 7_1"),
        ("PENDING Requeue=1", "b c", "looked looked"),
    ],
)
def test_a_job_whose_first_node_died_is_started_again(state: str, nodes: str, said: str, tmp_path: Path) -> None:
    """The stand-in for `sleep` ends the watch the third time."""
    log = tmp_path / "log"
    stubs = {
        "scontrol": f"""case "$*" in
  requeue*) echo "$@" >>{log} ;;
  *hostnames*) printf '%s\\n' {nodes} ;;
  *) echo looked >>{log}; echo 'JobId=7 JobState={state} Reason=None ReqNodeList=(null) NodeList=[a-c] NumNodes=3' ;;
esac
""",
        "scancel": f'echo cancel "$@" >>{log}\n',
        "sleep": f"[ ! -e {log} ] || [ $(grep -c looked {log}) -lt 2 ]\n",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(shipped("launch") / "watch.sh"), "7_1", "a"]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    assert " ".join(log.read_text().split()) == said


def proof(*records: Record) -> Report:
    return Report("node1", "2026-11-22", 16, {"node1": 8, "node2": 8}, {"torch": "2.13.0"}, list(records))


def test_the_self_proof_computes_as_runs_do() -> None:
    found = proof_arguments(load([], [ONE, "train.precision=bf16", "train.deterministic=true"]))
    assert found == [
        *("--gpus-per-node=8", "train.precision=bf16", "train.compile=auto", "train.deterministic=true"),
    ]


def test_ranks_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []

    def start(*arguments: object) -> int:
        told.append(arguments)
        return 0

    monkeypatch.setattr(launch, "world", lambda _: 16)
    monkeypatch.setattr(launch, "start", start)
    given = proof_arguments(load([], [ONE]))
    assert main(["slurm", "prove", str(tmp_path), *given]) == 0
    assert told == [("gpt1_ds.diagnostics.self_proof:prove_job", (tmp_path, 8, given[1:]), None)]


def test_a_self_proof_that_is_missing(tmp_path: Path) -> None:
    assert read_proof(tmp_path, 0, 0) is None, "nodes without GPUs"
    assert read_proof(tmp_path, 8, 1) is None, "the health check has said why"
    with pytest.raises(LaunchError, match="the nodes had no GPU for the self-proof"):
        read_proof(tmp_path, 8, 0)


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 2)])
def test_slurm_check_leaves_the_proof_here(
    ok: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`salloc` is a stand-in that leaves what the ranks of a job would."""
    write(proof(Record("all-reduce, wrong numbers", ok, 0 if ok else 3, 0)), tmp_path / "left.json")
    stub = tmp_path / "bin" / "salloc"
    stub.parent.mkdir()
    leave = f'for word; do [ ! -d "$word" ] || cp {tmp_path}/left.json "$word/gpu-check.json"; done'
    stub.write_text(f'#!/usr/bin/env bash\necho "$@"\necho "cores ${{SLURM_CPUS_PER_TASK:-of its own}}"\n{leave}\n')
    stub.chmod(0o755)
    for name, line in (("sinfo", "gpu|up|infinite|gpu:8|2|64"), ("scontrol", "JobRequeue = 1")):
        (stub.parent / name).write_text(f"#!/bin/sh\necho '{line}'\n")
        (stub.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "64")  # of the shell of an interactive job
    monkeypatch.chdir(tmp_path)
    assert main(["slurm", "check", ONE, "slurm.nodes=2"]) == code
    out = capfd.readouterr().out
    assert "cores of its own" in out
    assert "--time=15" in out
    assert "--gpus-per-node=8 train.precision=fp32" in out
    assert ("all 1 checks hold" if ok else "problem all-reduce, wrong numbers: 3 (limit 0)") in out
    assert read_report(tmp_path / "gpu-check-node1-2026-11-22.json").world == 16
    assert not list(tmp_path.glob("tmp*")), "the folder of the job is gone"


@pytest.mark.parametrize(
    ("gpus", "bad", "code", "steps"),
    [
        ("8", "nothing", 0, [*HEALTH, "prove"]),
        ("8", "prove", 3, [*HEALTH, "prove"]),
        ("8", "verdict", 3, HEALTH),
        ("0", "prove", 0, HEALTH),
    ],
)
def test_the_script_of_the_check(gpus: str, bad: str, code: int, steps: list[str], tmp_path: Path) -> None:
    """The self-proof follows a good health check, on nodes with GPUs alone."""
    for name in ("check.sh", "env.sh", "nodes.sh", "stage.sh", "life.sh", "next.sh"):
        (tmp_path / name).write_text((shipped("launch") / name).read_text())
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"
    stubs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
        "scontrol": "echo node1\n",
        "program": f'echo "$@" >>{log}\ncase "$*" in *{bad}*) exit 3;; esac\n',
    }
    for name, text in stubs.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (programs / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(f"python=({programs}/program)\nranks_per_node=8\n")
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "MASTER_ADDR": "here", "SLURM_GPUS_ON_NODE": gpus}
    environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", str(tmp_path / "check.sh"), str(tmp_path), "--gpus-per-node=8", "train.compile=auto"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("the self-proof ended with 3" in done.stderr) == (bad == "prove" and gpus == "8")
    lines = log.read_text().splitlines()
    assert [next(step for step in ("health", "verdict", "prove") if f" {step} " in line) for line in lines] == steps
    if "prove" in steps:
        folder = f"{tmp_path} --gpus-per-node=8 train.compile=auto"
        assert lines[-1] == f"-P -m gpt1_ds slurm node --ranks 8 --launcher torchrun slurm prove {folder}"


@pytest.mark.parametrize(
    ("said", "deadline"),
    [("EndTime=2026-11-26T12:00:00 Deadline=N/A", True), ("", False), ("EndTime=Unknown", False)],
)
def test_a_job_whose_end_is_not_told_has_no_deadline(said: str, deadline: bool, tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(f"#!/usr/bin/env bash\necho {said!r}\n")
    (tmp_path / "scontrol").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    environment.pop("SLURM_JOB_END_TIME", None)
    script = f". {shipped('launch') / 'env.sh'}; limit; echo ${{GPT1_DS_DEADLINE:-none}}"
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip() != "none") == deadline


@pytest.mark.parametrize(("driver", "ranks"), [("echo GPU 0; echo GPU 1", "2"), ("exit 9", None)])
def test_ranks_of_this_machine(driver: str, ranks: str | None, tmp_path: Path) -> None:
    """nvidia-smi may be there without a driver."""
    for name, text in {"nvidia-smi": driver, "gpt1-ds": 'echo "$@"', "nproc": "echo 6"}.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", str(shipped("launch") / "local.sh"), "pretrain", "train.steps=1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"pretrain train.steps=1 --nproc {ranks or 3}"), done.stderr


def test_the_programs_own_environment_need_not_be_active(tmp_path: Path) -> None:
    """`bash launch/local.sh` in a clone whose .venv tools/setup.sh made, as launch/README.md has it."""
    (tmp_path / "launch").mkdir()
    shutil.copy(shipped("launch") / "local.sh", tmp_path / "launch")
    own = tmp_path / ".venv" / "bin" / "gpt1-ds"
    own.parent.mkdir(parents=True)
    own.write_text('#!/usr/bin/env bash\necho "$@"\n')
    own.chmod(0o755)
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "NPROC": "2"}
    command = ["bash", "launch/local.sh", "plan"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "plan --nproc 2"), done.stderr


def test_ranks_of_a_large_job_meet_at_its_first_host(tmp_path: Path) -> None:
    """A list of thousands of hosts does not fit into a pipe at once: who reads its first line alone kills scontrol."""
    (tmp_path / "scontrol").write_text("#!/usr/bin/env bash\nexec seq -f 'localhost%.0f' 0 9999\n")
    (tmp_path / "getent").write_text("#!/usr/bin/env bash\n")
    for name in ("scontrol", "getent"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    say = 'echo "$MASTER_ADDR $MASTER_PORT"'
    command = ["bash", "-c", f". {shipped('launch') / 'env.sh'}; meet; {say}; meet 1; {say}"]
    environment |= {"SLURM_JOB_NODELIST": "localhost[0-9999]"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "localhost0 10007\nlocalhost0 15006\n"), done.stderr
    done = subprocess.run(command, env={**environment, "MASTER_PORT": "29500"}, capture_output=True, text=True)
    assert done.stdout == "localhost0 29500\nlocalhost0 29500\n", "a port that a person chose stays"


def test_who_a_rank_is_and_where_it_meets_others_no_submitting_shell_says(tmp_path: Path) -> None:
    """SLURM hands a shell's variables down to its jobs: with RANK=0 and WORLD_SIZE=1 each task trained a run alone."""
    for name, says in (("scontrol", "printf 'here\\nthere\\n'"), ("getent", ":")):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{says}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    say = 'echo "$MASTER_ADDR ${RANK-} ${WORLD_SIZE-} ${LOCAL_RANK-} ${LOCAL_WORLD_SIZE-}"'
    command = ["bash", "-c", f". {shipped('launch') / 'env.sh'}; meet; {say}"]
    for given, nodes, address in (
        ("localhost", "2", "here"),
        ("127.0.0.1", "2", "here"),
        ("localhost", "1", "localhost"),
        ("10.0.0.1", "2", "10.0.0.1"),
    ):
        told = {**environment, "SLURM_JOB_NODELIST": "here,there", "SLURM_NNODES": nodes, "MASTER_ADDR": given}
        done = subprocess.run(command, env=told, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()) == (0, [address]), done.stderr
