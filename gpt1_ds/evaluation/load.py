"""A checkpoint as a model in this process, whatever layout wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gpt1_ds.checkpoint import manifest, whole
from gpt1_ds.checkpoint.folders import find_checkpoint, while_it_is_there
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.verify import check_memory, verify_files
from gpt1_ds.checkpoint.whole import for_one_rank, head_of, task_of, whole_model
from gpt1_ds.common.errors import ArgumentError, CheckpointError, one_line
from gpt1_ds.config import Config, load_carried
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.sentence_vector import SentenceVector
from gpt1_ds.tasks.base import Task


@dataclass(frozen=True)
class Loaded:
    """A model on the CPU or GPU in evaluation mode, with what it was trained with."""

    model: DenseModel
    tokenizer: Tokenizer
    config: Config
    step: int
    folder: Path
    task: Task | None = None  # what it was fine-tuned on
    sentence: SentenceVector | None = None  # how sentence-transformers makes vectors with it


def check_device(device: str | torch.device) -> None:
    """Raises ArgumentError for a device on which no tensor can be: torch's own errors are of several types."""
    try:
        torch.empty(1, device=device)
    except Exception as error:  # AssertionError of a build without CUDA, AcceleratorError of a missing GPU, ...
        raise ArgumentError(f"device={device!r:.60} cannot be used: {one_line(error, 200)}") from None


def load_checkpoint(path: Path | str, device: str | None = None) -> Loaded:
    """Returns the model of CKPT (a checkpoint folder; or of a run folder, its best or newest), verified; one that was
    fine-tuned comes with its head and its task. Raises CheckpointError.
    """
    folder = find_checkpoint(Path(path))
    with while_it_is_there(folder):
        return _load(folder, device)


def _load(folder: Path, device: str | None) -> Loaded:
    facts = manifest.read(folder)
    verify_files(folder, facts)
    config = checkpoint_config(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    reader = StateReader(folder)
    head = head_of(folder, facts)
    check_memory(folder, facts, config.model, head)
    if (config.model.vocab_size or 0) < tokenizer.vocab_size:
        raise CheckpointError(f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model fewer")
    model = whole_model(config, lambda info: reader.whole("master", info), head)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    task, sentence = task_of(folder, facts), whole.read(folder, facts, config.model.width)
    return Loaded(model.to(device), tokenizer, config, int(facts["step"]), folder, task, sentence)


def checkpoint_config(folder: Path) -> Config:
    """Returns the configuration a checkpoint was written under, for one rank."""
    return for_one_rank(load_carried(folder / "config.yaml"))
