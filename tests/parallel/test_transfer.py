"""What a fine-tuning run takes from a checkpoint and what it draws, read from its own first one, on every layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop import imported
from gpt1_ds.model.names import ParameterInfo, initial_value
from tests.helpers import finetuning
from tests.helpers.foreign import PROVENANCE, make_checkpoint, master, random_weights
from tools import small_tasks

MODEL = ModelConfig(layers=3, width=32, heads=2, context=48)
SEED = 3  # of helpers.finetuning
STILL = ["train.steps=1", "optimizer.lr=1e-30"]  # one update that changes nothing one can measure
LAYOUTS = {
    "one": (1, []),
    "tp2": (2, ["parallel.tensor=2"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "zero3": (2, ["parallel.zero=3"]),
}
Value = Callable[[str], torch.Tensor]


@pytest.fixture(scope="module")
def tokenizer_folder(tiny_data: Path) -> Path:
    return tiny_data.parent / "tokenizer"


@pytest.fixture(scope="module")
def source(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("source") / "source", tokenizer_folder, MODEL)


def begin(source: Path, place: Path, shape: str = "pair", layout: str = "one", *arguments: str) -> Value:
    """The weights of a run that has just begun, by name."""
    ranks, cut = LAYOUTS[layout]
    arguments = (
        *small_tasks.make_task(place / shape, shape, train=8, dev=2),
        f"checkpoint.init_from={source}",
        *cut,
        *arguments,
    )
    arguments = (*arguments, f"run.dir={place}", f"run.name={shape}")
    if not any(argument.startswith("optimizer.lr") for argument in arguments):
        arguments = (*arguments, *STILL)
    assert finetuning.finetune(list(arguments), ranks) == 0
    return lambda name: master(find_checkpoint(place / shape), name)


def fresh(name: str, vocab_size: int, model: ModelConfig = MODEL, outputs: int = 2) -> torch.Tensor:
    return initial_value(
        ParameterInfo.whole(architecture(model, vocab_size, HeadSpec(outputs, 1)).parameters[name]), SEED
    )


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "layout"),
    [*((layers, "one") for layers in ("null", "0", "1", "-1")), *(("1", layout) for layout in ("tp2", "pp2", "zero3"))],
)
def test_what_is_taken_over(layers: str, layout: str, source: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    V = tokenizer.vocab_size
    longer = ["model.context=64", "checkpoint.positions=draw"] if layout == "zero3" else []
    value = begin(source, tmp_path, "pair", layout, f"task.transfer_layers={layers}", *longer)
    taken = {"null": 3, "0": 0, "1": 1, "-1": 0}[layers]
    for name in architecture(MODEL, V, HeadSpec(2, 1)).shapes:
        if name == "tokens.weight":
            continue
        if name == "positions.weight" and longer:
            drawn = fresh(name, V, replace(MODEL, context=64))
            assert same(value(name), torch.cat([master(source, name), drawn[MODEL.context :]]))
            continue
        block = int(name.split(".")[1]) if name.startswith("blocks.") else -1
        is_taken = layers != "-1" and not name.startswith("head.") and block < taken
        assert same(value(name), master(source, name) if is_taken else fresh(name, V)), name
    specials = [tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id]
    wanted = fresh("tokens.weight", V)
    if layers != "-1":
        kept = [row for row in range(V) if row not in specials]
        wanted[kept] = master(source, "tokens.weight")[kept]
    assert same(value("tokens.weight"), wanted)
    assert not same(fresh("tokens.weight", V)[specials], master(source, "tokens.weight")[specials])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_token_rows_that_the_checkpoint_does_not_have(
    layout: str, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the release of 2018, whose rows end before the special tokens."""
    V, stored = load_tokenizer(tokenizer_folder).vocab_size, 200
    model = ModelConfig(layers=2, width=32, heads=2, context=48, vocab_size=stored)
    weights = random_weights(model, stored)
    monkeypatch.setattr(imported, "fit_vocabulary", lambda config, found, _: (config, found.weights, []))
    imported.publish(imported.Imported("hf", tmp_path, model, weights), tokenizer_folder, tmp_path / "few", PROVENANCE)
    found = begin(tmp_path / "few", tmp_path, "pair", layout, "model.vocab_multiple=4")("tokens.weight")
    assert found.shape == (V, 32)
    assert same(found[stored:], fresh("tokens.weight", V, model)[stored:])
    assert same(found[10:stored], weights["tokens.weight"][10:])  # ids of special tokens are among the first ten


def test_another_task_continues_from_a_fine_tuned_model(source: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    """It has learned what the special tokens mean; its head is another task's, although the shape is the same."""
    V = load_tokenizer(tokenizer_folder).vocab_size
    first = begin(source, tmp_path, "pair", "tp2", "optimizer.lr=1e-2", "train.steps=2")
    second = begin(tmp_path / "pair", tmp_path, "single", "zero3")
    for name in architecture(MODEL, V).shapes:
        assert same(second(name), first(name)), name
    assert same(second("head.weight"), fresh("head.weight", V))
    assert not same(first("head.weight"), fresh("head.weight", V))
