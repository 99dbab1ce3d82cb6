"""A YAML file as nested mappings of texts, and back.

A file is read within a second whatever it holds. Every scalar is read as the letters it is written in and only then
turned into its field's type, so `20:00:00`, `no` and `012` stay what they are (YAML 1.1 would make them 72000, False
and 10).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import naming

MAX_FILE_BYTES = 1 << 16  # a resolved configuration has 5,000
MAX_NODES = 2000  # keys and values, of which it has 300; a slow core needs half a second for them
MAX_DEPTH = 32
MAX_KEY_LENGTH = 256


def read_mapping(path: Path) -> dict[Any, Any]:
    """Returns the mapping that a YAML file holds, its scalars as strings. Raises ConfigError for what is not one."""
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
    """Returns mappings, lists, texts and numbers as YAML, the keys in their order, every byte as OmegaConf.to_yaml
    writes it: a run's configuration is known by the hash of its text. OmegaConf makes typed nodes of all values first,
    which takes more than twenty times as long.
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
