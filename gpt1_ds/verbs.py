"""What the larger verbs do before any rank starts: read the configuration, check it, and decide who runs it."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from gpt1_ds.common import progress
from gpt1_ds.common.errors import ConfigError, DataError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import shown
from gpt1_ds.common.units import byte_size, count
from gpt1_ds.config import Config, load, load_carried, to_yaml, world_problems
from gpt1_ds.config.data import EMBEDDED
from gpt1_ds.parallel import launch
from gpt1_ds.plan.dryrun import describe


def pretrain(options: argparse.Namespace) -> int:
    config = load(options.config, options.overrides)
    if options.print_config:
        print(to_yaml(config), end="")
        return 0
    if config.task is not None:
        raise ConfigError("task: pre-training has none; leave the section out, or use the verb finetune")
    world = launch.world(options.nproc)
    ConfigError.raise_all(world_problems(config, world))
    if options.dry_run:
        for line in describe(config, world, *found_data(config, quietly=True)):
            print(line)
        if not needs_embedded_corpus(config):  # it would be built first
            check_data(config)
        return 0
    config = with_embedded_corpus(config)
    check_data(config)
    code = launch.start("gpt1_ds.training.pretrain:pretrain", (config,), options.nproc)
    draw_profile(config)
    return code


def evaluate(options: argparse.Namespace) -> int:
    from gpt1_ds.checkpoint.folders import find

    folder = find(Path(options.checkpoint))
    if options.out is not None and (Path(options.out).is_dir() or not Path(options.out).parent.is_dir()):
        raise ConfigError(f"{options.out}: no file can be there; choose another --out")
    if options.points is not None and not options.every:
        raise ConfigError(f"--points={options.points}: thins what --every takes; add --every")
    folders = _kept(Path(options.checkpoint), options.points) if options.every else [folder]
    layout = ["parallel.tensor=1", "parallel.pipeline=1", "parallel.zero=1", "parallel.sequence=false"]
    words = [*layout, "parallel.assembly=auto", "train.recompute=none", *options.overrides]
    config = load_carried(folder / "config.yaml", options.config, words)
    world = launch.world(options.nproc)
    config = _with_fitting_micro_batch(config, world)
    ConfigError.raise_all(world_problems(config, world))
    run = folder.parent.parent
    default = run / "eval.json" if (run / "config.yaml").exists() else None
    out = Path(options.out) if options.out else default
    if config.task is not None and not config.probes:
        target = "gpt1_ds.training.evaluate_task:evaluate_task"
        return launch.start(target, (config, folders, out), options.nproc)
    config, held_out = _with_held_out(config)
    _check_probes(config)
    task = (config, folders, out, held_out and config.task is None, options.every)
    return launch.start("gpt1_ds.training.evaluate:evaluate", task, options.nproc)


def sample(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel import libraries
    from gpt1_ds.training.sampling import Sampling

    sampling = Sampling(options.tokens, options.temperature, options.top_k, options.top_p, options.seed)
    libraries.load()
    from gpt1_ds.training import inference

    loaded = inference.load_checkpoint(options.checkpoint)
    text = inference.sample(loaded, options.prompt, sampling)
    print(shown(options.prompt + text))
    run = loaded.folder.parent.parent
    if (run / "config.yaml").exists():  # the run's report shows its samples
        with open(run / "samples.jsonl", "a") as file:
            file.write(json.dumps({"step": loaded.step, "prompt": options.prompt, "text": text}) + "\n")
    return 0


def export_checkpoint(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel import libraries

    libraries.load()
    from gpt1_ds.checkpoint import huggingface

    source = huggingface.export(Path(options.checkpoint), Path(options.out))
    print(f"{options.out}: {source} for transformers; its README.md says how to load it")
    return 0


def import_checkpoint(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel import libraries

    libraries.load()
    from gpt1_ds.checkpoint import huggingface, imported, openai
    from gpt1_ds.training.provenance import provenance

    source, out = Path(options.source), imported.free_place(Path(options.out))
    tokenizer = Path(options.tokenizer) if options.tokenizer else None
    with tempfile.TemporaryDirectory() as scratch:
        if options.origin == "hf":
            found, tokenizer = huggingface.read(source, tokenizer, Path(scratch))
        else:
            found, tokenizer = openai.read(source, tokenizer, Path(scratch), options.unverified)
        remarks = imported.publish(found, tokenizer, out, provenance())
    for remark in remarks:
        print(f"{options.source}: {remark}")
    print(f"{options.out}: a checkpoint; go on with it: pretrain -c {options.out}/config.yaml ", end="")
    print(f"checkpoint.init_from={options.out} data.path=...")
    return 0


def build_data(options: argparse.Namespace) -> int:
    from gpt1_ds.data.build import Progress, build

    arguments = (options.input, options.tokenizer, options.out, options.workers, options.validation, options.unwrap)
    try:
        with progress.bar(unit=byte_size) as show:

            def told(so_far: Progress) -> None:
                show(so_far.bytes_done, f"{count(so_far.tokens)} tokens", so_far.bytes_total)

            dataset = build(*arguments, told)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished parts are kept; run the same command again") from None
    total = sum(dataset.split(name).tokens for name in dataset.splits)
    for name in dataset.splits:
        split = dataset.split(name)
        share = f" ({split.tokens / total:.2%} of all tokens)" if name == "validation" else ""
        print(
            f"{options.out}: {name}: {split.tokens} tokens, {split.documents} documents, {split.bytes} bytes of text"
            + share
        )
    return 0


def _with_fitting_micro_batch(config: Config, world: int) -> Config:
    """Micro-batches that this many ranks can share: what is only evaluated does not depend on them."""
    data_ranks = max(1, world // (config.parallel.tensor * config.parallel.pipeline))
    micro = math.gcd(config.train.micro_batch, config.train.global_batch // data_ranks) or 1
    return replace(config, train=replace(config.train, micro_batch=micro))


def draw_profile(config: Config) -> None:
    """The page of what `train.profile` found, by the rank that speaks; a run does not fail for want of it."""
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    summary, page = run_dir.profile / "summary.json", run_dir.profile / "summary.html"
    if config.train.profile is None or os.environ.get("RANK", "0") != "0" or not summary.exists():
        return
    if page.exists() and page.stat().st_mtime >= summary.stat().st_mtime:
        return  # by an earlier segment of the run
    from gpt1_ds.report.profile_page import write_profile

    try:
        say(f"{write_profile(run_dir.path)}: where the time of a step goes")
    except (UserError, OSError) as problem:
        say(f"{page}: not written: {problem}")


def needs_embedded_corpus(config: Config) -> bool:
    return any(source.path == EMBEDDED and not Path(EMBEDDED).exists() for source in config.data.path)


def with_embedded_corpus(config: Config, build: bool = True) -> Config:
    """`python-docs` as a data source, when it is no folder of that name, is the corpus inside Python: its folder, made
    where it is not there yet, unless `build` is false.
    """
    if not needs_embedded_corpus(config):
        return config
    from gpt1_ds.data import embedded

    folder = str(embedded.ensure() if build else embedded.FOLDER)
    path = [replace(source, path=folder if source.path == EMBEDDED else source.path) for source in config.data.path]
    return replace(config, data=replace(config.data, path=path))


def check_data(config: Config) -> None:
    """Say what is wrong with the data once, before ranks start."""
    from gpt1_ds.data.sources import open_data

    open_data(config)


def _with_held_out(config: Config) -> tuple[Config, bool]:
    """The configuration with its data found, and whether there is held-out text; probes do without it."""
    if not config.probes:
        config = with_embedded_corpus(config)
        check_data(config)
        return config, True
    from gpt1_ds.data.sources import open_data

    try:
        return config, open_data(config).held_out is not None
    except DataError as error:
        say(f"no held-out loss: {error.problems[0]}")
        return config, False


def _check_probes(config: Config) -> None:
    """Say what is wrong with the probes' files once, all of it, before ranks start."""
    from gpt1_ds.tasks.zeroshot import read_probe

    problems: list[str] = []
    for probe in config.probes:
        try:
            read_probe(probe)
        except DataError as error:
            problems += error.problems
    DataError.raise_all(problems)


