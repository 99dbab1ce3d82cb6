"""`slurm submit COMMAND ...`: from the command line of any command to what is submitted for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.parser import Members, joined, parse_arguments
from gpt1_ds.common.errors import CheckpointError, ConfigError, UserError

if TYPE_CHECKING:
    from gpt1_ds.config import Config
    from gpt1_ds.slurm.submit import JobSubmission


def job_config(command: str, files: list[str], overrides: list[str], world: int | None = None) -> Config:
    """Returns the configuration of a job, which `world` ranks run; None before its submission. Raises ConfigError where
    its ranks would.
    """
    from gpt1_ds.config import world_problems
    from gpt1_ds.launcher import accelerator
    from gpt1_ds.slurm import submit
    from gpt1_ds.training.configuration import finetune_config, pretrain_config

    if command not in submit.TRAINING:
        raise UserError(f"{command}: jobs that continue one another are of {' or '.join(submit.TRAINING)}")
    config = (finetune_config if command == "finetune" else pretrain_config)(files, overrides)
    slurm = config.slurm
    ranks = world or slurm.nodes * slurm.ranks
    config = accelerator.with_fitted_micro_batch(config, ranks)
    ConfigError.raise_all(world_problems(config, ranks))
    if world is None:
        ConfigError.raise_all(submit.layout_problems(config))
    return config


def planned(members: Members, arguments: Sequence[str], after: Sequence[str]) -> tuple[JobSubmission, Config]:
    """Returns what to submit for a command line of the program, and the configuration of its job. Raises UserError for
    what the command itself would refuse at once.
    """
    from gpt1_ds.config import load
    from gpt1_ds.slurm import submit

    after_keys = [f"slurm.after=[{','.join(after)}]"] if after else []
    command = arguments[0]
    if command in submit.TRAINING and joined(members, arguments)[0] == command:
        options = parse_arguments(members, arguments)
        if options.sweep or options.print_config or options.nproc is not None or options.restarts:
            raise UserError(
                f"slurm submit {command}: a job is one run, on the ranks of slurm.*; leave --nproc, --sweep out, and "
                "write slurm.restarts=N for --restarts"
            )
        overrides = [*options.overrides, *after_keys]
        try:
            config = job_config(command, options.config, overrides)
        except CheckpointError:  # an earlier job may make the checkpoint
            config = load(options.config, overrides)
            if not config.slurm.after:
                raise
            return submit.prepare(command, config, submit.Written(options.config, options.overrides)), config
        return submit.prepare(command, config), config
    if command in ("slurm", "guide", "completion"):
        raise UserError(f"slurm submit {command}: computes nothing; run it here")
    arguments, files, overrides = _without_job_keys(members, arguments)
    config = load(files, [*overrides, *after_keys])
    if config.slurm.nodes > 1:
        raise ConfigError(f"slurm.nodes={config.slurm.nodes}: {command} runs on one node; leave it out")
    if config.slurm.spare_nodes:
        spares = f"slurm.spare_nodes={config.slurm.spare_nodes}"
        raise ConfigError(f"{spares}: {command} has no ranks that begin again; leave it out")
    if hasattr(parse_arguments(members, arguments), "nproc") and "--nproc" not in arguments and config.slurm.ranks > 1:
        arguments = [*arguments, "--nproc", str(config.slurm.ranks)]
    return submit.prepare_command(arguments, config), config


def _without_job_keys(members: Members, arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns (the arguments of the command itself, files of its job, keys of its job). Keys of `slurm` and `run` are
    the job's, and so are files; a command that reads a configuration gets the files and the keys of `run`, too.
    """
    job_keys = [argument for argument in arguments if argument.startswith(("slurm.", "run."))]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", action="append", default=[])
    of_job, own = parser.parse_known_args([argument for argument in arguments if argument not in job_keys])
    options = parse_arguments(members, own)
    if hasattr(options, "config"):
        own += [part for name in of_job.config for part in ("-c", name)]
    if hasattr(options, "overrides"):
        own += [key for key in job_keys if key.startswith("run.")]
    return own, of_job.config, job_keys


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Returns (configuration files, key=value overrides) of a command that trains."""
    parser = argparse.ArgumentParser("gpt1-ds", add_help=False)
    shared_options.training(parser)
    known, rest = parser.parse_known_args(arguments)
    return known.config, [*known.overrides, *rest]
