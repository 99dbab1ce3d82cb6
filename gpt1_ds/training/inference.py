"""A checkpoint as a model in this process, whatever layout wrote it; and text from it.

Shapes: S positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import find
from gpt1_ds.checkpoint.state import StateReader
from gpt1_ds.checkpoint.whole import head_of, whole_model
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import Config, load_carried
from gpt1_ds.config.parallel import ParallelConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.model.build import DenseModel
from gpt1_ds.tasks.base import Task
from gpt1_ds.training.sampling import Sampling


@dataclass(frozen=True)
class Loaded:
    """A model on the CPU or GPU in evaluation mode, with what it was trained with."""

    model: DenseModel
    tokenizer: Tokenizer
    config: Config
    step: int
    folder: Path
    task: Task | None = None  # what it was fine-tuned on


def load_checkpoint(path: Path | str, device: str | None = None) -> Loaded:
    """The model of CKPT (a checkpoint folder; or of a run folder, its best or newest), verified; one that was
    fine-tuned comes with its head and its task. Raises CheckpointError.
    """
    folder = find(Path(path))
    facts = manifest.read(folder)
    manifest.verify_files(folder, facts)
    config = checkpoint_config(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    reader = StateReader(folder)
    head = head_of(folder, facts)
    manifest.check_size(folder, facts, config.model, head)
    if (config.model.vocab_size or 0) < tokenizer.vocab_size:
        raise CheckpointError(f"{folder}: its tokenizer has {tokenizer.vocab_size} ids, its model fewer")
    model = whole_model(config, lambda info: reader.whole("master", info), head)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Loaded(model.to(device), tokenizer, config, int(facts["step"]), folder, task_of(folder, facts))


def task_of(folder: Path, facts: dict[str, Any]) -> Task | None:
    """The task that a checkpoint was fine-tuned on, from its manifest; None for a language model. Raises
    CheckpointError.
    """
    try:
        return Task.of(facts["task"]) if "task" in facts else None
    except (TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{folder}: damaged: its manifest describes no task that this program knows") from None


def load(path: Path | str) -> tuple[DenseModel, Tokenizer]:
    """(model, tokenizer) of a checkpoint; `model.logits(tokens_SB, keys_B)` gives next-token logits [S, B, V], and of a
    fine-tuned one `model.scores(tokens_SB, extract_B)` what its head says of each example [E, K].
    """
    loaded = load_checkpoint(path)
    return loaded.model, loaded.tokenizer


def checkpoint_config(folder: Path) -> Config:
    """The configuration a checkpoint was written under, for one rank."""
    config = load_carried(folder / "config.yaml")
    return replace(config, parallel=ParallelConfig(), train=replace(config.train, recompute="none"))


@torch.no_grad()
def sample(loaded: Loaded, prompt: str, sampling: Sampling) -> str:
    """A continuation of `prompt` (not repeated), ended early by the end of a document."""
    tokenizer, context = loaded.tokenizer, loaded.config.model.context
    device = next(loaded.model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    forbidden = [tokenizer.unknown_id, tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id]
    sequence = [int(token) for token in tokenizer.encode(prompt)] or [tokenizer.eod_id]
    begin, pending, seen, caches = len(sequence), sequence[-context:], 0, loaded.model.caches()
    while len(sequence) < begin + sampling.tokens:
        if seen + len(pending) > context:  # learned positions end here: continue from the later half
            pending, seen, caches = sequence[-max(1, context // 2) :], 0, loaded.model.caches()
        tokens_SB = torch.tensor(pending, device=device).unsqueeze(1)
        logits_V = loaded.model.logits(tokens_SB, torch.zeros(1, dtype=torch.int64, device=device), caches)[-1, 0]
        seen += len(pending)
        if not bool(logits_V[: tokenizer.vocab_size].isfinite().all()):  # pad rows are not
            raise CheckpointError(f"{loaded.folder}: its weights give no finite numbers: this is not a trained model")
        logits_V[forbidden] = -torch.inf
        logits_V[tokenizer.vocab_size :] = -torch.inf
        token = choose(logits_V.float().cpu(), sampling, generator)
        if token == tokenizer.eod_id:
            break
        sequence.append(token)
        pending = [token]
    return tokenizer.decode(sequence[begin:])


def choose(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token id: the likeliest at temperature 0, else drawn from the top_k and top_p that are left."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    logits_V = logits_V / sampling.temperature
    if sampling.top_k:
        logits_V = logits_V.masked_fill(
            logits_V < logits_V.topk(min(sampling.top_k, len(logits_V))).values[-1], -torch.inf
        )
    if sampling.top_p < 1:
        ordered, order = logits_V.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # mass of likelier tokens
        logits_V = logits_V.index_fill(0, order[before >= sampling.top_p], -torch.inf)
    return int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))
