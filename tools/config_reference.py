"""Write configs/README.md: every configuration key and every shipped preset, from the code and the files themselves.

    python tools/config_reference.py [--check]

A key's meaning is the comment behind its field in the code; --check only says whether the page is up to date.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config import Config
from gpt1_ds.config.sections import DataSource
from gpt1_ds.scaling.tables import COLUMNS
from gpt1_ds.sweep.finetuning_study import FinetuningStudy
from gpt1_ds.sweep.scaling_study import Arm, ScalingStudy

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "configs" / "README.md"
HEAD = """# Configuration

Written by `python tools/config_reference.py` from the comments in `gpt1_ds/config/`; do not edit it.

`-c FILE` names a YAML file or a shipped preset, any number of times; later ones win, and `key=value` words win over all
of them. `--print-config` shows what comes out. Token and step counts take `10B`, `500M`, `1e9` and `1_000_000`.
"""


@dataclasses.dataclass(frozen=True)
class Key:
    """One row: `choices` is the type, or what there is to choose from."""

    name: str
    default: str
    choices: str
    meaning: str


def page() -> str:
    parts, told = [HEAD], set[str]()
    for section in dataclasses.fields(Config):
        kind = _dataclass_in(typing.get_type_hints(Config)[section.name])
        listed = "[]" if section.default_factory is list else ""
        about = f" ({_comments(Config)[section.name]})" if section.name in _comments(Config) else ""
        what = _about(kind)
        parts += [f"\n## {section.name}{about}\n", *((what, "") if what not in told else ())]
        told.add(what)
        parts += _table(keys(kind, section.name + listed, section.name))
    parts += ["\n## A study's file (`gpt1-ds finetune study FILE`)\n"]
    parts += _table(keys(FinetuningStudy, "", ""))
    parts += ["\n## A scaling study's file (`gpt1-ds scaling plan FILE`)\n", inspect.getdoc(Arm) or "", ""]
    parts += _table(keys(ScalingStudy, "", ""))
    parts += ["\n### Columns of its results.csv\n"]
    parts += _rows(("Column", "Meaning"), [(f"`{name}`", about) for name, about in COLUMNS.items()])
    parts += ["\n## Presets\n"]
    parts += _rows(("-c", "What it is"), [(f"`{name}`", about) for name, about in presets()])
    return "\n".join(parts) + "\n"


def keys(kind: Any, prefix: str, section: str) -> Iterator[Key]:
    """The rows of a dataclass; those of a dataclass within it follow it."""
    hints, comments = typing.get_type_hints(kind), _comments(kind)
    for field in dataclasses.fields(kind):
        if field.name not in comments:
            raise SystemExit(f"{kind.__module__}.{kind.__name__}.{field.name}: no comment says what it means")
        name = f"{prefix}.{field.name}".removeprefix(".")
        inner = _dataclass_in(hints[field.name])
        if inner is not None and typing.get_origin(hints[field.name]) is None:  # a section within the section
            yield from keys(inner, name, section)
            continue
        yield Key(name, _shown(field), _choices(hints[field.name]), comments[field.name])
        if inner is not None:
            listed = "[]" if typing.get_origin(hints[field.name]) is list else ""
            yield from keys(inner, name + listed, section)


def presets() -> Iterator[tuple[str, str]]:
    """(name behind -c, the first line, or sentence, of its comment) of every shipped file."""
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
        about = [line.lstrip("# ") for line in lines]
        if not about:
            raise SystemExit(f"{path}: no comment at its top says what it is")
        whole = about[0].endswith((".", "?"))
        shown = about[0] if whole else re.split(r"(?<=[.?])\s+(?=[A-Z])", " ".join(about))[0]
        yield path.relative_to(ROOT / "configs").with_suffix("").as_posix(), shown


def _about(kind: Any) -> str:
    """What a section is: the docstring of its class, else that of the file that it has for itself."""
    written = not kind.__doc__.startswith(f"{kind.__name__}(")  # else the one that a dataclass gets
    return inspect.getdoc(kind if written else sys.modules[kind.__module__]) or ""


def _comments(kind: Any) -> dict[str, str]:
    """Field -> the comment behind it, also of the dataclasses that it extends."""
    found: dict[str, str] = {}
    for one in filter(dataclasses.is_dataclass, kind.__mro__):
        found |= _own_comments(one)
    return found


def _own_comments(kind: Any) -> dict[str, str]:
    source = inspect.getsource(sys.modules[kind.__module__])
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    behind = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    (body,) = (n.body for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(node.target): behind[node.end_lineno or 0] for node in fields if node.end_lineno in behind}


def _dataclass_in(hint: Any) -> Any:
    """The dataclass that a hint is, or holds."""
    inside = [hint, *typing.get_args(hint)]
    return next((option for option in inside if dataclasses.is_dataclass(option)), None)


def _shown(field: dataclasses.Field[Any]) -> str:
    """The default as YAML would have it."""
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


def _table(found: Iterator[Key]) -> list[str]:
    cells = [(f"`{key.name}`", f"`{key.default}`", key.choices, key.meaning) for key in found]
    return _rows(("Key", "Default", "Values", "Meaning"), cells)


def _rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("-" * len(cell) for cell in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when the page is stale")
    if parser.parse_args().check:
        return int(not PAGE.exists() or PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
