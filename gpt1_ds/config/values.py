"""The values that a layer of the configuration sets, each as its field wants it; and values of Python or YAML as
arguments of a command line.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpt1_ds.common.text import parse_count
from gpt1_ds.config.evaluations import EvaluationConfig
from gpt1_ds.config.sections import AUTO, DataSource
from gpt1_ds.config.task import PartConfig, ProbeConfig

NULLS = ("null", "none", "~", "")
NUMBERS: dict[tuple[str, ...], dict[str, int]] = {("train", "micro_batch"): {"auto": AUTO}}  # that have names
LONGEST_KEY = 100  # characters of one that is compared with those that there are
MAX_VALUE = 4096  # characters of a value whose interpolations are filled in
MOST_INTERPOLATIONS = 100  # of a configuration; each costs a millisecond
_RESOLVER = re.compile(r"\$\{(?![A-Za-z_][\w.]*\})")  # anything but the name of one other key: ${model.layers}
_NAME = re.compile(r"\$\{([\w.]*)\}")


def meant(kind: type, key: tuple[str, ...]) -> str:
    """Returns what to say of a key that is not there: the one that it may have been, most likely of the same name
    elsewhere; else where to look.
    """
    close = alike(kind, key) if len(key[-1]) <= LONGEST_KEY else []
    if close:
        return f"; did you mean {' or '.join(close)}?"
    if len(key) == 1:
        return f"; the sections are {', '.join(field.name for field in dataclasses.fields(kind))}"
    return "; `gpt1-ds config keys` lists all"


def alike(kind: type, key: tuple[str, ...]) -> list[str]:
    """Returns keys of the same name in any section, else those of its section that have it as a word, else those that
    are spelled alike.
    """
    known = keys_of(kind)
    names = {name: name.rpartition(".")[2] for name in known}
    same = [full for full, name in names.items() if name == key[-1]]
    if close := same or with_word(kind, key) or difflib.get_close_matches(".".join(key), known, n=2):
        return close
    near = difflib.get_close_matches(key[-1], names.values(), n=2, cutoff=0.75)
    return [full for full, name in names.items() if name in near]


def with_word(kind: type, key: tuple[str, ...]) -> list[str]:
    """Returns keys of the same section that have this name as a word: global_batch and micro_batch of batch."""
    section, word = ".".join(key[:-1]), key[-1]
    split = [full.rpartition(".") for full in keys_of(kind)]
    return [f"{there}.{name}" for there, _, name in split if there == section and word in name.split("_")]


@cache
def keys_of(kind: type, prefix: str = "") -> tuple[str, ...]:
    """Returns the keys of a dataclass of sections, with their sections: `model.layers`."""
    found: list[str] = []
    for name, hint in _hints(kind).items():
        section = _section(hint)
        found += keys_of(section, f"{prefix}{name}.") if section else [f"{prefix}{name}"]
    return tuple(found)


@cache
def section_names(kind: type, prefix: str = "") -> Mapping[str, str]:
    """Returns the name of each section, by that of its dataclass: DataConfig is `data`."""
    found: dict[str, str] = {}
    for name, hint in _hints(kind).items():
        if section := _section(hint):
            found |= {section.__name__: f"{prefix}{name}", **section_names(section, f"{prefix}{name}.")}
    return found


def _section(hint: Any) -> type | None:
    """Returns the dataclass that a field of this type holds, if it holds one."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((one for one in options if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def leaves_of(kind: Any, values: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields (key path, value) for everything a layer sets, with counts, nulls and free-form mappings made into
    values.
    """
    section = _section(kind)
    if section is not None and isinstance(values, dict):
        hints = _hints(section)
        for key, value in values.items():
            yield from leaves_of(hints.get(key), value, (*prefix, str(key)))
        return
    yield prefix, _typed(kind, NUMBERS.get(prefix, {}).get(values, values) if isinstance(values, str) else values)


def inside(value: Any, first: int = 0) -> Mapping[Any, Any]:
    """Returns what a dataclass or a mapping holds, and a list by numbers from `first` on; nothing for other values."""
    if dataclasses.is_dataclass(value):
        return vars(value)
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value, first))
    return value if isinstance(value, Mapping) else {}


def plain(kind: Any, value: Any) -> Any:
    """Returns dataclasses as mappings and tuples as lists, whole numbers in the place of others as these: what
    OmegaConf makes of a value of type `kind`.
    """
    if dataclasses.is_dataclass(value):
        hints = _hints(typing.cast(type, type(value)))
        return {name: plain(hint, getattr(value, name)) for name, hint in hints.items()}
    if isinstance(value, (list, tuple)):
        (item,) = typing.get_args(kind)[:1] or (Any,)
        return [plain(item, one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(Any, one) for key, one in value.items()}
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return float(value) if float in options and type(value) is int else value


@cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def _typed(kind: Any, value: Any) -> Any:
    """Returns `value` as its field wants it where OmegaConf alone would not know: counts, nulls, sources, free
    mappings.
    """
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and isinstance(value, str) and value.lower() in NULLS:
        return None
    if int in options and isinstance(value, str) and "${" not in value:
        return count_or_text(value)
    if value == "" and typing.get_origin(kind) in (dict, list):
        return typing.get_origin(kind)()  # a key whose lines below are all comments
    if kind == list[DataSource]:
        listed = value if isinstance(value, list) else [value]
        return [{"path": item} if isinstance(item, str) else item for item in listed]
    if kind in (list[ProbeConfig], list[EvaluationConfig], list[PartConfig]):
        (section,) = typing.get_args(kind)
        listed, hints = value if isinstance(value, list) else [value], _hints(section)
        return [
            {key: _typed(hints.get(key), one) for key, one in item.items()}
            if isinstance(item, dict)
            else {"name": item}
            for item in listed
        ]
    if typing.get_origin(kind) is dict and typing.get_args(kind)[1] is not str:
        return _plain(value)
    return value


def count_or_text(text: Any) -> Any:
    """Returns a count as people write it, as an int; null and what is no count as it stands."""
    if not isinstance(text, str):
        return text
    if text.lower() in NULLS:
        return None
    try:
        return parse_count(text)
    except ValueError:
        return text  # OmegaConf's type error names the field


def _plain(value: Any) -> Any:
    """Returns a free-form mapping's strings as the JSON values they look like."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.lower() in NULLS:
        return None
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def refuse_resolvers(value: Any) -> None:
    """`${oc.env:...}` would copy secrets out of the environment into logs and checkpoints, also where its name is put
    together by an interpolation within an interpolation. Raises ValueError for all but plain names of keys.
    """
    for text in texts_in(value):
        if _RESOLVER.search(text):
            raise ValueError(f"{text!r}: resolvers are off, ${{section.key}} alone is read; write the value itself")


