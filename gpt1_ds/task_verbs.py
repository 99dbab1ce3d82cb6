"""Verbs about tasks: `finetune` and `predict`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpt1_ds.common import progress
from gpt1_ds.common.errors import CheckpointError, ConfigError, DataError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.config import Config, load, to_yaml
from gpt1_ds.config.load import default_name, named
from gpt1_ds.config.validate import transfer_problems, world_problems
from gpt1_ds.parallel import launch
from gpt1_ds.plan.dryrun import describe
from gpt1_ds.verbs import draw_profile

if TYPE_CHECKING:
    from gpt1_ds.tasks.reading import TaskData
    from gpt1_ds.training.predict import Predictor


def finetune(options: argparse.Namespace) -> int:
    config = finetune_config(options.config, options.overrides)
    if options.print_config:
        print(to_yaml(config), end="")
        return 0
    world = launch.world(options.nproc)
    ConfigError.raise_all(world_problems(config, world))
    data = check_task(config)
    if options.dry_run:
        for line in _plan(config, world, data):
            print(line)
        return 0
    code = launch.start("gpt1_ds.training.finetune:finetune", (config,), options.nproc)
    draw_profile(config)
    return code


def finetune_config(files: Sequence[str], overrides: Sequence[str]) -> Config:
    """The configuration of a fine-tuning run; its model is that of checkpoint.init_from.

    Raises ConfigError, and CheckpointError when there is no such checkpoint.
    """
    source = _model_of(files, overrides)
    config = load(files, overrides, source)
    if config.task is None:
        raise ConfigError("task: fine-tuning needs one; add -c finetune/cola, for example, or a file with this section")
    if config.checkpoint.init_from is None and config.task.tokenizer is None:
        raise ConfigError(
            "checkpoint.init_from is empty; name the checkpoint to start from, or task.tokenizer to start from nothing"
        )
    if config.checkpoint.init_from is not None and config.task.tokenizer is not None:
        raise ConfigError("task.tokenizer: the checkpoint of checkpoint.init_from has its own; keep one of the two")
    if config.train.tokens is not None:
        raise ConfigError(f"train.tokens={config.train.tokens} is for pre-training; give train.epochs or train.steps")
    if source is not None:
        ConfigError.raise_all(transfer_problems(config, load(model_of=source).model))
    return config


def _model_of(files: Sequence[str], overrides: Sequence[str]) -> Path | None:
    """The configuration that says what the model is: the checkpoint's, or the run's own when that is gone."""
    from gpt1_ds.checkpoint.folders import find

    source = named(files, overrides, "checkpoint", "init_from")
    if source is None:
        return None
    try:
        return find(Path(source)) / "config.yaml"
    except CheckpointError:
        folder = Path(named(files, overrides, "run", "dir") or "runs")
        own = folder / (named(files, overrides, "run", "name") or default_name(files)) / "config.yaml"
        if own.is_file():
            return own
        raise


def check_task(config: Config) -> TaskData:
    """The task's examples: what is wrong with them is said once, before ranks start."""
    from gpt1_ds.tasks.batches import batches_per_epoch
    from gpt1_ds.tasks.encoding import length_limit
    from gpt1_ds.tasks.reading import read_task

    assert config.task is not None, "finetune_config checks it"
    length_limit(config.task, config.model.context)
    data = read_task(config.task)
    batches_per_epoch(len(data.splits["train"]), config.train.global_batch)
    return data


def _plan(config: Config, world: int, data: TaskData) -> Iterator[str]:
    from gpt1_ds.checkpoint.folders import find
    from gpt1_ds.data.tokenizer import load_tokenizer
    from gpt1_ds.tasks.encoding import encode, length_limit

    assert config.task is not None, "finetune_config checks it"
    source = config.checkpoint.init_from
    tokenizer = load_tokenizer(find(Path(source)) / "tokenizer" if source else Path(config.task.tokenizer or ""))
    limit = length_limit(config.task, config.model.context)
    yield f"task: {data.task.name}, {data.task.kind} of {', '.join(data.task.labels) or 'scores'}"
    for split, examples in data.splits.items():
        encoded = encode(data.task, examples, tokenizer, limit)
        longest = f"{encoded.lengths.mean():.1f} tokens a sequence, {encoded.lengths.max()} at most"
        yield f"{split}: {len(encoded)} examples of {encoded.sequences} sequences, {longest}, {encoded.truncated} cut"
    yield from data.notes
    yield from describe(config, world, config.model.vocab_size or tokenizer.vocab_size, None)


