"""Values of Python or YAML as overrides of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def as_overrides(values: Any, prefix: str = "") -> list[str]:
    """A mapping of configuration keys, dotted or nested, as key=value overrides. Raises TypeError for another value."""
    if not isinstance(values, dict):
        raise TypeError(f"{values!r:.80} is no mapping of configuration keys, like task.max_length: 64")
    overrides = []
    for key, value in values.items():
        if isinstance(value, dict):
            overrides += as_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={_text(value)}")
    return overrides


def _text(value: Any) -> str:
    """Returns one value as a file has it."""
    if isinstance(value, (list, tuple)):
        items = [str(item) if isinstance(item, Path) else item for item in value]
        return yaml.safe_dump(items, default_flow_style=True, width=1 << 20).strip()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
