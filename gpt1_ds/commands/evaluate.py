"""`evaluate`: held-out loss, zero-shot probes, tasks of lm-evaluation-harness, or a task's scores."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.file_checks import output_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import share_as

if TYPE_CHECKING:
    from gpt1_ds.config import Config


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    shared_options.configuration(parser)
    parser.add_argument(
        "--out", metavar="FILE", help="the file that the result is added to (default: the run's eval.json)"
    )
    every = "evaluate all checkpoints of a run folder that the file of --out does not have yet"
    parser.add_argument("--every", action="store_true", help=every)
    points = "with --every: evaluate N of them, spread evenly on a log scale of steps (default: all)"
    parser.add_argument("--points", type=int, metavar="N", help=points)
    pairs = "score sentence vectors of any checkpoint by the pairs of this folder (STS-B) or file (default: do not)"
    parser.add_argument("--sts", metavar="PATH", help=pairs)
    shared_options.pooling(parser)
    harness = "ask tasks of lm-evaluation-harness, NAME,... or task files FILE.yaml,... (default: do not)"
    parser.add_argument("--lm-eval", metavar="TASKS", help=harness)
    limit = "with --lm-eval: the first N examples of each task (default: all)"
    parser.add_argument("--limit", type=int, metavar="N", help=limit)
    shared_options.ranks(parser)


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.folders import find_checkpoint, while_it_is_there

    folder = find_checkpoint(Path(options.checkpoint))
    with while_it_is_there(folder):
        return _evaluate(options, folder)


def _evaluate(options: argparse.Namespace, folder: Path) -> int:
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.checkpoint.verify import verify_files
    from gpt1_ds.config import load_carried, world_problems
    from gpt1_ds.config.unread import unread_by_evaluate
    from gpt1_ds.launcher import accelerator, launch

    run = folder.parent.parent
    default = str(run / "eval.json") if (run / "config.yaml").exists() else None
    name = default if options.out is None else options.out
    ConfigError.raise_all(output_problems("--out", name))
    if options.out is None:
        share_as(run)
    if options.points is not None and not options.every:
        raise ConfigError(f"--points={options.points}: thins what --every takes; add --every")
    folders = _kept(Path(options.checkpoint), options.points) if options.every else [folder]
    layout = ["parallel.tensor=1", "parallel.pipeline=1", "parallel.zero=1", "parallel.sequence=false"]
    overrides = [*layout, "parallel.assembly=auto", "train.recompute=none", *options.overrides]
    files = {name: facts for name, facts in manifest.read(folder)["files"].items() if name == "config.yaml"}
    verify_files(folder, {"files": files})  # what is damaged may say anything; ranks verify the rest
    config = load_carried(folder / "config.yaml", options.config, overrides)
    world = launch.world(options.nproc)
    for line in unread_by_evaluate(options.overrides) if os.environ.get("RANK", "0") == "0" else ():
        say(line)
    config = _with_fitting_micro_batch(accelerator.with_fitted_micro_batch(config, world), world)
    ConfigError.raise_all(world_problems(config, world))
    accelerator.prepare(config, options.nproc)
    out = Path(name) if name else None
    if options.lm_eval is not None or options.limit is not None:
        tasks = _harness_tasks(options)
        target = "gpt1_ds.evaluation.continuations:evaluate_harness"
        return launch.start(target, (config, folders, out, tasks, options.limit, options.every), options.nproc)
    if options.sts or options.pooling:
        pairs = _scored_pairs(options, config)
        target = "gpt1_ds.evaluation.embed:evaluate_sts"
        return launch.start(target, (config, folders, out, pairs, options.pooling, options.every), options.nproc)
    if config.task is not None and not config.probes:
        target = "gpt1_ds.evaluation.evaluate:evaluate_task"
        return launch.start(target, (config, folders, out, options.every), options.nproc)
    config, held_out = _with_held_out(config, folder)
    if held_out and os.environ.get("RANK", "0") == "0" and (note := _rebuilt(config, folder)):
        say(note)
    _check_probes(config)
    task = (config, folders, out, held_out and config.task is None, options.every)
    return launch.start("gpt1_ds.evaluation.evaluate:evaluate", task, options.nproc)


def _harness_tasks(options: argparse.Namespace) -> list[str]:
    """Returns the tasks of --lm-eval. Raises ConfigError for one that is not there, or where the library is not."""
    from importlib.util import find_spec

    tasks = [name for name in (options.lm_eval or "").split(",") if name]
    if not tasks:
        raise ConfigError("--lm-eval: name tasks of the harness, like --lm-eval lambada_openai,blimp")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit={options.limit}: at least 1 example is needed; leave it out to ask all")
    if options.sts or options.pooling:
        raise ConfigError("--lm-eval and --sts: evaluate one of them at a time")
    if find_spec("lm_eval") is None:
        raise ConfigError("--lm-eval: lm-evaluation-harness is not installed; pip install 'gpt1-ds[lm-eval]'")
    return tasks


def _scored_pairs(options: argparse.Namespace, config: Config) -> str:
    """Where the scored pairs are, read once before ranks start. Raises ConfigError and DataError."""
    from gpt1_ds.tasks.reading import read_scored

    pairs = options.sts or (config.task.sts if config.task is not None else "")
    if not pairs:
        raise ConfigError(f"--pooling {options.pooling}: says how --sts makes vectors; add --sts PATH (STS-B)")
    if options.pooling == "cls" and config.model.mask == "causal":
        raise ConfigError("--pooling cls: model.mask=causal: its first token sees no other; use mean or max")
    read_scored(pairs)
    return str(pairs)


def _kept(run: Path, points: int | None) -> list[Path]:
    """Returns the checkpoints of a run folder, thinned to about `points`."""
    from gpt1_ds.checkpoint.folders import log_spaced, steps_in

    folders = steps_in(run / "checkpoints")
    if not folders:
        raise ConfigError(f"--every: {run} is one checkpoint; name its run folder, or leave --every out")
    if points is not None and points < 1:
        raise ConfigError(f"--points={points}: at least 1 checkpoint is needed")
    return folders if points is None else log_spaced(folders, points)


def _with_fitting_micro_batch(config: Config, world: int) -> Config:
    """Returns the micro-batch that this many ranks can divide among them: the results of an evaluation do not depend on
    it.
    """
    data_ranks = max(1, world // (config.parallel.tensor * config.parallel.pipeline))
    micro = math.gcd(config.train.micro_batch, config.train.global_batch // data_ranks) or 1
    return replace(config, train=replace(config.train, micro_batch=micro))


def _with_held_out(config: Config, folder: Path) -> tuple[Config, bool]:
    """Returns the configuration with its data found, and whether there is held-out text; probes do without it. Nothing
    is built: the checkpoint in `folder` learned from text that is there, and one that was imported names none.
    """
    from gpt1_ds.data.sources import lacks_embedded_corpus, open_data, with_embedded_corpus

    if not config.probes:
        if lacks_embedded_corpus(config):
            raise DataError(f"{folder}: names no text of its own that is here; name its text with data.path=FOLDER")
        config = with_embedded_corpus(config, make=False)
        open_data(config)
        return config, True
    try:
        return config, open_data(config).held_out is not None
    except DataError as error:
        say(f"no held-out loss: {error.problems[0]}")
        return config, False


def _rebuilt(config: Config, folder: Path) -> str | None:
    """Says that the text which a checkpoint learned from was built again in its place: what is held out there now, it
    may have seen. None where the text is as it was, or is another one on purpose.
    """
    from gpt1_ds.checkpoint import manifest
    from gpt1_ds.config import load_carried
    from gpt1_ds.data.sources import open_data

    own = load_carried(folder / "config.yaml").data.path
    if config.data.path != own or manifest.read(folder)["hashes"]["data"] == open_data(config).data_hash:
        return None
    return (
        f"{own[0].path}: was built again since {folder} was trained on it: its held-out text may have been trained on"
    )


def _check_probes(config: Config) -> None:
    """Says what is wrong with the probes' files once, all of it, before ranks start."""
    from gpt1_ds.tasks.zeroshot import read_probe

    problems: list[str] = []
    for probe in config.probes:
        try:
            read_probe(probe)
        except DataError as error:
            problems += error.problems
    DataError.raise_all(problems)


COMMAND = Command(
    "evaluate", "held-out loss and zero-shot probes of checkpoints, or their task's scores", _run, _add_options
)
