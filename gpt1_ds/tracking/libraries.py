"""Trackers whose libraries are extras, checked before any rank starts."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from gpt1_ds.config import Config


def library_problems(config: Config) -> Iterator[str]:
    """One line per tracker that is asked for and not installed."""
    for name, asked in (("tensorboard", config.tracking.tensorboard), ("trackio", config.tracking.trackio)):
        if asked and importlib.util.find_spec(name) is None:
            yield (
                f"tracking.{name}=true: {name} is not installed: pip install 'gpt1-ds[tracking]', or leave the key out"
            )
