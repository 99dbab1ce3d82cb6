"""From YAML files and `key=value` arguments to one frozen Config, and how it is written.

A file is read within a second whatever it holds. Every scalar is read as the letters it is written in and only then
turned into its field's type, so `20:00:00`, `no` and `012` stay what they are (YAML 1.1 would make them 72000, False
and 10). All problems are collected, then raised at once.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.common.files import naming, shipped
from gpt1_ds.config import validate
from gpt1_ds.config.carried import carried, lies_in_a_run, refuse_interpolations
from gpt1_ds.config.sections import LENGTH_KEYS, WARMUP_KEYS, Config
from gpt1_ds.config.validate import problems
from gpt1_ds.config.values import (
    NULLS,
    interpolation_problems,
    leaves_of,
    meant,
    nesting_problems,
    plain,
    refuse_resolvers,
    section_names,
    with_word,
)

MAX_FILE_BYTES = 1 << 16  # a resolved configuration has 5,000
MAX_NODES = 2000  # keys and values, of which it has 300; a slow core needs half a second for them
MAX_DEPTH = 32
MAX_KEY_LENGTH = 256


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping that a YAML file holds, its scalars as strings. Raises ConfigError for what is not one."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: {path.stat().st_size} bytes is too large for a configuration file")
    try:
        with naming(path):
            text = path.read_text(encoding="utf-8")
        values = yaml.load(text, Loader=LiteralLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if values in (None, ""):
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections like `model:` with keys below them, found {values!r:.60}")
    return values


def as_yaml(values: Any) -> str:
    """Mappings, lists, texts and numbers as YAML, the keys in their order, every byte as OmegaConf.to_yaml writes it:
    a run's configuration is known by the hash of its text. OmegaConf makes typed nodes of all values first, which takes
    more than twenty times as long.
    """
    return yaml.dump(values, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_Dumper)


class _Dumper(getattr(yaml, "CDumper", yaml.Dumper)):  # type: ignore[misc]
    """Puts texts in quotes that other programs would read as numbers, true or false."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = "'" if text in _BOOLEANS or _is_number(text) else None
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node

    def ignore_aliases(self, _: Any) -> bool:
        """Two equal parts are written twice."""
        return True


_Dumper.add_representer(str, _Dumper.represent_text)
_BOOLEANS = frozenset(
    case(argument)
    for argument in ("y", "yes", "n", "no", "true", "false", "on", "off")
    for case in (str.lower, str.capitalize, str.upper)
)


def _is_number(text: str) -> bool:
    for kind in (int, float):
        try:
            kind(text)
        except ValueError:
            continue
        return True
    return False


class LiteralLoader(yaml.BaseLoader):
    """Scalars stay strings; a key written twice is an error; aliases are off (they can grow a file without bound)."""

    nodes = depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"more than {MAX_NODES} keys and values, or {MAX_DEPTH} levels")
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (str(key.value) for key, _ in node.value):
            if key in seen or len(key) > MAX_KEY_LENGTH:
                raise yaml.YAMLError(f"key {key!r:.80} is {'written twice' if key in seen else 'too long'}")
            seen.add(key)
        return super().construct_mapping(node, deep)


SHIPPED = shipped("configs")
EXCLUSIVE = (("train", LENGTH_KEYS), ("schedule", WARMUP_KEYS))
MOST_PROBLEMS = 20  # of one layer that are listed
_WRONG = (OmegaConfBaseException, ValueError, TypeError, RecursionError)  # what a value that does not fit raises


_KEY = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")


@dataclass(frozen=True)
class ConfigLayer:
    """One file or all command-line arguments: nested mappings whose leaves are strings or lists."""

    origin: str
    values: Mapping[str, Any]
    left_out: tuple[str, ...] = ()  # keys that a file of a run or a checkpoint may not set


