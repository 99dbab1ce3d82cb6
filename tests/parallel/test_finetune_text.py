"""Fine-tuning in text: every layout has the numbers of one process (dropout on), in training, in ranking answers and in
writing them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.launcher import launch
from tests.helpers import finetuning
from tests.helpers.finetuning import assert_alike
from tests.helpers.foreign import make_checkpoint
from tools import small_tasks

T5 = ModelConfig(
    **{"kind": "encoder_decoder", "layers": 2, "width": 32, "heads": 2, "head_width": 12, "context": 64},
    **{"norm": "pre", "norm_kind": "rms", "norm_eps": 1e-6, "positions": "relative", "biases": False, "init": "t5"},
    **{"attention_scale": "one", "activation": "gated_gelu", "ffn": 48, "ffn_dropout": 0.1, "tied": False},
)
PREFIX = replace(T5, kind="gpt", mask="prefix", positions="learned", tied=True)
CAUSAL = replace(PREFIX, mask="causal")
MODELS = {
    "t5": (T5, "pair", 20),
    "prefix": (PREFIX, "regression", 2),
    "t5-writes": (T5, "mixture", 8),
    "gpt-writes": (CAUSAL, "generation", 12),
}


def mixture(place: Path) -> list[str]:
    """Texts to write and classes, learned together."""
    small_tasks.make_task(place / "texts", "generation", dev=8)
    small_tasks.make_task(place / "pairs", "pair", train=24, dev=6)
    texts = f"{{name: table, kind: generation, title: texts, path: {place / 'texts'}}}"
    pairs = f"{{name: table, kind: classification, title: pairs, path: {place / 'pairs'}, weight: 2, "
    return ["task.name=mixture", f"task.mixture=[{texts}, {pairs}columns: {small_tasks.COLUMNS['pair']}}}]"]


Run = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def run(span_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("text")

    @cache
    def finetuned(name: str, layout: str) -> Path:
        model, shape, dev = MODELS[name]
        source = place / name
        if not source.exists():
            make_checkpoint(source, span_data.parent / "tokenizer", model)
        ranks, cut = finetuning.LAYOUTS[layout]
        arguments = [*(mixture(place) if shape == "mixture" else small_tasks.make_task(place / shape, shape, dev=dev))]
        arguments += [
            "task.form=text",
            f"checkpoint.init_from={source}",
            f"run.dir={place}",
            f"run.name={name}-{layout}",
        ]
        # at a higher rate other micro-batches alone give norms 5e-5 apart
        rate = "1e-4" if "writes" in name else "5e-4"
        arguments += ["train.steps=6", f"optimizer.lr={rate}", *cut]
        assert finetuning.finetune(arguments, ranks) == 0
        return place / f"{name}-{layout}"

    return finetuned


@pytest.mark.parametrize("layout", ["tp2-sequence", "zero3", pytest.param("tp2-pp2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_every_layout_equals_one_process(name: str, layout: str, run: Run) -> None:
    one, other = run(name, "one"), run(name, layout)
    assert_alike(one, other, 6, 0.0)
    if "writes" in name:
        first, second = (json.loads(next(folder.glob("predictions/*.json")).read_text()) for folder in (one, other))
        assert first == second
        assert len({*first.values()}) > 1


def answer_of_rank(overrides: list[str]) -> str:
    """Runs on every rank: what is raised where rank 1 alone cannot write its texts."""
    from gpt1_ds.engine.process_groups import ProcessGroups, connect
    from gpt1_ds.engine.transfer import Sender
    from gpt1_ds.evaluation import written_scores

    device = connect(60)
    groups = ProcessGroups(load([], overrides))

    def write(*_: object, **__: object) -> list[str]:
        if groups.rank == 1:
            raise CheckpointError("its scores are not finite")
        return ["text"]

    written_scores.write_targets, written_scores.of_engine = write, lambda *_: None
    scorer: Any = SimpleNamespace(groups=groups, config=None, tokenizer=None, sampling=None)
    engine: Any = SimpleNamespace(progress=lambda _: None, sender=Sender(device))
    rows: Any = SimpleNamespace(lengths=np.array([[3], [2]]), source_of=lambda number: [number])
    with pytest.raises(CheckpointError) as raised:
        written_scores.WrittenScorer._write(scorer, engine, rows, [0, 1])
    return str(raised.value)


def test_texts_that_one_rank_cannot_write_end_all_ranks_alike() -> None:
    """The other rank would wait for these texts."""
    answers = launch.run("tests.parallel.test_finetune_text:answer_of_rank", ([],), 2)
    assert answers == ["its scores are not finite"] * 2
