"""What one file, or all arguments of the command line, say: a ConfigLayer, unchecked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from gpt1_ds.config.carried import carried, lies_in_a_run, refuse_interpolations
from gpt1_ds.config.presets import SHIPPED, find_file, presets
from gpt1_ds.config.sections import Config
from gpt1_ds.config.values import NULLS, leaves_of, plain
from gpt1_ds.config.yaml_file import LiteralLoader, as_yaml, read_mapping

_KEY = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")


@dataclass(frozen=True)
class ConfigLayer:
    """One file or all command-line arguments."""

    origin: str  # in messages
    values: Mapping[str, Any]  # nested mappings whose leaves are strings or lists
    left_out: tuple[str, ...] = ()  # keys that a file of a run or a checkpoint may not set


def read_file(name: str) -> ConfigLayer:
    """Returns what the file or shipped preset `name` says; of a run's or a checkpoint's own file, what it carries.
    Raises ConfigError for what cannot be read as a configuration.
    """
    path = find_file(name)
    layer = read_yaml(path)
    return carried_layer(layer) if lies_in_a_run(path) else layer


def read_yaml(path: Path) -> ConfigLayer:
    return ConfigLayer(str(path), read_mapping(path))


def carried_layer(layer: ConfigLayer) -> ConfigLayer:
    """Returns what config/carried.py takes over of a run's or a checkpoint's layer."""
    refuse_interpolations(layer.values, layer.origin)
    values, left_out = carried(layer.values, _default_texts())
    return ConfigLayer(layer.origin, values, tuple(left_out))


@cache
def _default_texts() -> Mapping[str, Any]:
    """Returns the defaults as a file has them."""
    values: Mapping[str, Any] = yaml.load(to_yaml(Config()), Loader=LiteralLoader)
    return values


def read_arguments(arguments: Sequence[str], problems: list[str]) -> ConfigLayer:
    """Returns what the `key=value` arguments of a command line say, and adds what is wrong with them to `problems`."""
    values: dict[str, Any] = {}
    skip = False
    for argument, following in pairwise([*arguments, ""]):
        if skip:
            skip = False
            continue
        key, equals, text = argument.partition("=")
        if not equals:
            skip = bool(_KEY.fullmatch(argument) and following and "=" not in following)
            example = f"{argument}={following}" if skip else "model.layers=12, for example"
            if argument in presets() or Path(argument).suffix in (".yaml", ".yml"):
                example = f"-c {argument}"
            problems.append(f"{argument!r} is not key=value; write {example}")
            continue
        if key.startswith("-"):
            problems.append(f"{argument!r}: keys are written without dashes: {key.lstrip('-')}={text}")
            continue
        if "[" in key:
            problems.append(
                f"{argument!r}: one item of a list cannot be set alone; write {key.partition('[')[0]}=[...]"
            )
            continue
        node = values
        *sections, last = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                problems.append(f"{argument!r}: {section} was given a value by an earlier argument")
                break
        else:
            node[last] = _read_value(text)
    return ConfigLayer("command line", values)


def _read_value(text: str) -> Any:
    """Returns a list or a mapping that is written as YAML, else the text itself."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return yaml.load(text, Loader=LiteralLoader)
    except yaml.YAMLError:
        return text


def _layers(files: Sequence[str], overrides: Sequence[str]) -> list[ConfigLayer]:
    return [*map(read_file, files), read_arguments(overrides, [])]


def named(files: Sequence[str], overrides: Sequence[str], section: str, key: str) -> str | None:
    """Returns what the last layer that names `section.key` gives it, unchecked; None where none does."""
    last: str | None = None
    for layer in _layers(files, overrides):
        values = layer.values.get(section)
        if isinstance(values, Mapping) and isinstance(values.get(key), str):
            last = None if values[key].lower() in NULLS else values[key]
    return last


def named_keys(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields each key that the overrides name, and its value, unchecked."""
    for key, value in leaves_of(Config, read_arguments(overrides, []).values):
        yield ".".join(key), value


def is_published(files: Sequence[str], overrides: Sequence[str], section: str, key: str) -> bool:
    """Returns whether the last layer that names `section.key` is a shipped preset: then the value is that of a
    published model, and no file or argument of the user's names another one.
    """
    from_preset = False
    for layer in _layers(files, overrides):
        values = layer.values.get(section)
        if isinstance(values, Mapping) and key in values:
            from_preset = Path(layer.origin).is_relative_to(SHIPPED)
    return from_preset


def names_task(files: Sequence[str], overrides: Sequence[str]) -> bool:
    """Returns whether a layer has the section that makes a run a fine-tuning run."""
    return any(layer.values.get("task") for layer in _layers(files, overrides))


def default_name(files: Sequence[str]) -> str:
    """Returns the name of a run that is not named: the last file's stem. A file that says how a task is done, but not
    which, like `finetune/text`, is named with the file before it: `sst2-text`.
    """
    if not files:
        return "run"
    stems = [Path(files[-1]).stem]
    if len(files) > 1 and _completes_a_task(read_file(files[-1])):
        stems.insert(0, default_name(files[:-1]))
    return re.sub(r"[^\w.-]", "-", "-".join(stems))


def _completes_a_task(layer: ConfigLayer) -> bool:
    task = layer.values.get("task")
    return isinstance(task, Mapping) and "name" not in task


def to_yaml(config: Config) -> str:
    """Returns the resolved configuration as YAML that `load` reads back to an equal Config; no empty `task` or
    `probes`.
    """
    return as_yaml(_values(config))


def to_carried_yaml(config: Config) -> str:
    """Returns `to_yaml` of what a checkpoint carries."""
    return as_yaml(carried(_values(config), {})[0])


def _values(config: Config) -> dict[Any, Any]:
    values: dict[Any, Any] = plain(Config, config)
    if config.task is None:
        del values["task"]
    if not config.probes:
        del values["probes"]
    return values
