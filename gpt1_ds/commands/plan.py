"""`plan`: memory, time and the best layout. Never loads torch, unless it is to measure this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.file_checks import output_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.config import Config


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared_options.configuration(parser)
    world = "ranks to plan for (default: tensor x pipeline; with --search, those of one node)"
    parser.add_argument("--world", type=int, metavar="N", help=world)
    parser.add_argument(
        "--memory", type=float, metavar="GIB", help="memory that one rank may use (default: the machine's)"
    )
    parser.add_argument("--search", action="store_true", help="rank all legal layouts, and say why the others lose")
    best = "with --search: write the best layout there, for -c (default: nothing is written)"
    parser.add_argument("--out", metavar="FILE", help=best)
    parser.add_argument("--calibrate", action="store_true", help="measure this machine first, in a minute or two")
    machine = "h100, h200, a100, cpu (this one) or a file (default: $GPT1_DS_MACHINE, else what --calibrate measured, "
    machine += "else this machine; h100 where GPUs are asked for or the ranks are too many for it)"
    parser.add_argument("--machine", metavar="NAME", help=machine)
    parser.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.plan import machine
    from gpt1_ds.plan.planning import Planning, usable_bytes

    config, vocab_size, data_tokens = _planned(options.config, options.overrides)
    _check(options)
    if options.calibrate:
        _calibrate(options.machine)
        if not options.config and not options.overrides and not options.search and options.world is None:
            return 0
    found = machine.find_machine(options.machine, _device(config, options.world))
    default = found.ranks_per_node if options.search else config.parallel.tensor * config.parallel.pipeline
    world = options.world or default
    limit = usable_bytes(options.memory, found, world)
    planning = Planning(config, world, vocab_size, data_tokens, found, limit)
    return planning.search(options.json, options.out) if options.search else planning.plan(options.json)


def _planned(files: Sequence[str], overrides: Sequence[str]) -> tuple[Config, int | None, int | None]:
    """Returns the configuration that `pretrain` or, with a task, `finetune` trains with, its vocabulary and the tokens
    of its data, where they are known. The steps of fine-tuning are those of its examples. Raises UserError.
    """
    from gpt1_ds.config.layers import names_task
    from gpt1_ds.data.sources import found_data
    from gpt1_ds.training.checks import Start
    from gpt1_ds.training.configuration import finetune_config, pretrain_config

    if not names_task(files, overrides):
        config = pretrain_config(files, overrides)
        return config, *found_data(config)
    start = Start(finetune_config(files, overrides), world=1)
    config, steps = start.resolved, start.steps
    config = replace(config, train=replace(config.train, steps=steps, epochs=None))
    return config, config.model.vocab_size, None


def _device(config: Config, world: int | None) -> str:
    """Returns what a plan is for that names no machine: "cuda" where the configuration asks for GPUs, where this
    machine has one, and where the ranks are more than its cores.
    """
    from gpt1_ds.launcher import accelerator
    from gpt1_ds.plan import machine

    if config.train.device == "cpu":
        return "cpu"
    asked = config.slurm.gpus or accelerator.promised(config.train.device, 0, os.environ)
    return "cuda" if asked or (world or 1) > machine.PRESETS["cpu"].ranks_per_node else "cpu"


def _check(options: argparse.Namespace) -> None:
    if options.world is not None and options.world < 1:
        raise ConfigError(f"--world={options.world}: at least 1 rank is needed")
    if options.memory is not None and not (options.memory > 0 and math.isfinite(options.memory)):
        raise ConfigError(f"--memory={options.memory}: a rank needs more than 0 GiB")
    if options.out and not options.search:
        raise ConfigError(f"--out={options.out}: only a search has a best layout to write; add --search")
    ConfigError.raise_all(output_problems("--out", options.out))


def _calibrate(name: str | None) -> None:
    """Measures this machine and keeps the result where it will be found."""
    from gpt1_ds.plan import machine

    if name in machine.PRESETS:
        raise ConfigError(f"--machine={name}: the name of a preset; give the file to write, or leave it out")
    path = Path(name) if name else machine.default_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    ConfigError.raise_all(output_problems("--machine", str(path)))
    libraries.load()
    from gpt1_ds.training.calibrate import calibrate

    measured = calibrate()
    machine.write(measured, path)
    print(f"{path}: {measured.name}, {measured.source}")
    print(json.dumps(asdict(measured.node)), "between ranks")


COMMAND = Command(
    "plan", "memory, time and the best layout of a configuration, without torch or a GPU", _run, _add_options
)
