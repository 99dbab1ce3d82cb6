"""Hidden commands of `slurm`, which the batch scripts of launch/ call in a job."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands.parser import Command
from gpt1_ds.commands.slurm_submission import job_config, split
from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import RUN_VARIABLE, RunDir
from gpt1_ds.slurm import status, tries
from gpt1_ds.slurm.faults import Fault, fault_of, write_fault

if TYPE_CHECKING:
    from gpt1_ds.training.checks import Start

LAUNCHERS = ("torchrun", "srun")


def _chain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", required=True)
    parser.add_argument("--restart", default="0", help="times SLURM has requeued it")
    parser.add_argument(
        "--faults", type=int, default=0, help="jobs of other numbers before it, in a row, that a fault ended"
    )
    parser.add_argument("--avoid", default="", help="nodes that they were on")
    parser.add_argument("--pause", type=int, required=True, help="seconds before another try, after the first fault")
    parser.add_argument("--max-tries", type=int, required=True)
    poor = "jobs in a row that may cost more than they gain"
    parser.add_argument("--poor-tries", type=int, required=True, help=poor)
    parser.add_argument("--restarts", type=int, default=0, help="times that a job may start its ranks again")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="torchrun", help="of slurm.launcher")


def _command_line(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def _begin_options(parser: argparse.ArgumentParser) -> None:
    _chain_options(parser)
    parser.add_argument("--world", type=int, required=True)
    _command_line(parser)


def _begin(options: argparse.Namespace) -> int:
    """Checks what the job's ranks will be given, records the try and prints the run folder. After a fault that is not
    the run's own, it prints what follows instead.
    """
    from gpt1_ds.training.checks import Start

    start: Start | None = None
    command, *arguments = options.arguments
    try:
        with contextlib.redirect_stdout(sys.stderr):
            start = Start(job_config(command, *split(arguments), options.world), options.world)
        print(_prepare(options, start))
    except (UserError, OSError) as error:
        fault = fault_of(error)
        if fault is None:
            raise
        return _conclude(options.job, tries.after_fault(fault, _chain(options, start.run_dir if start else None)))
    return 0


def _prepare(options: argparse.Namespace, start: Start) -> Path:
    """Returns the run folder of a job, in which its ranks may now start."""
    from gpt1_ds.launcher import accelerator
    from gpt1_ds.training import claim

    with contextlib.redirect_stdout(sys.stderr):
        start.check()
        accelerator.prepare(start.config)
        start = start.with_corpus()
        run_dir = start.run_dir
        run_dir.create(start.config.run.share, job=True)
        with RunLock(run_dir.lock, start.config.guard.lock_timeout):  # waited for here, before all ranks wait for it
            claim.take(run_dir, start.resolved)
            tries.begin(run_dir, options.job, options.restart)
    return run_dir.path.resolve()


def _end_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    _chain_options(parser)
    parser.add_argument("--status", type=int, required=True, help="exit status of the ranks' launcher")
    parser.add_argument("--lost", default="", help="nodes of the ranks that are gone")
    parser.add_argument("--spares", type=int, default=0, help="nodes beyond those that ranks need; negative: too few")


def _end(options: argparse.Namespace) -> int:
    """Prints what follows the job, and returns the run's exit code."""
    run_dir = RunDir(Path(options.run))
    nodes = tries.NodesLeft(_listed(options.lost), options.spares)
    verdict = tries.end(run_dir, options.job, options.restart, options.status, _chain(options, run_dir), nodes)
    return _conclude(options.job, verdict)


def _chain(options: argparse.Namespace, run_dir: RunDir | None) -> tries.Chain:
    faults = options.faults + int(options.restart)
    if run_dir is not None:
        faults = tries.faults_before(run_dir, options.job, options.restart, options.faults)
    return tries.Chain(
        faults=faults,
        avoid=_listed(options.avoid),
        pause=options.pause,
        max_tries=options.max_tries,
        poor_tries=options.poor_tries,
        restarts=options.restarts,
        deadline=float(os.environ.get("GPT1_DS_DEADLINE") or "inf"),
        launcher=options.launcher,
    )


def _listed(hosts: str) -> tuple[str, ...]:
    return tuple(host for host in hosts.split(",") if host)


def _conclude(job: str, verdict: tries.Verdict) -> int:
    with contextlib.suppress(OSError):  # the job's output may lie on the very disk that is full
        print(f"job {job}: {verdict.reason}; exit code {verdict.code}", file=sys.stderr)
    print(verdict)
    return verdict.code


def _stage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True)
    _command_line(parser)


def _stage(options: argparse.Namespace) -> int:
    """Copies the data to this node, if its disk has space; what cannot be copied is read where it is."""
    from gpt1_ds.data.staging import stage

    try:
        stage(_staged_sources(options.arguments), Path(options.to), os.environ.get(RUN_VARIABLE, ""))
    except OSError as error:
        print(f"{os.uname().nodename}: the data are read where they are: {error}", file=sys.stderr)
    return 0


def _unstage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True)
    parser.add_argument("--keep", action="store_true", help="others will read the copies")
    _command_line(parser)


def _unstage(options: argparse.Namespace) -> int:
    """Removes this node's copies of the data that no other run reads: the run has ended."""
    from gpt1_ds.data.staging import release

    try:
        release(_staged_sources(options.arguments), Path(options.to), os.environ.get(RUN_VARIABLE, ""), options.keep)
    except OSError as error:
        print(f"{os.uname().nodename}: copies of the data stay in {options.to}: {error}", file=sys.stderr)
    return 0


