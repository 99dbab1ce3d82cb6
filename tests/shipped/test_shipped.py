"""Everything that is shipped works: presets plan, the README's commands exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gpt1_ds.cli import parse
from gpt1_ds.config import load, world_problems
from gpt1_ds.plan.dryrun import describe

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "configs" / "pretrain").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("world", [1, 2, 8])
def test_presets_plan(path: Path, world: int) -> None:
    config = load([str(path)])
    if not list(world_problems(config, world)):
        lines = list(describe(config, world, config.model.vocab_size, None))
        assert f"{world} ranks" in "\n".join(lines)
    else:
        assert world == 8, "presets run on one and on two ranks"


def commands() -> list[str]:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if re.match(r"^\s*(\.venv/bin/)?gpt1-ds ", line)]


def test_the_readme_has_commands() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("line", commands())
def test_the_readmes_commands_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)
    options = parse(words[1:])
    assert hasattr(options, "command"), line
    overrides = getattr(options, "overrides", [])
    assert all("=" in word for word in overrides), line
    if hasattr(options, "config"):
        load([name for name in options.config if not name.startswith("my_")], overrides)


def test_the_readmes_files_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"bash (tools/\S+\.sh)", text):
        assert (ROOT / name).exists(), name
