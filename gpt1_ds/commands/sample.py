"""`sample`: text from a checkpoint; `fill`: what a masked model puts in the place of <mask>."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.file_checks import input_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import append
from gpt1_ds.common.rundir import share_as
from gpt1_ds.common.text import shown
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.evaluation.load import Loaded


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", metavar="TEXT", help="what the text begins with (default: none)")
    source = "what an encoder-decoder reads; <extra_id_0> stands for the first span to fill in (default: none)"
    text.add_argument("--source", metavar="TEXT", help=source)
    many = "many of either, one a line or as JSON lines with text; answered by JSON lines (default: none)"
    text.add_argument("--input", metavar="FILE", help=many)
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens to add at most (default: 100)")
    least = "tokens to add at least (default: %(default)s)"
    parser.add_argument("--min-tokens", type=int, default=0, metavar="N", help=least)
    temperature = "how freely tokens are drawn without beams; 0 takes the likeliest one (default: 0.8)"
    parser.add_argument("--temperature", type=float, metavar="T", help=temperature)
    top_k = "draw from the K likeliest; 0: all (default: %(default)s)"
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help=top_k)
    top_p = "draw from the likeliest ones that make up the probability P; 1: all (default: %(default)s)"
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help=top_p)
    seed = "another number gives another text (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, metavar="S", help=seed)
    samples = "write N texts, with the seeds S, S+1, ..., a line of --- between them (default: %(default)s)"
    parser.add_argument("--samples", type=int, default=1, metavar="N", help=samples)
    repeated = "divide the logits of tokens that are there already by R; 1: as they are (default: %(default)s)"
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help=repeated)
    beams = "draw nothing, look for the likeliest text with N beams; 1: draw (default: %(default)s)"
    parser.add_argument("--beams", type=int, default=1, metavar="N", help=beams)
    penalty = "beams compare by log-likelihood / length^A, or / ((5 + length) / 6)^A (default: %(default)s)"
    parser.add_argument("--length-penalty", choices=("plain", "gnmt"), default="plain", help=penalty)
    parser.add_argument(
        "--length-alpha", type=float, default=1.0, metavar="A", help="the A of --length-penalty (default: %(default)s)"
    )
    early = "end as soon as there are as many whole texts as beams"
    parser.add_argument("--early-end", action="store_true", help=early)


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.evaluation.sampling import Sampling

    names = Sampling.__dataclass_fields__
    sampling = Sampling(**{name: value for name, value in vars(options).items() if name in names})
    if options.input:
        UserError.raise_all(input_problems("--input", options.input, "a prompt"))
    if options.samples < 1 or (options.input and options.samples > 1):
        raise UserError(f"--samples {options.samples} must be at least 1, and 1 with --input, whose rows have seeds")
    libraries.load()
    from gpt1_ds.evaluation.generate import answers, several_texts
    from gpt1_ds.evaluation.load import load_checkpoint

    loaded = load_checkpoint(options.checkpoint)
    if options.input:
        for lines in answers(loaded, Path(options.input), sampling):
            print("\n".join(lines), flush=True)
    else:
        is_source = options.source is not None
        given = options.source if is_source else options.prompt
        for number, text in enumerate(several_texts(loaded, given, sampling, options.samples, is_source=is_source)):
            print(*(["---"] if number else []), shown(text if is_source else given + text), sep="\n")
            _keep(loaded, given, text)
    return 0


def _keep(loaded: Loaded, prompt: str, text: str) -> None:
    """Writes down what the report of the run shows."""
    run = loaded.folder.parent.parent
    if not (run / "config.yaml").exists():
        return
    share_as(run)
    try:
        append(run / "samples.jsonl", json.dumps({"step": loaded.step, "prompt": prompt, "text": text}) + "\n")
    except OSError as error:
        log.say(f"{run / 'samples.jsonl'}: not kept for the run's report: {error.strerror}")


COMMAND = Command("sample", "text from a checkpoint", _run, _add_options)


def _fill_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    missing = "with <mask> where a token is missing"
    parser.add_argument("--text", dest="passage", required=True, metavar="TEXT", help=missing)
    parser.add_argument("--top", type=int, default=5, metavar="K", help="tokens for each mask (default: %(default)s)")


def _fill(options: argparse.Namespace) -> int:
    if options.top < 1:
        raise UserError(f"--top {options.top} must be at least 1")
    libraries.load()
    from gpt1_ds.evaluation.generate import fill
    from gpt1_ds.evaluation.load import load_checkpoint

    for found in fill(load_checkpoint(options.checkpoint), options.passage, options.top):
        print(f"{found.probability:.4f}  {shown(found.token.strip()):16} {shown(found.text)}")
    return 0


FILL = Command("fill", "what a masked model puts in the place of <mask>", _fill, _fill_options)
