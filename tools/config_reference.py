"""Write configs/README.md: every configuration key and every shipped preset, from the code and the files themselves.

    python tools/config_reference.py [--check]

A key's meaning is the comment behind its field in the code; --check only says whether the page is up to date.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.config import Config
from gpt1_ds.config.reference import Key, comments, described_presets, keys, sections
from gpt1_ds.scaling.tables import COLUMNS
from gpt1_ds.sweep.finetuning_study import FinetuningStudy
from gpt1_ds.sweep.scaling_study import Arm, ScalingStudy

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "configs" / "README.md"
HEAD = """# Configuration

Written by `python tools/config_reference.py` from the comments in `gpt1_ds/config/`; do not edit it.

`-c FILE` names a YAML file or a shipped preset, any number of times; later ones win, and `key=value` arguments win
over all of them. `--print-config` shows what comes out. Token and step counts take `10B`, `500M`, `1e9` and
`1_000_000`.
"""


def page() -> str:
    parts, told = [HEAD], set[str]()
    for name, kind, listed in sections():
        about = f" ({comments(Config)[name]})" if name in comments(Config) else ""
        what = _about(kind)
        parts += [f"\n## {name}{about}\n", *((what, "") if what not in told else ())]
        told.add(what)
        parts += _table(keys(kind, name + listed))
    parts += ["\n## A study's file (`gpt1-ds finetune study FILE`)\n"]
    parts += _table(keys(FinetuningStudy, ""))
    parts += ["\n## A scaling study's file (`gpt1-ds scaling plan FILE`)\n", inspect.getdoc(Arm) or "", ""]
    parts += _table(keys(ScalingStudy, ""))
    parts += ["\n### Columns of its results.csv\n"]
    parts += _rows(("Column", "Meaning"), [(f"`{name}`", about) for name, about in COLUMNS.items()])
    parts += ["\n## Presets\n"]
    parts += _rows(("-c", "What it is"), [(f"`{name}`", about) for name, about in described_presets()])
    return "\n".join(parts) + "\n"


def _about(kind: Any) -> str:
    """What a section is: the docstring of its class, else that of the file that it has for itself."""
    written = not kind.__doc__.startswith(f"{kind.__name__}(")  # else the one that a dataclass gets
    return inspect.getdoc(kind if written else sys.modules[kind.__module__]) or ""


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
