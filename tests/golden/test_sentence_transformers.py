"""A folder of sentence-transformers: that library's vectors of it are ours."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.evaluation.embed import Embedder
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.interop import hf_export, imported
from gpt1_ds.interop.head_import import Classifier
from gpt1_ds.interop.imported import Imported
from gpt1_ds.tasks.kinds import Sentences
from tests.helpers.foreign import ENCODER, PROVENANCE, SMALL, encoder_tokenizers, random_weights
from tests.helpers.served import SENTENCE

LIMIT = 24  # tokens: some texts are longer
draw = random.Random(0)
TEXTS = [" ".join(draw.choices([*SENTENCE.split(), "File,", "é"], k=draw.randint(1, 40))) for _ in range(100)]
CASES = [("Bert", "mean"), ("Bert", "cls"), ("Bert", "max"), ("Roberta", "mean")]
CASES += [("GPT2", "mean"), ("GPT2", "max"), ("OpenAIGPT", "mean")]
MODELS = {
    "Bert": ENCODER,
    "Roberta": replace(ENCODER, segments=0),
    "GPT2": replace(SMALL, norm="pre"),
    "OpenAIGPT": SMALL,
}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = encoder_tokenizers(tmp_path_factory.mktemp("symbols"), "File, é")
    return {**found, "gpt2": found["roberta"], "openaigpt": found["roberta"]}


def make_sentences(out: Path, tokenizer: Path, model: ModelConfig, pooling: Any) -> Path:
    """A checkpoint with random weights, as fine-tuning on labelled pairs leaves one."""
    symbols: Any = "extract" if model.mask == "causal" else "separator" if model.segments else "two_separators"
    labels, metrics = ("entailment", "neutral", "contradiction"), ("spearman",)
    task = Sentences("nli", "sentences", labels, metrics, symbols=symbols, loss="nli")
    settings = TaskConfig(
        **{"name": "nli", "path": "data/nli", "kind": "sentences", "sts": "data/stsb", "pooling": pooling},
        max_length=LIMIT, lm_coefficient=0.0,
    )  # fmt: skip
    head = HeadSpec(3, 2, dropout=0.0, lm_coefficient=0.0, kind=pooling, loss="nli")
    weights = random_weights(model, load_tokenizer(tokenizer).vocab_size, head=head)
    found = Imported("hf", out, model, weights, head=head, classifier=Classifier(task, settings, head))
    imported.publish(found, tokenizer, out, PROVENANCE)
    return out


@pytest.mark.parametrize(("family", "pooling"), CASES)
def test_vectors_are_ours(family: str, pooling: Any, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    checkpoint = make_sentences(tmp_path / "ours", tokenizers[family.lower()], MODELS[family], pooling)
    hf_export.export(checkpoint, tmp_path / "theirs")
    embedder = Embedder(load_checkpoint(checkpoint))
    wanted = embedder.vectors(TEXTS)
    assert embedder.pooling == pooling
    assert 0 < embedder.cut < len(TEXTS)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert type(theirs[0].auto_model).__name__ == f"{family}Model"
    assert (theirs.max_seq_length, theirs.similarity_fn_name) == (LIMIT, "cosine")
    found = theirs.encode(TEXTS, batch_size=16, show_progress_bar=False)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert np.abs(wanted[0] - wanted[1]).max() > 0.1, "the texts matter"
