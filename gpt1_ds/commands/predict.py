"""`predict`: a fine-tuned model on a text, a file or a pipe."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.file_checks import input_problems, output_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common import log
from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.evaluation.predict import Predictor


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    text = "one example: its text, its texts, or text and choices"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=text)
    parser.add_argument(
        "--input", metavar="FILE", help="a file with one example on each line (default: standard input)"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="a file that gets a line for each example (default: standard output)"
    )
    formats = (
        "text: the line is the text; tsv: text, text2, choices; jsonl: these as keys (default: what it looks like)"
    )
    parser.add_argument("--format", choices=("auto", "text", "tsv", "jsonl"), default="auto", help=formats)
    scores = "write JSON lines with the probability of every class, as for input and --output of that kind"
    parser.add_argument("--scores", action="store_true", help=scores)


def _run(options: argparse.Namespace) -> int:
    UserError.raise_all(_problems(options))
    libraries.load()
    from gpt1_ds.evaluation.load import load_checkpoint
    from gpt1_ds.evaluation.predict import Predictor, write_lines

    predictor = Predictor(load_checkpoint(options.checkpoint))
    with contextlib.ExitStack() as stack:
        stream, output = sys.stdin, sys.stdout.buffer  # type: tuple[IO[Any], IO[bytes]]
        if options.input:
            stream = stack.enter_context(open(options.input, "rb"))
        found = _from_arguments(predictor, options) if options.text else _from_lines(predictor, options, stream)
        first = next(found, [])  # before --output is opened: an older file stays where the first lines are refused
        if options.output:
            output = stack.enter_context(open(options.output, "wb"))
        watched = not options.text and not output.isatty()
        show = stack.enter_context(log.bar(unit="{:,.0f} lines".format, watched=watched))
        written = 0
        for lines in chain([first], found):
            write_lines(lines, output)
            written += len(lines)
            show(written)
    if predictor.cut:
        say(f"{predictor.cut} of {written} examples are longer than {predictor.limit} tokens and cut")
    return 0


def _problems(options: argparse.Namespace) -> Iterator[str]:
    """Yields what is wrong with the arguments, before anything is loaded or overwritten."""
    if options.text:
        if options.input or options.format != "auto":
            yield "TEXT is one example; leave it out to read lines (--input, --format)"
    elif sys.stdin is None and not options.input:
        yield "standard input is closed; give TEXT, --input FILE or a pipe"
    else:
        yield from input_problems("--input", options.input or "/dev/stdin", "an example", options.output)
    yield from output_problems("--output", options.output, in_place=True)


def _from_arguments(predictor: Predictor, options: argparse.Namespace) -> Iterator[list[str]]:
    """Yields the one example of the command line. Raises DataError when its texts are no example."""
    from gpt1_ds.tasks.lines import LineReader
    from gpt1_ds.tasks.rows import BadRowError

    reader = LineReader(predictor.task, predictor.settings, "tsv")
    try:
        example = reader.of_fields(options.text)
        predictor.check(example)
    except BadRowError as problem:
        hint = "" if len(options.text) == len(reader.fields) else " (each in quotes)"
        raise DataError(f"TEXT: {problem}{hint}") from None
    return iter([predictor.lines([example], _as_json(options, "tsv"))])


def _from_lines(predictor: Predictor, options: argparse.Namespace, stream: IO[Any]) -> Iterator[list[str]]:
    """Yields the answers to --input or to standard input, which is `stream`, window by window."""
    from gpt1_ds.evaluation.predict import predict_lines, windows
    from gpt1_ds.tasks.lines import LineReader, choose_format

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
    """Returns whether JSON lines are written: when they are read, when the file is called so, and for all classes'
    scores.
    """
    from gpt1_ds.tasks.lines import ENDINGS

    written = ENDINGS.get(Path(options.output).suffix.lower()) if options.output else None
    return bool(options.scores) or "jsonl" in (kind, written)


COMMAND = Command("predict", "a fine-tuned model on a text, a file or a pipe", _run, _add_options)
