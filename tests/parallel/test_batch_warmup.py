"""A batch that grows: every layout has the numbers of one process, and a resumed run those of an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.config import load
from tools import runs
from tools.layouts import LAYOUTS, ONE, RECIPE, Layout, Trace, compare, trace

STEPS = 5
GROWS = ["train.global_batch=24", "train.batch_warmup=8", "train.batch_warmup_tokens=1536"]
SIZES = [8, 8, 16, 24, 24]
NAMES = (
    (2, "zero0"),
    (2, "zero2"),
    (2, "zero3"),
    (4, "pp2"),
)
CHOSEN = [layout for layout in LAYOUTS if (layout.ranks, layout.name) in NAMES]


@pytest.fixture(scope="module")
def alone(tiny_data: Path) -> Trace:
    return trace(ONE, tiny_data, STEPS, GROWS)


def test_it_is_not_the_full_batch_from_the_start(alone: Trace, tiny_data: Path) -> None:
    sizes = load([], [*RECIPE, *GROWS]).batch_sizes
    assert [sizes.size(step) for step in range(1, STEPS + 1)] == SIZES
    full = trace(ONE, tiny_data, 1, GROWS[:1])
    assert full.fingerprints[0] != alone.fingerprints[0]
    small = trace(ONE, tiny_data, STEPS, ["train.global_batch=8"])
    for found, wanted in ((small.fingerprints, alone.fingerprints), (small.losses, alone.losses)):
        assert found[:2] == wanted[:2]
        assert found[2] != wanted[2], "the first of sixteen sequences"


@pytest.mark.parametrize("layout", CHOSEN, ids=lambda layout: f"{layout.ranks}-{layout.name}")
def test_every_layout_equals_one_process(layout: Layout, alone: Trace, tiny_data: Path) -> None:
    apart = compare(alone, trace(layout, tiny_data, STEPS, GROWS))
    assert apart.same_batches
    assert apart.loss <= 1e-5
    assert apart.norm <= 1e-4
    assert apart.weights <= 1e-4, apart.worst


def test_a_resumed_run_has_the_same_steps(tiny_data: Path, tmp_path: Path) -> None:
    """It stops between two steps of different sizes. Tokens, losses and rates are logged as they are."""
    arguments = [*runs.TINY, f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.batch_warmup=2", "train.steps=6"]
    arguments += ["train.batch_warmup_tokens=512", "schedule.kind=constant", "schedule.warmup_steps=4"]
    assert runs.pretrain([*arguments, "run.name=whole"], 1) == 0
    assert runs.pretrain([*arguments, "run.name=parts", "train.steps=5"], 1) == 0
    assert runs.pretrain([*arguments, "run.name=parts"], 1) == 0
    whole, parts = (_lines(tmp_path / name) for name in ("whole", "parts"))
    for key in ("step", "tokens", "loss", "grad_norm", "learning_rate", "batch_fingerprint"):
        assert [line[key] for line in whole] == [line[key] for line in parts], key
    sizes = load([], arguments).batch_sizes
    assert [sizes.size(step) for step in range(1, 7)] == [2, 2, 2, 4, 4, 6]
    assert [line["tokens"] for line in whole] == [32 * sizes.before(step + 1) for step in range(1, 7)]
    ratios = [line["learning_rate"] / whole[-1]["learning_rate"] for line in whole]
    assert ratios == pytest.approx([0.2, 0.4, 0.6, 1.0, 1.0, 1.0]), "in proportion to the tokens that were read"


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(folder / "metrics.jsonl") if line["kind"] == "train"]
