"""What every key means, and what every shipped preset is: read from the comments after the fields of the sections, and
from the comment at the top of each file.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import itertools
import json
import re
import sys
import tokenize
import types
import typing
from collections.abc import Iterator
from typing import Any

from gpt1_ds.config.presets import SHIPPED
from gpt1_ds.config.sections import Config, DataSource


@dataclasses.dataclass(frozen=True)
class Key:
    """One row: `choices` is the type, or what there is to choose from."""

    name: str
    default: str
    choices: str
    meaning: str


def sections() -> Iterator[tuple[str, Any, str]]:
    """Yields the name, its dataclass and what follows the name in keys (`[]` of a list) of every section."""
    hints = typing.get_type_hints(Config)
    for section in dataclasses.fields(Config):
        yield section.name, dataclass_in(hints[section.name]), "[]" if section.default_factory is list else ""


def all_keys() -> Iterator[Key]:
    """Yields the keys of all sections."""
    for name, kind, listed in sections():
        yield from keys(kind, name + listed)


def keys(kind: Any, prefix: str) -> Iterator[Key]:
    """Yields the rows of a dataclass; those of a dataclass within it follow it."""
    hints, documented = typing.get_type_hints(kind), comments(kind)
    for field in dataclasses.fields(kind):
        if field.name not in documented:
            raise LookupError(f"{kind.__module__}.{kind.__name__}.{field.name}: no comment says what it means")
        name = f"{prefix}.{field.name}".removeprefix(".")
        inner = dataclass_in(hints[field.name])
        if inner is not None and typing.get_origin(hints[field.name]) is None:  # a section within the section
            yield from keys(inner, name)
            continue
        yield Key(name, _shown(field), _choices(hints[field.name]), documented[field.name])
        if inner is not None:
            listed = "[]" if typing.get_origin(hints[field.name]) is list else ""
            yield from keys(inner, name + listed)


def described_presets() -> Iterator[tuple[str, str]]:
    """Yields (name for -c, the first line, or sentence, of its comment) of every shipped file."""
    for path in sorted(SHIPPED.rglob("*.yaml")):
        lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        about = [line.lstrip("# ") for line in lines] or [""]
        whole = about[0].endswith((".", "?"))
        shown = about[0] if whole else re.split(r"(?<=[.?])\s+(?=[A-Z])", " ".join(about))[0]
        yield path.relative_to(SHIPPED).with_suffix("").as_posix(), shown


def comments(kind: Any) -> dict[str, str]:
    """Returns field -> the comment after it, also of the dataclasses that it extends."""
    found: dict[str, str] = {}
    for one in filter(dataclasses.is_dataclass, kind.__mro__):
        found |= _own_comments(one)
    return found


def _own_comments(kind: Any) -> dict[str, str]:
    source = inspect.getsource(sys.modules[kind.__module__])
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    by_line = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (body,) = (n.body for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(node.target): by_line[node.end_lineno or 0] for node in fields if node.end_lineno in by_line}


def dataclass_in(hint: Any) -> Any:
    """Returns the dataclass that a hint is, or holds."""
    inside = [hint, *typing.get_args(hint)]
    return next((option for option in inside if dataclasses.is_dataclass(option)), None)


def _shown(field: dataclasses.Field[Any]) -> str:
    """Returns the default as YAML would have it."""
    factory = field.default_factory
    value = field.default if factory is dataclasses.MISSING else factory()
    if value is dataclasses.MISSING:
        return "(needed)"
    if isinstance(value, list) and value and isinstance(value[0], DataSource):
        value = value[0].path
    return value if isinstance(value, str) and value else json.dumps(value)


def _choices(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(typing.get_args(hint))
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    names = {int: "integer", float: "number", str: "text", bool: "true, false", type(None): "null"}
    return " or ".join(names.get(option) or _container(option) for option in options)


def _container(hint: Any) -> str:
    if typing.get_origin(hint) is list:
        inside = typing.get_args(hint)[0]
        return f"list of {'mappings' if dataclasses.is_dataclass(inside) else _choices(inside)}"
    return "mapping"
