"""Fine-tuning of bidirectional models: every layout has the numbers of one process (dropout on), and what such a run
takes over from pre-training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.restore import has_pooler
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.model.names import ParameterInfo, initial_value
from tests.helpers import finetuning
from tests.helpers.finetuning import assert_alike
from tests.helpers.foreign import ENCODER, make_checkpoint, master
from tools import small_tasks

STEPS = 8
MODELS = {"segments": ENCODER, "no segments": replace(ENCODER, segments=0)}
CASES = [
    *(("segments", "pair", layout) for layout in ("tp2", "pp2")),
    *(("segments", "regression", layout) for layout in ("tp2-pp2", "zero3")),
    *(("no segments", "choice", layout) for layout in ("tp2", "zero3")),
]
Run = Callable[[str, str, str], Path]


@pytest.fixture(scope="module")
def sources(sentence_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of random weights; that with segments has the pooler of next-sentence prediction."""
    place = tmp_path_factory.mktemp("sources")
    tokenizer = sentence_data.parent / "tokenizer"
    heads = {"segments": NEXT_SENTENCE, "no segments": None}
    return {
        name: make_checkpoint(place / name.replace(" ", "-"), tokenizer, model, head=heads[name])
        for name, model in MODELS.items()
    }


@pytest.fixture(scope="module")
def run(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("runs")

    @cache
    def finetuned(model: str, shape: str, layout: str, *extra: str) -> Path:
        ranks, cut = finetuning.LAYOUTS[layout]
        name = "-".join([model, shape, layout, *extra]).replace(" ", "-").replace("=", "-")
        arguments = [*small_tasks.make_task(place / shape, shape), f"checkpoint.init_from={sources[model]}", *cut]
        arguments += [f"run.dir={place}", f"run.name={name}", f"train.steps={STEPS}", *extra]
        assert finetuning.finetune(arguments, ranks) == 0
        return place / name

    return finetuned


@pytest.mark.parametrize(("model", "shape", "layout"), CASES)
def test_every_layout_equals_one_process(model: str, shape: str, layout: str, run: Run) -> None:
    one, other = run(model, shape, "one"), run(model, shape, layout)
    assert_alike(one, other, STEPS, 1e-4 * (shape == "regression"))


def test_what_the_checkpoint_says_of_its_head(run: Run) -> None:
    facts: dict[str, Any] = manifest.read(find_checkpoint(run("segments", "regression", "one")))
    assert {"kind": "pooled", "outputs": 1, "sequences": 1, "lm_coefficient": 0.0}.items() <= facts["head"].items()
    assert {"layout": "pair", "symbols": "separator", "regression": "value"}.items() <= facts["task"].items()
    facts = manifest.read(find_checkpoint(run("no segments", "choice", "one")))
    assert (facts["head"]["kind"], facts["task"]["symbols"]) == ("dense", "two_separators")


@pytest.mark.parametrize("model", MODELS)
def test_what_is_taken_over(model: str, sources: dict[str, Path], run: Run) -> None:
    """All but the task's own head; the pooler where pre-training had one. Nothing of a masked head is left."""
    still = ("optimizer.lr=1e-30", "train.steps=1")
    folder = find_checkpoint(run(model, "pair", "one", *still))
    config, vocab_size = MODELS[model], len(master(folder, "tokens.weight"))
    head = HeadSpec(2, 1, lm_coefficient=0.0, kind="pooled" if config.segments else "dense")
    for name, parameter in architecture(config, vocab_size, head).parameters.items():
        is_new = name.startswith("head.") or (name.startswith("pooler.") and not config.segments)
        seed = 3  # of helpers.finetuning
        wanted = initial_value(ParameterInfo.whole(parameter), seed) if is_new else master(sources[model], name)
        assert torch.allclose(master(folder, name), wanted, rtol=0, atol=1e-12), name


def test_a_pooler_that_is_not_there_is_drawn(sources: dict[str, Path], tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", sources["segments"] / "tokenizer", MODELS["segments"])
    assert [has_pooler(StateReader(folder)) for folder in (source, sources["segments"])] == [False, True]
    arguments = [*small_tasks.make_task(tmp_path / "pair", "pair", train=8, dev=2), f"checkpoint.init_from={source}"]
    arguments += [f"run.dir={tmp_path}", "run.name=r", "train.steps=1", "optimizer.lr=1e-30"]
    assert finetuning.finetune(arguments) == 0
    dense_DD = master(find_checkpoint(tmp_path / "r"), "pooler.dense.weight")
    assert dense_DD.abs().max() > 0
    assert dense_DD.std() == pytest.approx(0.02, rel=0.1)


def test_a_language_model_loss_is_refused(sources: dict[str, Path], tmp_path: Path) -> None:
    arguments = [*small_tasks.make_task(tmp_path, "pair", 8, 2), f"checkpoint.init_from={sources['segments']}"]
    message = r"^task.lm_coefficient=0.5: model.mask=bidirectional has no next token to predict; use 0$"
    with pytest.raises(ConfigError, match=message):
        finetuning.configuration([*arguments, "task.lm_coefficient=0.5"])
