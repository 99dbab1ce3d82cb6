"""Every preset plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.config import load, world_problems
from gpt1_ds.launcher.accelerator import fitted
from gpt1_ds.plan.report import describe

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "configs" / "pretrain").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("world", [1, 2, 8])
def test_presets_plan(path: Path, world: int) -> None:
    config = fitted(load([str(path)]), world)
    if not list(world_problems(config, world)):
        lines = list(describe(config, world, config.model.vocab_size, None))
        assert f"{world} ranks" in "\n".join(lines)
    else:
        assert world == 8, "presets run on one and on two ranks"
