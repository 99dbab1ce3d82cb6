"""`finetune study`: the cells of a study, run one after another, and its table and figures."""

from __future__ import annotations

import argparse

from gpt1_ds.common.errors import ConfigError


def finetune_study(options: argparse.Namespace) -> int:
    raise ConfigError(f"{options.study}: this version cannot run a study yet")