def _kept(run: Path, points: int | None) -> list[Path]:
    """The checkpoints of a run folder, thinned to about `points`."""
    from gpt1_ds.checkpoint.folders import log_spaced, steps_in

    folders = steps_in(run / "checkpoints")
    if not folders:
        raise ConfigError(f"--every: {run} is one checkpoint; name its run folder, or leave --every out")
    if points is not None and points < 1:
        raise ConfigError(f"--points={points}: at least 1 checkpoint is needed")
    return folders if points is None else log_spaced(folders, points)


def found_data(config: Config, quietly: bool = False) -> tuple[int | None, int | None]:
    """(vocabulary size, training tokens) of the data that the configuration names; None where it is not there yet,
    which is said unless `quietly`. Nothing is written.
    """
    from gpt1_ds.data import embedded
    from gpt1_ds.data.dataset import Dataset

    vocab_size, tokens = config.model.vocab_size, None
    config = with_embedded_corpus(config, build=False)
    try:
        datasets = [Dataset(source.path) for source in config.data.path]
        vocab_size = vocab_size or datasets[0].vocab_size
        tokens = sum(dataset.split("train").tokens for dataset in datasets)
    except DataError as error:
        if config.data.path[0].path == str(embedded.FOLDER):
            vocab_size = vocab_size or embedded.VOCAB_SIZE
            say(f"{embedded.FOLDER}: not there yet: a run first makes it of Python's own docs, with a tokenizer")
        elif not quietly:
            say(f"not there yet: {error}")
    return vocab_size, tokens
