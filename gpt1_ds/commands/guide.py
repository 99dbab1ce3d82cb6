"""`gpt1-ds guide [NAME]`: the documentation, which is part of the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpt1_ds.commands.parser import Command

FOLDER = Path(__file__).parents[1] / "guides"
NAMES = (  # in the order in which a newcomer reads them
    "concepts",
    "your-text",
    "pretraining",
    "finetuning",
    "questions-and-tags",
    "task-results",
    "python",
    "tracking",
    "clusters",
    "scaling-out",
    "scaling-studies",
    "checkpoints-and-huggingface",
    "performance",
    "gpus",
    "faults",
    "configuration",
    "large-models",
    "extending",
)


def text(name: str) -> str:
    """Returns the guide as Markdown."""
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """Returns the line below the title."""
    return text(name).splitlines()[2]


def _add_options(parser: argparse.ArgumentParser) -> None:
    about = "the guide to print (default: list all of them)"
    parser.add_argument("name", nargs="?", choices=NAMES, metavar="NAME", help=about)


def _run(options: argparse.Namespace) -> int:
    """Prints one guide, rendered and page by page on a terminal, as Markdown elsewhere; or lists all of them."""
    if options.name is None:
        for name in NAMES:
            print(f"{name:<{max(map(len, NAMES))}}  {summary(name)}")
        print("\ngpt1-ds guide NAME prints one of them")
    elif sys.stdout.isatty():
        import os
        import pydoc

        from gpt1_ds.common.terminal import rendered  # loads rich

        os.environ.setdefault("LESS", "-R")  # so that the usual pager shows colours, not their codes
        pydoc.pager(rendered(text(options.name)))
    else:
        print(text(options.name), end="")
    return 0


COMMAND = Command("guide", "the documentation: concepts, how-tos, evidence", _run, _add_options)
