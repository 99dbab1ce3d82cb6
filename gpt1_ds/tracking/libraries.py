"""The trackers' libraries, checked before any rank starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from gpt1_ds.config import Config

EXTRA = "'gpt1-ds[tracking]'"


def library_problems(config: Config) -> Iterator[str]:
    """One line per tracker that is asked for and not installed."""
    tracking = config.tracking
    asked = (("wandb", tracking.wandb, "wandb"), ("tensorboard", tracking.tensorboard, EXTRA))
    for name, value, package in (*asked, ("trackio", tracking.trackio, EXTRA)):
        if value not in ("off", False) and importlib.util.find_spec(name) is None:
            said = f"tracking.{name}={str(value).lower()}"
            yield f"{said}: {name} is not installed: pip install {package}, or leave the key out"
