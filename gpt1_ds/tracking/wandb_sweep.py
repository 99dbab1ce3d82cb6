"""A run that an agent of a W&B sweep starts: its keys come as overrides, who it is from the environment."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.log import say
from gpt1_ds.config import Config

SWEEP, RUN = "WANDB_SWEEP_ID", "WANDB_RUN_ID"


def trial_id() -> str | None:
    """The W&B id that the agent of a sweep gives to this run; None outside a sweep. Raises ConfigError for one that
    cannot name a folder.
    """
    found = os.environ.get(RUN, "")
    if not os.environ.get(SWEEP) or not found:
        return None
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found):
        raise ConfigError(f"{RUN}={found!r:.80} is no id of a W&B run; start the run with `wandb agent`")
    return found


def as_trial(config: Config) -> Config:
    """In a sweep every trial has a run folder of its own, `<run.name>/<W&B id>`, so that no two meet in one, and a
    trial that the agent starts again resumes.
    """
    trial = trial_id()
    if trial is None or config.run.name.rpartition("/")[2] == trial:
        return config
    if config.tracking.wandb == "off":
        say(f"{SWEEP}={os.environ[SWEEP]}: the sweep sees nothing of this run; set tracking.wandb=online")
    return replace(config, run=replace(config.run, name=f"{config.run.name}/{trial}"))
