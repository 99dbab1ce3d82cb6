"""What makes a tool's small model one of a family: settings, and text that they can read."""

from __future__ import annotations

import argparse
from pathlib import Path

SENTINELS = 20
_ENCODER = [
    *("model.mask=bidirectional", "model.embedding_norm=true", "model.activation=gelu", "model.head=masked"),
    "objective.kind=masked",
]
_PAIRS = ["model.segments=2", "objective.next_sentence=true", "objective.copies=10", "data.text=pairs"]
_T5 = [
    *("model.norm=pre", "model.norm_kind=rms", "model.norm_eps=1e-6", "model.positions=relative", "model.biases=false"),
    *("model.attention_scale=one", "model.init=t5", "model.activation=gated_gelu", "model.ffn_dropout=0.1"),
    "model.logit_scale=inverse_root_width",
    f"objective.sentinels={SENTINELS}",
]
_TWO_STACKS = ["model.kind=encoder_decoder", "model.layers=2"]
FAMILIES: dict[str, list[str]] = {
    "gpt1": [],
    "gpt2": ["model.norm=pre", "model.init=residual"],
    "bert": [*_ENCODER, *_PAIRS, "model.norm_eps=1e-12"],
    "t5": [*_T5, *_TWO_STACKS, "objective.kind=spans"],
    "t5_shared": [*_T5, *_TWO_STACKS, "objective.kind=spans", "model.shared=true"],
    "prefix": [*_T5, "model.mask=prefix", "objective.kind=prefix"],
    "roberta": [*_ENCODER, "objective.whole_words=true", "data.text=full_sentences"],
}


def add_family(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", choices=FAMILIES, default="gpt1", help="of the model (default: gpt1)")


def family_data(folder: Path, family: str) -> Path:
    """A small dataset in `folder` that the family's models can read."""
    settings = FAMILIES[family]
    return make_data(
        folder, "objective.kind=masked" in settings, SENTINELS if "objective.kind=spans" in settings else 0
    )


def make_data(folder: Path, masks: bool = False, sentinels: int = 0) -> Path:
    """A small dataset from the corpus inside Python; with `masks` it has what masked models need: the tokenizer's
    symbols, and sentence borders; with `sentinels` those that stand for spans.
    """
    from gpt1_ds.data.build import build
    from gpt1_ds.data.python_docs import documents
    from gpt1_ds.data.tokenizers.train import Model, train

    if not (folder / "data" / "dataset.json").exists():
        (folder / "text").mkdir(parents=True, exist_ok=True)
        for number, document in zip(range(40), documents(), strict=False):
            (folder / "text" / f"{number:02d}.txt").write_text(document[:20000])
        kind: Model = "unigram" if sentinels else "bpe"
        size = 500 + sentinels
        train([folder / "text"], folder / "tokenizer", size, model=kind, masks=masks, sentinels=sentinels)
        build(
            [folder / "text"], folder / "tokenizer", folder / "data", workers=1, validation=0.1, split_sentences=masks
        )
    return folder / "data"
