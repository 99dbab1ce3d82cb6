"""`tracking`: what runs show in Weights & Biases."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt1_ds.commands.parser import Command, Group


def _sync_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")


def _sync(options: argparse.Namespace) -> int:
    from gpt1_ds.tracking.sync import sync

    return sync([Path(run) for run in options.runs])


COMMAND = Group(
    "tracking",
    "what runs show in Weights & Biases",
    (Command("sync", "upload what runs wrote offline", _sync, _sync_options),),
)
