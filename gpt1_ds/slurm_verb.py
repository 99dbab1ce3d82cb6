"""Verbs about jobs: `slurm submit`, `status` and `check`, and what the batch scripts call: `begin`, `end`, `node`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, DataError, LaunchError, UserError
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import shown
from gpt1_ds.config import Config, load, world_problems
from gpt1_ds.parallel.network import try_port
from gpt1_ds.slurm import check as health_check
from gpt1_ds.slurm import status as job_status
from gpt1_ds.slurm import submit as submission
from gpt1_ds.slurm import tries
from gpt1_ds.slurm.faults import RUN_VARIABLE, Fault, fault_of
from gpt1_ds.slurm.faults import write as write_fault
from gpt1_ds.slurm.request import sbatch_options


def submit(options: argparse.Namespace) -> int:
    config = _checked(options.what, options.config, options.overrides)
    planned = submission.prepare(options.what, config)
    if options.dry_run:
        for name, text in planned.files.items():
            print(f"# {planned.place / name}\n{text.rstrip()}\n")
        print(shlex.join(planned.command()))
        return 0
    job = submission.submit(planned, config.run.share)
    job_status.note_submission(planned.run_dir, job)
    run = planned.run_dir.path
    print(f"job {job}: {planned.run_dir.slurm.resolve()}/{job}.out")
    print(f"watch it:                  gpt1-ds slurm status {run}")
    print(f"save and end:              touch {run}/STOP")
    print(f"save and go on in a next:  scancel --batch --signal=USR1 {job}")
    return 0


def status(options: argparse.Namespace) -> int:
    for line in job_status.describe(RunDir(Path(options.run))):
        print(shown(line).replace("\n", " "))
    return 0


def check(options: argparse.Namespace) -> int:
    """An allocation for a minute, and the check in it."""
    config = load(options.config, options.overrides)
    if shutil.which("salloc") is None:
        raise LaunchError("salloc is not here; check from a host of the cluster")
    wanted = ("nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "account", "partition", "qos", "exclude")
    asked = sbatch_options(config, RunDir(Path(config.run.dir)))
    words = [word for word in asked if word.lstrip("-").partition("=")[0] in wanted]
    with tempfile.TemporaryDirectory(dir=".") as scratch:  # on the disk that the nodes share
        place = Path(scratch).resolve()
        for name, text in submission.scripts("check.sh", config, asked).items():
            (place / name).write_text(text)
        return subprocess.run(
            ["salloc", "--quiet", "--time=5", *words, "bash", str(place / "check.sh"), str(place)], check=False
        ).returncode


def health(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel.health import examine

    return examine(Path(options.folder))


def verdict(options: argparse.Namespace) -> int:
    reports = health_check.read_reports(Path(options.folder))
    well, lines = health_check.verdict(reports, options.hosts)
    print("\n".join(lines))
    bad = dict(health_check.bad_hosts(reports, options.hosts))
    if bad and RUN_VARIABLE in os.environ:  # in a job of a run: what all nodes have is not a node's own fault
        fault = Fault("; ".join(lines[:-1]), tuple(bad) if len(bad) < len(options.hosts) else ())
        write_fault(RunDir(Path(os.environ[RUN_VARIABLE])), "check", fault)
    return 0 if well else 1


def begin(options: argparse.Namespace) -> int:
    """Check what the job's ranks will be told, note the try, print the run folder; after a fault of the world, print
    what follows instead."""
    try:
        print(_begin(options))
    except (UserError, OSError) as error:
        fault = fault_of(error)
        if fault is None:
            raise
        return _conclude(options.job, tries.after_fault(fault, _chain(options)))
    return 0


def _begin(options: argparse.Namespace) -> Path:
    verb, *words = options.words
    files, overrides = _split(words)
    with contextlib.redirect_stdout(sys.stderr):
        config = _checked(verb, files, overrides, options.world)
        _check_data(verb, config)
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    run_dir.create(config.run.share)
    with RunLock(run_dir.lock, config.guard.lock_timeout):  # waited for here, before all ranks wait for it
        tries.begin(run_dir, options.job, options.restart)
    return run_dir.path.resolve()


def end(options: argparse.Namespace) -> int:
    """Print what follows; exit with what the run said."""
    run_dir = RunDir(Path(options.run))
    return _conclude(options.job, tries.end(run_dir, options.job, options.restart, options.status, _chain(options)))


def _chain(options: argparse.Namespace) -> tries.Chain:
    avoid = tuple(host for host in options.avoid.split(",") if host)
    return tries.Chain(options.faults, avoid, options.pause, options.max_tries, options.poor_tries)


def _conclude(job: str, verdict: tries.Verdict) -> int:
    with contextlib.suppress(OSError):  # the job's output may lie on the very disk that is full
        print(f"job {job}: {verdict.reason}; exit code {verdict.code}", file=sys.stderr)
    print(verdict)
    return verdict.code


def stage(options: argparse.Namespace) -> int:
    """Copy the data to this node, if there is room; what cannot be copied is read where it is."""
    from gpt1_ds.data.staging import stage as copy

    if os.environ.get("SLURM_LOCALID", "0") != "0":  # one task of a node is enough
        return 0
    verb, *words = options.words
    if verb != "pretrain":  # a task's files are read once
        return 0
    config = load(*_split(words))
    try:
        copy([source.path for source in config.data.path], Path(options.to))
    except OSError as error:
        print(f"{os.uname().nodename}: the data are read where they are: {error}", file=sys.stderr)
    return 0


def node(options: argparse.Namespace) -> int:
    """Become the ranks of this node: torchrun with its place among the nodes, or the one rank that this task is."""
    program = [sys.executable, "-m", "gpt1_ds", *options.words]
    cores = len(os.sched_getaffinity(0)) // options.ranks
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))  # torchrun would say 1
    if os.environ.get("SLURM_PROCID") == "0":
        try_port()
    nodes = os.environ["SLURM_NNODES"]
    if int(os.environ.get("SLURM_NTASKS", nodes)) > int(nodes):
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(options.ranks))
        os.execv(program[0], program)
    torchrun = ["-m", "torch.distributed.run", f"--nnodes={nodes}", f"--node-rank={os.environ['SLURM_NODEID']}"]
    torchrun += [f"--nproc-per-node={options.ranks}", f"--master-addr={os.environ['MASTER_ADDR']}"]
    torchrun += [f"--master-port={os.environ['MASTER_PORT']}", "--shutdown-timeout=120"]
    torchrun += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]  # USR1 would end its agent, not its ranks
    os.execv(program[0], [program[0], *torchrun, *program[1:]])


def line(options: argparse.Namespace) -> int:
    """The words of one line of a manifest, each ended by a NUL."""
    lines = Path(options.manifest).read_text().splitlines()
    if not 0 <= options.number < len(lines):
        raise DataError(f"{options.manifest}: has no line {options.number}, only 0 to {len(lines) - 1}")
    try:
        words = json.loads(lines[options.number])
    except ValueError:
        words = None
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        raise DataError(f'{options.manifest}: line {options.number} is no list of words like ["pretrain", "-c", "a"]')
    sys.stdout.write("".join(f"{word}\0" for word in words))
    return 0


def _checked(verb: str, files: list[str], overrides: list[str], world: int | None = None) -> Config:
    """The configuration, refused where its ranks would refuse it."""
    if verb not in submission.VERBS:
        raise UserError(f"{verb}: jobs are of {' or '.join(submission.VERBS)}")
    if verb == "finetune":
        from gpt1_ds.task_verbs import finetune_config

        config = finetune_config(files, overrides)
    else:
        config = load(files, overrides)
    slurm = config.slurm
    ConfigError.raise_all(world_problems(config, world or slurm.nodes * slurm.ranks))
    if world is None:
        ConfigError.raise_all(submission.layout_problems(config))
    return config


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """(configuration files, key=value words) of a verb's command line."""
    from gpt1_ds import verb_options

    parser = argparse.ArgumentParser("gpt1-ds", add_help=False)
    verb_options.training(parser)
    known, rest = parser.parse_known_args(words)
    return known.config, [*known.overrides, *rest]


def _check_data(verb: str, config: Config) -> None:
    if verb == "finetune":
        from gpt1_ds.task_verbs import check_task

        check_task(config)
    else:
        from gpt1_ds.verbs import check_data, with_embedded_corpus

        check_data(with_embedded_corpus(config))
