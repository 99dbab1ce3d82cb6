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


def _workspace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entity", required=True, help="W&B user or team")
    parser.add_argument("--project", default="gpt1-ds", help="W&B project, which has runs (default: %(default)s)")
    parser.add_argument("--name", default="gpt1-ds", help="name of the saved view (default: %(default)s)")


def _workspace(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import FIGURES
    from gpt1_ds.tracking import workspace

    print(workspace.save(options.entity, options.project, options.name, list(FIGURES)))
    return 0


COMMAND = Group(
    "tracking",
    "what runs show in Weights & Biases",
    (
        Command("sync", "upload what runs wrote offline", _sync, _sync_options),
        Command(
            "workspace", "add a view with panels for runs and studies to a project", _workspace, _workspace_options
        ),
    ),
)
