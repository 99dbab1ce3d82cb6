"""The datasets that a configuration names, opened and checked against one another and the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.loader import HeldOutData, TrainingData
from gpt1_ds.data.staging import staged
from gpt1_ds.data.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Data:
    """The datasets of a run, opened; `held_out` is None where no source has a validation split."""

    training: TrainingData
    held_out: HeldOutData | None
    tokenizer: Tokenizer
    tokenizer_folder: Path
    tokenizer_hash: str
    data_hash: str


def open_data(config: Config) -> Data:
    """Open the sources of `data.path`. Raises DataError or ConfigError when they do not fit together or the model."""
    datasets = [Dataset(staged(source.path)) for source in config.data.path]
    first = datasets[0]
    for other in datasets[1:]:
        if other.tokenizer_fingerprint != first.tokenizer_fingerprint:
            raise ConfigError(
                f"data.path: {other.folder} was built with another tokenizer than {first.folder}; build both with one"
            )
    tokenizer = load_tokenizer(first.tokenizer_folder)
    if config.model.vocab_size is not None and config.model.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size={config.model.vocab_size} is smaller than the tokenizer's {tokenizer.vocab_size} in "
            f"{first.folder}; leave model.vocab_size out"
        )
    training = TrainingData(
        [dataset.split("train") for dataset in datasets],
        [dataset.data_hash for dataset in datasets],
        [source.weight for source in config.data.path],
        config.model.context,
        config.run.seed,
        config.data.unique_tokens,
        config.data.offsets == "epoch",
    )
    held_out = None
    if "validation" in first.splits:
        held_out = HeldOutData(first.split("validation"), first.data_hash, config.model.context)
    data_hash = "+".join(dataset.data_hash for dataset in datasets)
    return Data(training, held_out, tokenizer, first.tokenizer_folder, first.tokenizer_fingerprint, data_hash)
