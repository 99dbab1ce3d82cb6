"""`slurm`: runs as jobs of a cluster."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands import finetune, key_sweep, pretrain, scaling, shared_options, slurm_job, slurm_submission
from gpt1_ds.commands.file_checks import output_problems
from gpt1_ds.commands.parser import Command, Group, Members, Parser, joined, parse_arguments
from gpt1_ds.common.errors import EXIT_USAGE, ConfigError, LaunchError
from gpt1_ds.common.files import naming, scratch_folder
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import shown
from gpt1_ds.diagnostics.report import conclude
from gpt1_ds.slurm import status as job_status

if TYPE_CHECKING:
    from gpt1_ds.sweep.trial import Sweep

STUDY = "finetune study"
MINUTES = {False: 5, True: 15}  # of a check's allocation, without and with GPUs


def _submit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="COMMAND", help="pretrain, finetune, or any other, with its arguments")
    shared_options.configuration(parser)
    _own_options(parser)


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print all files and the command, write nothing")
    after = "a job's number, or a run folder: begin when it has ended well; may be given several times (default: none)"
    parser.add_argument("--after", action="append", default=[], metavar="JOB", help=after)
    parser.add_argument(
        "--parsable", action="store_true", help="print only the job's number, of a study the last job's"
    )
    parser.add_argument("--stage", type=int, default=1, help=argparse.SUPPRESS)  # 2: the models of a study were trained


def passed_on(options: argparse.Namespace) -> tuple[argparse.Namespace, list[str]]:
    """Returns (the options of `slurm submit` itself, the arguments of the job's command)"""
    parser = Parser("gpt1-ds slurm submit", add_help=False, allow_abbrev=False)
    _own_options(parser)
    own, arguments = parser.parse_known_args(options.parser.given)
    arguments.remove(options.what)
    return own, [options.what, *arguments]


def _submit(options: argparse.Namespace) -> int:
    from gpt1_ds.config.validate import secret_arguments
    from gpt1_ds.slurm import submit

    own, arguments = passed_on(options)
    ConfigError.raise_all(secret_arguments(arguments))
    sweep, last, after_trial = _sweep_of(options.program, arguments, own)
    if sweep is not None:
        return _submit_cells(sweep, last, after_trial, own)
    planned, config = slurm_submission.planned(options.program, arguments, own.after)
    if own.dry_run:
        for name, text in planned.files.items():
            print(f"# {planned.place / name}\n{text.rstrip()}\n")
        print(shlex.join(planned.command()))
        if config.slurm.cost_of_spares:
            print(f"# {config.slurm.cost_of_spares}")
        return 0
    job = submit.submit(planned, config.run.share)
    if own.parsable:
        print(job)
        return 0
    run = shlex.quote(str(planned.run_dir.path))
    print(f"job {job}: {planned.run_dir.slurm.resolve()}/{job}.out")
    print(f"watch it:                  gpt1-ds slurm status {run}")
    if options.what in submit.TRAINING:
        print(f"save and end:              touch {run}/STOP")
        print(f"record where time goes:    touch {run}/PROFILE")
        print(f"save and continue in a next:  scancel --batch --signal=USR1 {job}")
    return 0


def _sweep_of(
    members: Members, arguments: Sequence[str], own: argparse.Namespace
) -> tuple[Sweep | None, list[str], list[str]]:
    """Returns (the sweep of a command line of the program, the arguments that collect it, those of a task when its cell
    has ended); None for one that is no sweep.
    """
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.training.configuration import check_task, finetune_config

    after_keys = [f"slurm.after=[{','.join(own.after)}]"] if own.after else []
    if list(arguments[:2]) == ["scaling", "run"]:
        asked = parse_arguments(members, arguments)
        sweep = read_sweep(asked.study, [*asked.overrides, *after_keys], prepare=not own.dry_run)
        return sweep, *scaling.collecting(sweep, asked.study, asked.overrides)
    command = joined(members, arguments)[0]
    if command not in ("pretrain", "finetune", STUDY):
        return None, [], []
    asked = parse_arguments(members, arguments)
    asked.overrides = [*asked.overrides, *after_keys]
    if command == STUDY:
        return *_of_study(asked, list(arguments), own), []
    if not key_sweep.is_asked(asked):
        return None, [], []
    parts = (finetune_config, check_task) if command == "finetune" else pretrain.swept(own.dry_run)
    return key_sweep.make(asked, *parts), list(arguments), []


def _of_study(asked: argparse.Namespace, arguments: list[str], own: argparse.Namespace) -> tuple[Sweep, list[str]]:
    """Returns the models of a study, whose last job submits the cells; their last job writes the page."""
    from gpt1_ds.sweep.pretraining_trials import PretrainingSweep

    sweep = finetune.next_sweep(asked, make=not own.dry_run)
    if not isinstance(sweep, PretrainingSweep):
        return sweep, arguments
    if own.stage > 1:
        left = ", ".join(map(str, sweep.left))
        raise LaunchError(f"{sweep.folder}: were not trained: {left}; their jobs' output says why; submit it again")
    return sweep, ["slurm", "submit", *arguments, "--stage", "2"]


def _submit_cells(sweep: Sweep, last: Sequence[str], after_trial: Sequence[str], own: argparse.Namespace) -> int:
    """Submits the cells that are not done and the job that collects them, or shows what would be. The exit code."""
    from gpt1_ds.sweep import arrays

    numbers, lines = arrays.start(sweep, sweep.trials[0].config.slurm.jobs, last, after_trial, own.dry_run)
    print(*(numbers[-1:] if own.parsable and numbers else lines), sep="\n")
    return 0


def _status_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")


def _status(options: argparse.Namespace) -> int:
    for line in job_status.describe(RunDir(Path(options.run))):
        print(shown(line).replace("\n", " "))
    return 0


def _check_options(parser: argparse.ArgumentParser) -> None:
    shared_options.configuration(parser)
    out = "where the self-proof of the GPUs goes (default: gpu-check-HOST-DATE.json)"
    parser.add_argument("--out", metavar="FILE", help=out)


def _check(options: argparse.Namespace) -> int:
    """Prints what the site says, then asks for an allocation of some minutes and runs the checks in it. Returns the
    exit code.
    """
    from gpt1_ds.config import load
    from gpt1_ds.slurm.site import assumptions
    from gpt1_ds.slurm.status import proof_arguments, read_proof
    from gpt1_ds.slurm.submit import environment, sbatch_options, scripts

    ConfigError.raise_all(output_problems("--out", options.out))
    config = load(options.config, options.overrides)
    if shutil.which("salloc") is None:
        raise LaunchError("salloc is not here; check from a host of the cluster")
    lines = list(assumptions(config.slurm))
    print(*lines, sep="\n", flush=True)
    if any(line.holds is False for line in lines):
        return EXIT_USAGE
    ours = ("job-name", "output", "time", "signal", "dependency", "open-mode", "requeue", "export")  # of a batch job
    asked = sbatch_options(config, RunDir(Path(config.run.dir)))
    passed = [option for option in asked if option.lstrip("-").partition("=")[0] not in ours]
    minutes = MINUTES[config.slurm.gpus > 0]
    with scratch_folder(".") as scratch:  # on the disk that the nodes share
        place = Path(scratch).resolve()
        for name, text in scripts("check.sh", config, asked).items():
            with naming(place / name):
                (place / name).write_text(text, encoding="utf-8")
        command = ["salloc", "--quiet", f"--time={minutes}", *passed, "bash", str(place / "check.sh"), str(place)]
        code = subprocess.run([*command, *proof_arguments(config)], env=environment(), check=False).returncode
        proof = read_proof(place, config.slurm.gpus, code)
    if proof is None:
        return code
    return conclude(proof, Path(options.out) if options.out else None) or code


COMMAND = Group(
    "slurm",
    "runs as jobs of a cluster",
    (
        Command("submit", "any command as a job: its folder, its script", _submit, _submit_options, passes_on=True),
        Command("status", "a run's jobs and what it says itself", _status, _status_options),
        Command("check", "a minute on every node, more with GPUs; names bad hosts", _check, _check_options),
        *slurm_job.COMMANDS,
    ),
)