def load(files: Sequence[str] = (), overrides: Sequence[str] = (), model_of: Path | None = None) -> Config:
    """Merge `files` left to right, then `overrides`; a name that is no path is a shipped preset. The `model` section of
    the configuration `model_of` lies beneath them all. Of a file in a run or a checkpoint only what config/carried.py
    names is read, which is said.

    Raises ConfigError naming every problem: unknown keys (with a suggestion), wrong types, keys that exclude each
    other, and combinations that cannot run.
    """
    layers = [read_file(name) for name in files]
    if model_of is not None:
        whole = _carried_layer(_read_yaml(model_of))
        layers.insert(0, ConfigLayer(whole.origin, {"model": whole.values.get("model", {})}))
    for layer in layers:
        if layer.left_out:
            keys = ", ".join(layer.left_out)
            log.say(f"{layer.origin} is a run's or a checkpoint's: not read: {keys:.200}; give them yourself")
    return _resolved(layers, overrides, default_name(files))


def check_written(files: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise ConfigError for what is wrong in `files` and `overrides` whatever the model is: keys that are not there,
    and values that their fields do not take.
    """
    found: list[str] = []
    given = _read_arguments(overrides, found)
    merged = copy.deepcopy(_defaults())
    for layer in (*map(read_file, files), given):
        merged = _merge(merged, layer, found)
    ConfigError.raise_all(found)


def load_carried(path: Path, files: Sequence[str] = (), overrides: Sequence[str] = ()) -> Config:
    """The configuration that a checkpoint carries, without what only its user decides, beneath `files` and `overrides`.

    Raises CheckpointError for one that cannot be read, ConfigError for what is wrong in the other layers.
    """
    try:
        layer = _carried_layer(_read_yaml(path))
        if not files and not overrides:
            return _resolved([layer], (), default_name([str(path)]))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error.problems[0].removeprefix(f'{path}: ')}") from None
    return _resolved([layer, *map(read_file, files)], overrides, default_name([str(path)]))


def load_recorded(path: Path) -> Config:
    """All that a run folder says it was run with: to compare and show, never to act on. Raises ConfigError."""
    layer = _read_yaml(path)
    refuse_interpolations(layer.values, layer.origin)
    return _resolved([layer], (), default_name([str(path)]), is_recorded=True)


def _resolved(layers: Sequence[ConfigLayer], overrides: Sequence[str], name: str, is_recorded: bool = False) -> Config:
    """The layers and overrides as one Config, called `name` unless they name it. One that was recorded may hold
    secrets, which earlier versions did not notice: it is not saved again.
    """
    found: list[str] = []
    given = _read_arguments(overrides, found)
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
    """Copied, as building it takes three times as long."""
    config = OmegaConf.structured(Config)
    assert isinstance(config, DictConfig), "sections are mappings"
    return config


def default_name(files: Sequence[str]) -> str:
    """The name of a run that is not named: the last file's stem. A file that says how a task is done, but not which,
    like `finetune/text`, is named with the file before it: `sst2-text`.
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


def named(files: Sequence[str], overrides: Sequence[str], section: str, key: str) -> str | None:
    """What the last layer that names `section.key` gives it, unchecked; None where none does."""
    found: str | None = None
    for layer in [*map(read_file, files), _read_arguments(overrides, [])]:
        values = layer.values.get(section)
        if isinstance(values, Mapping) and isinstance(values.get(key), str):
            found = None if values[key].lower() in NULLS else values[key]
    return found


def named_keys(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields each key that the overrides name, and its value, unchecked."""
    for key, value in leaves_of(Config, _read_arguments(overrides, []).values):
        yield ".".join(key), value


def is_published(files: Sequence[str], overrides: Sequence[str], section: str, key: str) -> bool:
    """Whether the last layer that names `section.key` is a shipped preset: the value of a published model, which no
    file or argument of the user's names.
    """
    found = False
    for layer in [*map(read_file, files), _read_arguments(overrides, [])]:
        values = layer.values.get(section)
        if isinstance(values, Mapping) and key in values:
            found = Path(layer.origin).is_relative_to(SHIPPED)
    return found


def names_task(files: Sequence[str], overrides: Sequence[str]) -> bool:
    """Whether a layer has the section that makes a run a fine-tuning run."""
    return any(layer.values.get("task") for layer in [*map(read_file, files), _read_arguments(overrides, [])])


def _carried_layer(layer: ConfigLayer) -> ConfigLayer:
    refuse_interpolations(layer.values, layer.origin)
    values, left_out = carried(layer.values, _default_texts())
    return ConfigLayer(layer.origin, values, tuple(left_out))


@cache
def _default_texts() -> Mapping[str, Any]:
    """The defaults as a file has them."""
    values: Mapping[str, Any] = yaml.load(to_yaml(Config()), Loader=LiteralLoader)
    return values


def to_carried_yaml(config: Config) -> str:
    """`to_yaml` of what a checkpoint carries."""
    return as_yaml(carried(_values(config), {})[0])


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML that `load` reads back to an equal Config; no empty `task` or `probes`."""
    return as_yaml(_values(config))


def _values(config: Config) -> dict[Any, Any]:
    values: dict[Any, Any] = plain(Config, config)
    if config.task is None:
        del values["task"]
    if not config.probes:
        del values["probes"]
    return values


def presets() -> list[str]:
    """The names of the shipped presets."""
    return sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in SHIPPED.rglob("*.yaml"))


def find_file(name: str) -> Path:
    """A path as it stands, else `NAME.yaml` among the shipped presets."""
    candidates = [Path(name), SHIPPED / name, SHIPPED / f"{name}.yaml"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if Path(name).exists():
        raise ConfigError(f"{name}: is no regular file; name a YAML file")
    shipped = presets()
    folder, _, stem = name.removesuffix(".yaml").rpartition("/")  # names of one folder are alike by its name alone
    beside = [preset for preset in shipped if preset.rpartition("/")[0] == folder] or shipped
    stems = {preset: preset.rpartition("/")[2] for preset in beside}
    like = difflib.get_close_matches(stem, {*stems.values()}, n=2)  # the most likely one first
    close = [preset for one in like for preset in beside if stems[preset] == one]
    way_out = f"did you mean {' or '.join(close)}?" if close else _presets_in(name.partition("/")[0], shipped)
    raise ConfigError(f"{name}: no such file, and no shipped preset of that name; {way_out}")


def _presets_in(folder: str, shipped: Sequence[str]) -> str:
    """The presets of `folder`, and which other folders there are: a line with all of them would be cut."""
    names = [preset.partition("/")[2] for preset in shipped if preset.startswith(f"{folder}/")]
    others = sorted({f"{one}/" for preset in shipped if (one := preset.partition("/")[0]) != folder})
    if not names:
        return f"`gpt1-ds config ls` lists those of {', '.join(others)}"
    return f"{folder}/ has {', '.join(names)}; others are in {', '.join(others)}"


def read_file(name: str) -> ConfigLayer:
    """The mapping in the file or shipped preset `name`; of a run's or a checkpoint's own, what it carries. Raises
    ConfigError for what cannot be read as one.
    """
    path = find_file(name)
    layer = _read_yaml(path)
    return _carried_layer(layer) if lies_in_a_run(path) else layer


def _read_yaml(path: Path) -> ConfigLayer:
    return ConfigLayer(str(path), read_mapping(path))


def _read_arguments(arguments: Sequence[str], found: list[str]) -> ConfigLayer:
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
            found.append(f"{argument!r} is not key=value; write {example}")
            continue
        if key.startswith("-"):
            found.append(f"{argument!r}: keys are written without dashes: {key.lstrip('-')}={text}")
            continue
        if "[" in key:
            found.append(f"{argument!r}: one item of a list cannot be set alone; write {key.partition('[')[0]}=[...]")
            continue
        try:
            value = yaml.load(text, Loader=LiteralLoader) if text[:1] in "[{" and text else text
        except yaml.YAMLError:
            value = text
        node = values
        *sections, last = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
            if not isinstance(node, dict):
                found.append(f"{argument!r}: {section} was given a value by an earlier argument")
                break
        else:
            node[last] = value
    return ConfigLayer("command line", values)


def _merge(config: DictConfig, layer: ConfigLayer, found: list[str]) -> DictConfig:
    """`config` with `layer` on top. Adds problems to `found` and leaves out what is wrong."""
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
    """`config`, which is used up, with these values set."""
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
    """OmegaConf says more below, about its own types. A section is called as people know it, not as its class."""
    return _UNKNOWN.sub(_no_such_key, str(error).partition("\n")[0])


def _no_such_key(found: re.Match[str]) -> str:
    key, kind = found.groups()
    if kind == Config.__name__:
        return f"there is no section {key!r}"
    section = section_names(Config).get(kind)
    return f"the section {section} has no key {key!r}" if section else f"there is no key {key!r} here"
