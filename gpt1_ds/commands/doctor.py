"""`doctor`: what will and will not work here."""

from __future__ import annotations

import argparse

from gpt1_ds.commands.parser import Command


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.parallel.doctor import report

    return report()


COMMAND = Command("doctor", "what will and will not work here", _run)
