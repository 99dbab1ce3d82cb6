"""Checkpoints without training, folders that transformers writes, and the commands called as the program calls them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.interop import hf_import, imported, openai
from gpt1_ds.interop.imported import Imported
from gpt1_ds.model.names import ParameterInfo
from tests.helpers.served import SENTENCE

PROVENANCE = {"code": "0" * 16, "version": "0"}
SMALL = ModelConfig(layers=2, width=32, heads=4, context=48, residual_dropout=0.2, embedding_dropout=0.0)
ENCODER = ModelConfig(
    **{"layers": 2, "width": 32, "heads": 2, "context": 48, "mask": "bidirectional", "embedding_norm": True},
    **{"head": "masked", "activation": "gelu", "segments": 2},
)


def random_weights(
    model: ModelConfig, vocab_size: int, seed: int = 0, head: HeadSpec | None = None
) -> dict[str, torch.Tensor]:
    """Every parameter away from its initial value, so that each one matters; logits reach 3 and more."""
    numbers = np.random.default_rng(seed)
    weights = {}
    for name, shape in architecture(model, vocab_size, head).shapes.items():
        values = numbers.standard_normal(shape, dtype=np.float32) * np.float32(0.2)
        weights[name] = torch.from_numpy(values + np.float32(name.endswith("norm.weight")))
    return weights


def make_checkpoint(
    out: Path, tokenizer: Path, model: ModelConfig = SMALL, seed: int = 0, head: HeadSpec | None = None
) -> Path:
    """A checkpoint of random weights for the ids of `tokenizer`."""
    weights = random_weights(model, load_tokenizer(tokenizer).vocab_size, seed, head)
    imported.publish(Imported("hf", out, model, weights, head=head), tokenizer, out, PROVENANCE)
    return out


def import_hf(source: Path, out: Path, tokenizer: Path | None = None, task: str | None = None) -> list[str]:
    """What `checkpoint import --from hf` does in this process; its remarks."""
    with tempfile.TemporaryDirectory() as scratch:
        found, folder = hf_import.read(source, tokenizer, Path(scratch), task)
        return imported.publish(found, folder, imported.free_place(out), PROVENANCE)


def import_openai(source: Path, out: Path, scratch: Path, tokenizer: Path | None = None) -> list[str]:
    """What `checkpoint import --from openai --unverified` does in this process; its remarks."""
    found, folder = openai.read(source, tokenizer, scratch, unverified=True)
    return imported.publish(found, folder, imported.free_place(out), PROVENANCE)


def master(checkpoint: Path, name: str) -> torch.Tensor:
    """A parameter of a checkpoint at its full shape."""
    reader = StateReader(checkpoint)
    stored = reader.index[name]
    return reader.whole("master", ParameterInfo(name, tuple(stored.shape), stored.dim))


def evaluate_here(engine: Any, config: Any, checkpoint: str, tokens: np.ndarray) -> float:
    """On each rank: load `checkpoint` into the engine and give the mean loss of `tokens` [B, S + 1]."""
    from gpt1_ds.checkpoint.restore import restore
    from gpt1_ds.engine.base import MicroBatch

    restore(engine, config, Path(checkpoint), weights_only=True)
    tokens_TB = torch.from_numpy(np.ascontiguousarray(tokens.T))
    weights_SB = torch.full((len(tokens_TB) - 1, tokens_TB.shape[1]), 1 / tokens_TB[1:].numel())
    facts_BF = torch.zeros(tokens_TB.shape[1], 3, dtype=torch.int64)
    labels = (tokens_TB[1:].contiguous(), weights_SB)
    return engine.evaluate([MicroBatch((tokens_TB[:-1].contiguous(), facts_BF), labels)])


def encoder_tokenizers(place: Path, words: str = "file") -> dict[str, Path]:
    """Small tokenizers with the symbols of encoders, as BERT and RoBERTa have them; `words` are in their text, too."""
    (place / "text.txt").write_text(f"{SENTENCE} {words}\n" * 40)
    for name, pieces in (("wordpiece", 100), ("gpt2-bpe", 280)):
        train_tokenizer([place / "text.txt"], place / name, pieces, model=name, masks=True)
    return {"bert": place / "wordpiece", "roberta": place / "gpt2-bpe"}
