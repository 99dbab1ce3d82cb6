"""`fill`: what a masked model puts in the place of <mask>."""

from __future__ import annotations

import argparse

from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.text import shown


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared.checkpoint(parser)
    missing = "with <mask> where a token is missing"
    parser.add_argument("--text", dest="passage", required=True, metavar="TEXT", help=missing)
    parser.add_argument("--top", type=int, default=5, metavar="K", help="tokens for each mask (default: %(default)s)")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.launcher import libraries

    if options.top < 1:
        raise UserError(f"--top {options.top} must be at least 1")
    libraries.load()
    from gpt1_ds.evaluation.generate import fill
    from gpt1_ds.evaluation.load import load_checkpoint

    for found in fill(load_checkpoint(options.checkpoint), options.passage, options.top):
        print(f"{found.probability:.4f}  {shown(found.token.strip()):16} {shown(found.text)}")
    return 0


COMMAND = Command("fill", "what a masked model puts in the place of <mask>", _run, _add_options)
