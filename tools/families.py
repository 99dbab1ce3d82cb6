"""What makes a tool's small model one of a family: settings, and text that they can read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.config import Config, load

TEXT = Path(__file__).with_name("python_docs.jsonl")  # 40 topics of CPython 3.11.7's documentation, under its licence
SENTINELS = 20
ENCODER = [
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
    "bert": [*ENCODER, *_PAIRS, "model.norm_eps=1e-12"],
    "t5": [*_T5, *_TWO_STACKS, "objective.kind=spans"],
    "t5_shared": [*_T5, *_TWO_STACKS, "objective.kind=spans", "model.shared=true"],
    "t5_relu": [*_T5, *_TWO_STACKS, "objective.kind=spans", "model.activation=relu"],  # 1.0
    "prefix": [*_T5, "model.mask=prefix", "objective.kind=prefix"],
    "roberta": [*ENCODER, "objective.whole_words=true", "data.text=full_sentences"],
}
TASKS: dict[str, list[str]] = {  # what is fine-tuned, in the place of a family that is pre-trained
    "sentences": [*ENCODER, "task.name=table", "task.kind=sentences", "task.columns={text: a, text2: b, label: x}"],
}


def add_family(parser: argparse.ArgumentParser, tasks: bool = False) -> None:
    choices = [*FAMILIES, *(TASKS if tasks else ())]
    parser.add_argument("--family", choices=choices, default="gpt1", help="of the model (default: gpt1)")


def family_data(folder: Path, family: str) -> tuple[Path, list[str]]:
    """A small dataset in `folder` that the family's models can read, and the family's settings."""
    settings = FAMILIES.get(family) or TASKS.get(family) or []
    data = make_data(
        folder, "objective.kind=masked" in settings, SENTINELS if "objective.kind=spans" in settings else 0
    )
    return data, [*settings, *(_make_task(folder) if family in TASKS else ())]


def _make_task(folder: Path) -> list[str]:
    """Pairs of lines of the text: the same line, two of one document, or of two documents; the words that name them."""
    (folder / "task" / "sts").mkdir(parents=True, exist_ok=True)
    lines = [[line for line in file.read_text().splitlines() if line] for file in sorted((folder / "text").iterdir())]
    texts = [text for text in lines if len(text) > 20]
    rows, scored = [], ["sentence1\tsentence2\tscore"]
    for number in range(12 * len(texts)):
        text, line, kind = texts[number % len(texts)], number // len(texts), number % 3
        other = (text[line], text[line + 1], texts[(number + 1) % len(texts)][line])[kind]
        rows.append({"a": text[line], "b": other, "x": ("entailment", "neutral", "contradiction")[kind]})
        scored.append(f"line {number} .\tline {number + kind} .\t{5 - 2 * kind}")
    (folder / "task" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task" / "sts" / "dev.tsv").write_text("\n".join(scored[:40]) + "\n")
    return [f"task.path={folder}/task", f"task.sts={folder}/task/sts", f"task.tokenizer={folder}/tokenizer"]


def configured(overrides: Sequence[str]) -> Config:
    """As `pretrain` or, for a task, `finetune` has it."""
    from gpt1_ds.training.configuration import finetune_config

    is_task = any(override.startswith("task.") for override in overrides)
    return finetune_config([], overrides) if is_task else load([], overrides)


def open_workload(config: Config, groups: Any) -> Any:
    """Runs on every rank: what a run of this configuration trains on (training/workload.py), without a run folder."""
    from gpt1_ds.tasks.reading import read_task
    from gpt1_ds.training.finetuning import Finetuning
    from gpt1_ds.training.pretraining import open_pretraining

    if config.task is None:
        return open_pretraining(config, groups, lambda: None)
    assert config.task.tokenizer is not None, "_make_task names it"
    return Finetuning(config, read_task(config.task), Path(config.task.tokenizer), groups)


def make_data(folder: Path, masks: bool = False, sentinels: int = 0) -> Path:
    """A small dataset, the same for every Python; with `masks` it has what masked models need: the tokenizer's symbols,
    and sentence borders; with `sentinels` those that stand for spans.
    """
    from gpt1_ds.data.build import build
    from gpt1_ds.data.tokenizers.train import Model, train_tokenizer

    if not (folder / "data" / "dataset.json").exists():
        (folder / "text").mkdir(parents=True, exist_ok=True)
        for number, line in enumerate(TEXT.read_text().splitlines()):
            (folder / "text" / f"{number:02d}.txt").write_text(json.loads(line)["text"])
        kind: Model = "unigram" if sentinels else "bpe"
        size = 500 + sentinels
        train_tokenizer([folder / "text"], folder / "tokenizer", size, model=kind, masks=masks, sentinels=sentinels)
        build(
            [folder / "text"], folder / "tokenizer", folder / "data", workers=1, validation=0.1, split_sentences=masks
        )
    return folder / "data"
