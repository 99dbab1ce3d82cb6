"""From YAML files and `key=value` arguments to one frozen Config. All problems are collected, then raised at once."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.config import validate
from gpt1_ds.config.carried import refuse_interpolations
from gpt1_ds.config.layers import ConfigLayer, carried_layer, default_name, read_arguments, read_file, read_yaml
from gpt1_ds.config.sections import LENGTH_KEYS, WARMUP_KEYS, Config
from gpt1_ds.config.validate import problems
from gpt1_ds.config.values import (
    NULLS,
    interpolation_problems,
    leaves_of,
    meant,
    nesting_problems,
    refuse_resolvers,
    section_names,
    with_word,
)

EXCLUSIVE = (("train", LENGTH_KEYS), ("schedule", WARMUP_KEYS))
MOST_PROBLEMS = 20  # of one layer that are listed
_WRONG = (OmegaConfBaseException, ValueError, TypeError, RecursionError)  # what a value that does not fit raises


def load(files: Sequence[str] = (), overrides: Sequence[str] = (), model_of: Path | None = None) -> Config:
    """Returns `files` merged left to right, then `overrides`; a name that is no path is a shipped preset. The `model`
    section of the configuration `model_of` lies beneath them all. Of a file in a run or a checkpoint only what
    config/carried.py names is read, which is said.

    Raises ConfigError naming every problem: unknown keys (with a suggestion), wrong types, keys that exclude each
    other, and combinations that cannot run.
    """
    layers = [read_file(name) for name in files]
    if model_of is not None:
        whole = carried_layer(read_yaml(model_of))
        layers.insert(0, ConfigLayer(whole.origin, {"model": whole.values.get("model", {})}))
    for layer in layers:
        if layer.left_out:
            keys = ", ".join(layer.left_out)
            log.say(f"{layer.origin} is a run's or a checkpoint's: not read: {keys:.200}; give them yourself")
    return _resolved(layers, overrides, default_name(files))


def check_written(files: Sequence[str], overrides: Sequence[str]) -> None:
    """Raises ConfigError for what is wrong in `files` and `overrides` whatever the model is: keys that are not there,
    and values that their fields do not take.
    """
    found: list[str] = []
    given = read_arguments(overrides, found)
    merged = copy.deepcopy(_defaults())
    for layer in (*map(read_file, files), given):
        merged = _merge(merged, layer, found)
    ConfigError.raise_all(found)


def load_carried(path: Path, files: Sequence[str] = (), overrides: Sequence[str] = ()) -> Config:
    """Returns the configuration that a checkpoint carries, without what only its user decides, beneath `files` and
    `overrides`.

    Raises CheckpointError for one that cannot be read, ConfigError for what is wrong in the other layers.
    """
    try:
        layer = carried_layer(read_yaml(path))
        if not files and not overrides:
            return _resolved([layer], (), default_name([str(path)]))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error.problems[0].removeprefix(f'{path}: ')}") from None
    return _resolved([layer, *map(read_file, files)], overrides, default_name([str(path)]))


def load_recorded(path: Path) -> Config:
    """Returns all that a run folder says it was run with: to compare and show, never to act on. Raises ConfigError."""
    layer = read_yaml(path)
    refuse_interpolations(layer.values, layer.origin)
    return _resolved([layer], (), default_name([str(path)]), is_recorded=True)


def _resolved(layers: Sequence[ConfigLayer], overrides: Sequence[str], name: str, is_recorded: bool = False) -> Config:
    """Returns the layers and overrides as one Config, called `name` unless they name it. One that was recorded may hold
    secrets, which earlier versions did not notice: it is not saved again.
    """
    found: list[str] = []
    given = read_arguments(overrides, found)
    merged = copy.deepcopy(_defaults())
    for layer in (*layers, given):
        merged = _merge(merged, layer, found)
    values = OmegaConf.to_container(merged)
    assert isinstance(values, dict), "sections are mappings"
    wrong = [*interpolation_problems(values), *nesting_problems(Config, values)]
    if wrong:
        raise ConfigError(*found, *wrong)
    try:
        config = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, RecursionError) as error:
        key = getattr(error, "full_key", None)  # of an interpolation that leads nowhere
        raise ConfigError(*found, f"{key}: {first_line(error)}" if key else first_line(error)) from None
    assert isinstance(config, Config)
    if not config.run.name:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, name=name))
    if not is_recorded:
        ConfigError.raise_all(validate.secret_problems(config))  # alone: another line might show one
    ConfigError.raise_all([*found, *problems(config)])  # where a value was wrong, its default is looked at
    return config


@cache
def _defaults() -> DictConfig:
    """Returns the defaults, which callers copy: building them takes three times as long."""
    config = OmegaConf.structured(Config)
    assert isinstance(config, DictConfig), "sections are mappings"
    return config


def _merge(config: DictConfig, layer: ConfigLayer, found: list[str]) -> DictConfig:
    """Returns `config` with `layer` on top, without what is wrong in it, which is added to `found`."""
    for section, keys in EXCLUSIVE:
        given = layer.values.get(section)
        named = [key for key in keys if isinstance(given, dict) and str(given.get(key, "")).lower() not in NULLS]
        if len(named) > 1:
            both = " and ".join(f"{section}.{key}" for key in named)
            found.append(f"{layer.origin}: {both} exclude each other; keep one")
        if named:
            config = _on_top(config, [((section, key), None) for key in keys])
    leaves = list(leaves_of(Config, layer.values))
    try:
        return _on_top(config, leaves)
    except _WRONG:  # one by one, so that all that is wrong is named
        pass
    before = len(found)
    for key, value in leaves:
        if len(found) - before == MOST_PROBLEMS:
            found.append(f"{layer.origin}: and more")
            break
        try:
            config = _on_top(config, [(key, value)])
        except _WRONG as error:
            said = first_line(error)
            if len(with_word(Config, key)) > 1:  # of which the library names one
                said = said.partition(". Did you mean")[0]
            unknown = isinstance(error, ConfigKeyError) and "Did you mean" not in said
            found.append(f"{layer.origin}: {'.'.join(key)}: {said}{meant(Config, key) if unknown else ''}")
    return config


def _on_top(config: DictConfig, leaves: Sequence[tuple[tuple[str, ...], Any]]) -> DictConfig:
    """Returns `config`, which is used up, with these values set."""
    nested: dict[str, Any] = {}
    for key, value in leaves:
        refuse_resolvers(value)
        node = nested
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value
    merged = OmegaConf.unsafe_merge(config, nested)
    assert isinstance(merged, DictConfig), "sections are mappings"
    return merged


_UNKNOWN = re.compile(r"^Key '(.*)' not in '(\w+)'")


def first_line(error: Exception) -> str:
    """Returns the first line of an error of OmegaConf's, whose others are about its own types. A section is called as
    people know it, not as its class.
    """
    return _UNKNOWN.sub(_no_such_key, str(error).partition("\n")[0])


def _no_such_key(found: re.Match[str]) -> str:
    key, kind = found.groups()
    if kind == Config.__name__:
        return f"there is no section {key!r}"
    section = section_names(Config).get(kind)
    return f"the section {section} has no key {key!r}" if section else f"there is no key {key!r} here"