def predict(options: argparse.Namespace) -> int:
    UserError.raise_all(_predict_problems(options))
    from gpt1_ds.parallel import libraries

    libraries.load()
    from gpt1_ds.training.inference import load_checkpoint
    from gpt1_ds.training.predict import Predictor, write_lines

    predictor = Predictor(load_checkpoint(options.checkpoint))
    with contextlib.ExitStack() as stack:
        stream, output = sys.stdin, sys.stdout.buffer  # type: tuple[IO[Any], IO[bytes]]
        if options.input:
            stream = stack.enter_context(open(options.input, "rb"))
        found = _from_words(predictor, options) if options.text else _from_lines(predictor, options, stream)
        if options.output:
            output = stack.enter_context(open(options.output, "wb"))
        watched = not options.text and not output.isatty()
        show = stack.enter_context(progress.bar(unit="{:,.0f} lines".format, watched=watched))
        written = 0
        for lines in found:
            write_lines(lines, output)
            written += len(lines)
            show(written)
    return 0


def _predict_problems(options: argparse.Namespace) -> Iterator[str]:
    """What is wrong with the words of `predict`, before anything is loaded or overwritten."""
    source, target = Path(options.input or "/dev/stdin"), Path(options.output or "/dev/stdout")
    if options.text:
        if options.input or options.format != "auto":
            yield "TEXT is one example; leave it out to read lines (--input, --format)"
    elif options.input and (not source.exists() or source.is_dir()):
        yield f"{source}: no such file; --input names one with an example a line"
    elif sys.stdin is None and not options.input:
        yield "standard input is closed; give TEXT, --input FILE or a pipe"
    elif options.output and target.is_file() and source.is_file() and target.samefile(source):
        yield f"{target}: is what is read, too; choose another --output"
    if options.output and (target.is_dir() or not target.parent.is_dir()):
        yield f"{target}: no file can be there; choose another --output"


def _from_words(predictor: Predictor, options: argparse.Namespace) -> Iterator[list[str]]:
    """The one example that the words on the command line make up. Raises DataError when they do not."""
    from gpt1_ds.tasks.lines import LineReader
    from gpt1_ds.tasks.rows import BadRowError

    try:
        example = LineReader(predictor.task, predictor.settings, "tsv").of_fields(options.text)
    except BadRowError as problem:
        raise DataError(f"TEXT: {problem} (each in quotes)") from None
    return iter([predictor.lines([example], _as_json(options, "tsv"))])


def _from_lines(predictor: Predictor, options: argparse.Namespace, stream: IO[Any]) -> Iterator[list[str]]:
    """Of --input or standard input, which is `stream`, window by window."""
    from gpt1_ds.tasks.lines import LineReader, choose_format
    from gpt1_ds.training.predict import predict_lines, windows

    if stream.isatty():
        say("reading lines from the terminal; Ctrl-D ends them")
    arriving = windows(stream.fileno())
    first = next(arriving, None)
    if first is None:
        return iter([])
    kind = options.format
    if kind == "auto":
        kind = choose_format(predictor.task, options.input or "", first[0])
    reader = LineReader(predictor.task, predictor.settings, kind)
    name = options.input or "standard input"
    return predict_lines(predictor, reader, name, chain([first], arriving), _as_json(options, kind))


def _as_json(options: argparse.Namespace, kind: str) -> bool:
    """Whether JSON lines are written: when they are read, when the file is called so, and for all classes' scores."""
    from gpt1_ds.tasks.lines import ENDINGS

    written = ENDINGS.get(Path(options.output).suffix.lower()) if options.output else None
    return bool(options.scores) or "jsonl" in (kind, written)