def _staged_sources(arguments: list[str]) -> list[str]:
    """Returns the datasets that are copied to this node; none for a task's files, which are read once."""
    from gpt1_ds.config import load

    command, *rest = arguments
    if command != "pretrain" or os.environ.get("SLURM_LOCALID", "0") != "0":  # one task of a node is enough
        return []
    return [source.path for source in load(*split(rest)).data.path]


def _node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, required=True, help="ranks of this node")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="torchrun", help="of slurm.launcher")
    _command_line(parser)


def _node(options: argparse.Namespace) -> int:
    """Starts the ranks of this node as torchrun does, or becomes the one rank that this task is."""
    from gpt1_ds.launcher import agent
    from gpt1_ds.launcher.network import try_port

    program = ["-m", "gpt1_ds", *options.arguments]
    cores = len(os.sched_getaffinity(0)) // options.ranks
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))  # torchrun would say 1
    if os.environ.get("SLURM_PROCID") == "0":
        try_port()
    nodes = os.environ["SLURM_NNODES"]  # of this step
    # scripts that sbatch is given by hand know of tasks only
    if options.launcher == "srun" or int(os.environ.get("SLURM_NTASKS", nodes)) > int(nodes):
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(options.ranks))
        os.execv(sys.executable, [sys.executable, "-P", *program])  # the agent's ranks have PYTHONSAFEPATH from cli.py
    torchrun = [f"--nnodes={nodes}", f"--node-rank={os.environ['SLURM_NODEID']}"]
    torchrun += [f"--nproc-per-node={options.ranks}", f"--master-addr={os.environ['MASTER_ADDR']}"]
    torchrun += [f"--master-port={os.environ['MASTER_PORT']}", "--shutdown-timeout=120"]
    torchrun += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]  # USR1 would end its agent, not its ranks
    return agent.run([*torchrun, *program])


def _line_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifest")
    parser.add_argument("number", type=int)


def _line(options: argparse.Namespace) -> int:
    """Prints the arguments of one line of a manifest, each ended by a NUL."""
    try:
        lines = Path(options.manifest).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{options.manifest}: cannot be read: {error}") from None
    if not 0 <= options.number < len(lines):
        raise DataError(f"{options.manifest}: has no line {options.number}, only 0 to {len(lines) - 1}")
    try:
        arguments = json.loads(lines[options.number])
    except ValueError:
        arguments = None
    is_list = isinstance(arguments, list) and len(arguments) > 0
    if not is_list or not all(isinstance(argument, str) and "\0" not in argument for argument in arguments):
        line = f"{options.manifest}: line {options.number}"
        raise DataError(f'{line} is no list of arguments, like ["pretrain", "-c", "a"]')
    sys.stdout.write("".join(f"{argument}\0" for argument in arguments))
    return 0


def _health_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder")


def _health(options: argparse.Namespace) -> int:
    from gpt1_ds.diagnostics.health import examine
    from gpt1_ds.launcher import launch

    launch.world(None)  # of a task of srun, too: which rank it is
    return examine(Path(options.folder))


def _prove_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--gpus-per-node", type=int, default=0)


def _prove(options: argparse.Namespace) -> int:
    from gpt1_ds.launcher import launch

    launch.world(None)
    arguments = (Path(options.folder), options.gpus_per_node, options.overrides)
    return launch.start("gpt1_ds.diagnostics.self_proof:prove_job", arguments, None)


def _verdict_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder")
    parser.add_argument("hosts", nargs="+")
    parser.add_argument("--spares", type=int, default=0, help="hosts that may be bad, because others take their place")


def _verdict(options: argparse.Namespace) -> int:
    """Reports how the hosts are, and prints the bad ones, with commas between, where the others are enough."""
    reports = status.read_reports(Path(options.folder))
    passed, lines = status.verdict(reports, options.hosts)
    bad = dict(status.bad_hosts(reports, options.hosts))
    if 0 < len(bad) <= options.spares:
        passed, lines[-1] = True, f"spare nodes take the place of {', '.join(bad)}"
        print(",".join(bad))
    print("\n".join(lines), file=sys.stderr)
    if not passed and bad and RUN_VARIABLE in os.environ:  # in a job of a run: what all have is no node's own fault
        fault = Fault("; ".join(lines[:-1] or lines), tuple(bad) if len(bad) < len(options.hosts) else ())
        write_fault(RunDir(Path(os.environ[RUN_VARIABLE])), "check", fault)
    return 0 if passed else 1


STEP = "a step of launch/env.sh"
COMMANDS = (
    Command("begin", STEP, _begin, _begin_options, hidden=True),
    Command("stage", STEP, _stage, _stage_options, hidden=True),
    Command("unstage", STEP, _unstage, _unstage_options, hidden=True),
    Command("node", STEP, _node, _node_options, hidden=True),
    Command("end", STEP, _end, _end_options, hidden=True),
    Command("line", STEP, _line, _line_options, hidden=True),
    Command("health", STEP, _health, _health_options, hidden=True),
    Command("prove", "a step of launch/check.sh", _prove, _prove_options, hidden=True),
    Command("verdict", STEP, _verdict, _verdict_options, hidden=True),
)
