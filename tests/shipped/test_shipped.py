"""Every preset plans; those of the papers have the papers' models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.architecture.count import parameters
from gpt1_ds.common.text import amount
from gpt1_ds.config import load, world_problems
from gpt1_ds.launcher.accelerator import with_fitted_micro_batch
from gpt1_ds.plan.machine import PRESETS as MACHINES
from gpt1_ds.plan.report import describe
from gpt1_ds.plan.search import search
from gpt1_ds.training.schedule import learning_rate

ROOT = Path(__file__).parents[2]
PRESETS = sorted((ROOT / "configs" / "pretrain").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
@pytest.mark.parametrize("world", [1, 2, 8])
def test_presets_plan(path: Path, world: int) -> None:
    config = with_fitted_micro_batch(load([str(path)]), world)
    if not list(world_problems(config, world)):
        lines = list(describe(config, world, config.model.vocab_size, None))
        assert f"{amount(world, 'rank')} = tensor" in "\n".join(lines)
    else:
        assert world == 8, "presets run on one and on two ranks"


@pytest.mark.parametrize("name", ["gpt2", "bert_base", "bert_large", "roberta_base", "roberta_large"])
def test_a_paper_s_recipe_has_its_model(name: str) -> None:
    assert load([f"pretrain/{name}"]).model == load([f"model/{name}"]).model


def test_the_second_phase_of_bert_continues_with_the_rate_of_the_first() -> None:
    """As in one run of a million steps, whose rate falls on a line."""
    short, long = load(["pretrain/bert_base_128"]), load(["pretrain/bert_base"])
    assert replace(short.model, context=512) == long.model
    steps = [config.train.steps or 0 for config in (short, long)]
    assert steps == [900_000, 1_000_000]
    for step in (10_000, 500_000, 900_000):
        found, wanted = (
            learning_rate(config.schedule, config.optimizer.lr, step, length)
            for config, length in zip((short, long), steps, strict=True)
        )
        assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "wanted"), [("gpt2_xl", 1_557_611_200), ("bert_large", 335_174_458), ("roberta_base", 124_695_129)]
)
def test_a_search_places_large_models_on_a_node(name: str, wanted: int) -> None:
    config = load([f"model/{name}"])
    vocab_size = config.model.vocab_size
    assert vocab_size is not None, "presets of papers say it"
    assert parameters(config.model, vocab_size) == wanted
    found = search(config, 8, vocab_size, MACHINES["h100"], 78 << 30)
    assert not found.too_large
    best = found.ranked[0]
    assert 16 * wanted / 8 < best.memory.peak < 78 << 30, "weights, gradients, masters and moments on eight ranks"
    assert all(config.model.heads % one.values["tensor"] == 0 for one in found.ranked)