def interpolation_problems(config: Any) -> Iterator[str]:
    """Yields a line for each interpolation in the nested mappings `config` that could grow without bound: it names a
    value that has one itself, or no single value, or makes too long a text. `${a.b}${a.b}` over six keys would be a
    terabyte.
    """
    count = 0
    for text in texts_in(config):
        names, size = _NAME.findall(text), len(text)
        count += len(names)
        if count > MOST_INTERPOLATIONS:
            yield f"{text!r:.80}: more than {MOST_INTERPOLATIONS} interpolations; write the values themselves"
            return
        plain = True
        for name in names:
            value = config
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            size += len(str(value))
            if isinstance(value, Mapping | list) or "${" in str(value):
                plain = False
                yield f"{text!r:.80}: ${{{name}}} is not one plain value; write the value itself"
        if names and plain and size > MAX_VALUE:
            yield f"{text!r:.80}: longer than {MAX_VALUE} characters; write a shorter one"


def nesting_problems(kind: type, values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yields a line for each list or mapping of plain values that holds another one, which OmegaConf lets pass."""
    for name, hint in _hints(kind).items():
        value, section = values.get(name), _section(hint)
        if section is not None and isinstance(value, Mapping):
            yield from nesting_problems(section, value, f"{prefix}{name}.")
        elif typing.get_origin(hint) in (list, dict) and typing.get_args(hint)[-1] in (str, int, float):
            items = value.values() if isinstance(value, Mapping) else value or ()
            if any(isinstance(item, Mapping | list) for item in items):
                yield f"{prefix}{name}={value!r:.80}: each item must be one plain value"


def texts_in(value: Any) -> Iterator[str]:
    """Yields all strings of nested mappings and lists that may hold an interpolation."""
    if isinstance(value, str):
        if "${" in value:
            yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)


def as_overrides(values: Any, prefix: str = "") -> list[str]:
    """Returns a mapping of configuration keys, dotted or nested, as key=value overrides. Raises TypeError for another
    value.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{values!r:.80} is no mapping of configuration keys, like task.max_length: 64")
    overrides = []
    for key, value in values.items():
        if isinstance(value, dict):
            overrides += as_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(f"{prefix}{key}={as_text(value)}")
    return overrides


def as_text(value: Any) -> str:
    """Returns one value as a file has it."""
    if isinstance(value, (list, tuple)):
        items = [str(item) if isinstance(item, Path) else item for item in value]
        return yaml.safe_dump(items, default_flow_style=True, width=1 << 20).strip()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
