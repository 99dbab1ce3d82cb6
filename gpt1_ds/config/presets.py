"""The presets that the package ships, and how a file is found by its path or a preset's name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import shipped

SHIPPED = shipped("configs")


def presets() -> list[str]:
    """Returns the names of the shipped presets."""
    return sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in SHIPPED.rglob("*.yaml"))


def find_file(name: str) -> Path:
    """Returns the file `name`, else the shipped preset of that name. Raises ConfigError where neither is there."""
    candidates = [Path(name), SHIPPED / name, SHIPPED / f"{name}.yaml"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if Path(name).exists():
        raise ConfigError(f"{name}: is no regular file; name a YAML file")
    names = presets()
    folder, _, stem = name.removesuffix(".yaml").rpartition("/")  # names of one folder are similar by the folder alone
    beside = [preset for preset in names if preset.rpartition("/")[0] == folder] or names
    stems = {preset: preset.rpartition("/")[2] for preset in beside}
    similar = difflib.get_close_matches(stem, {*stems.values()}, n=2)  # the most likely one first
    meant = [preset for stem in similar for preset in beside if stems[preset] == stem]
    way_out = f"did you mean {' or '.join(meant)}?" if meant else _presets_in(name.partition("/")[0], names)
    raise ConfigError(f"{name}: no such file, and no shipped preset of that name; {way_out}")


def _presets_in(folder: str, presets: Sequence[str]) -> str:
    """Returns the presets of `folder`, and which other folders there are: a line with all of them would be cut."""
    names = [preset.partition("/")[2] for preset in presets if preset.startswith(f"{folder}/")]
    folders = {preset.partition("/")[0] for preset in presets}
    others = sorted(f"{other}/" for other in folders - {folder})
    if not names:
        return f"`gpt1-ds config ls` lists those of {', '.join(others)}"
    return f"{folder}/ has {', '.join(names)}; others are in {', '.join(others)}"
