"""Publishes imported weights as an ordinary checkpoint, which every layout starts from. Parameters of a file in the
form of transformers become ours; their shapes are compared before anything is read.

The checkpoint holds masters but no moments, step 0 and no data hash, so `checkpoint.init_from` takes it and a resume
does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.architecture.layer import Parameter
from gpt1_ds.checkpoint import whole
from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import is_taken
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.config.objective import ObjectiveConfig
from gpt1_ds.config.sections import RunConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.head_import import Classifier
from gpt1_ds.model.names import ParameterInfo, initial_value
from gpt1_ds.model.sentence_vector import SentenceVector
from gpt1_ds.objectives.pretraining import pretraining_objective
from gpt1_ds.objectives.supervised import of_head

VOCABULARY_ROWS = ("tokens.weight", "output.weight", "masked.bias")
PADDING = (8, 16, 32, 64, 128)  # models are released with rows that no token has, up to a multiple of one of these


@dataclass(frozen=True)
class Imported:
    """A model that an importer has read."""

    origin: str  # "hf" or "openai", as in `--from`
    source: Path
    model: ModelConfig
    weights: dict[str, Tensor]  # by canonical name, fp32, whole
    remarks: tuple[str, ...] = ()  # what a person should know about this import, one line each
    head: HeadSpec | None = None  # besides the language model's
    classifier: Classifier | None = None  # what a fine-tuned model's head is for
    sentence: SentenceVector | None = None  # how sentence-transformers makes vectors with it
    own_tokenizer: bool = False  # whether the tokenizer was beside the weights


def free_place(out: Path) -> Path:
    """Returns `out` as an absolute path where a folder may be published. Raises CheckpointError when something is
    there, or when its name is that of a run's own checkpoint, which would be taken for one of another step.
    """
    out = out.resolve()
    if re.fullmatch(r"step-\d{8,}", out.name):
        raise CheckpointError(f"{out}: such names are for the checkpoints of runs; choose another --out")
    if is_taken(out):
        raise CheckpointError(f"{out}: is there already and not empty; choose another --out or remove it")
    return out


def publish(imported: Imported, tokenizer_folder: Path, out: Path, provenance: dict[str, str]) -> list[str]:
    """Writes the checkpoint `out` and returns remarks for people, one line each. Raises CheckpointError.

    The model is really run once: its loss on the probe row goes into the manifest, and weights that are not finite are
    refused.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    config = _config(imported, re.sub(r"[^A-Za-z0-9._-]", "-", out.name))
    config, weights, remarks = fit_vocabulary(config, imported, tokenizer)
    classifier = imported.classifier
    if classifier is not None:
        classifier.check_symbols(imported.source, tokenizer, imported.weights["tokens.weight"].shape[0])
    model = whole_model(config, lambda info: weights[info.name], imported.head)
    objective = pretraining_objective(config) if classifier is None else of_head(classifier.head)
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise CheckpointError(f"{imported.source}: some weights are not finite; this is not a trained model")
    facts: dict[str, Any] = {
        "step": 0,
        "tokens": 0,
        "updates": 0,
        "seed": config.run.seed,
        "hashes": {**provenance, "tokenizer": tokenizer.fingerprint},
        "imported": imported.origin,
    }
    if imported.head is not None:
        facts["head"] = asdict(imported.head)
    if classifier is not None:
        facts["task"] = classifier.task.values()
    whole.publish(out, model, objective, config, tokenizer_folder, facts, imported.sentence)
    return [*imported.remarks, *remarks]


def _config(imported: Imported, name: str) -> Config:
    """Returns the configuration that continues the pre-training of the model; of a fine-tuned one, its fine-tuning."""
    config = Config(run=RunConfig(name=name), model=imported.model)
    if imported.model.kind == "encoder_decoder":
        return replace(config, objective=ObjectiveConfig(kind="spans"))
    if imported.classifier is not None:
        return replace(config, task=imported.classifier.settings)
    if imported.model.mask == "causal":
        return config
    if imported.model.mask == "prefix":
        return replace(config, objective=ObjectiveConfig(kind="prefix"))
    pairs = imported.head is not None
    objective = ObjectiveConfig(kind="masked", next_sentence=pairs)
    return replace(config, objective=objective, data=replace(config.data, text="pairs" if pairs else "windows"))


def fit_vocabulary(
    config: Config, imported: Imported, tokenizer: Tokenizer
) -> tuple[Config, dict[str, Tensor], list[str]]:
    """Returns the model with one token row for every id of the tokenizer, and remarks on rows that were added or left
    out.

    Only control symbols may lack a row: theirs are initialised as in a new model. Raises CheckpointError for a
    tokenizer that cannot be the model's.
    """
    rows, ids = imported.weights["tokens.weight"].shape[0], tokenizer.vocab_size
    config = replace(config, model=replace(config.model, vocab_size=ids))
    if rows > ids:
        return config, *_without_padding(imported, rows, ids)
    if rows < ids:
        return config, *_with_symbols(config, imported, tokenizer, rows, ids)
    return config, imported.weights, []


def _without_padding(imported: Imported, rows: int, ids: int) -> tuple[dict[str, Tensor], list[str]]:
    """Returns weights without the rows that belong to no token id, and a remark on them."""
    multiple = next((multiple for multiple in reversed(PADDING) if rows == -(-ids // multiple) * multiple), None)
    if multiple is None and not imported.own_tokenizer:
        raise CheckpointError(
            f"{imported.source}: has rows for {rows} token ids, the tokenizer knows {ids}; pass --tokenizer with the "
            "model's own, or put its files into the folder: rows that it makes no id for are then left out"
        )
    weights = dict(imported.weights)
    for name in weights.keys() & set(VOCABULARY_ROWS):
        weights[name] = weights[name][:ids]
    why = f"they fill up a multiple of {multiple}" if multiple else "its own tokenizer makes none of them"
    return weights, [f"rows {ids} to {rows - 1} belong to no token id, {why}: left out"]


def _with_symbols(
    config: Config, imported: Imported, tokenizer: Tokenizer, rows: int, ids: int
) -> tuple[dict[str, Tensor], list[str]]:
    """Returns weights with new rows for control symbols, the last ids of the tokenizer, and remarks on them."""
    roles = {number: role for role, number in tokenizer.special_ids.present().items() if role != "unknown"}
    symbols = {**roles, tokenizer.eod_id: "end of document"}
    if not symbols.keys() >= set(range(rows, ids)):
        raise CheckpointError(
            f"{imported.source}: has rows for {rows} token ids, the tokenizer gives text ids up to "
            f"{max(set(range(ids)) - symbols.keys())}; pass --tokenizer with the model's own, or give the model rows "
            "for the tokens that were added (resize_token_embeddings) first"
        )
    weights = dict(imported.weights)
    for name, parameter in architecture(config.model, ids, imported.head).parameters.items():
        if name in VOCABULARY_ROWS:
            initial = initial_value(ParameterInfo.whole(parameter), config.run.seed)
            weights[name] = torch.cat([weights[name], initial[rows:]])
    added = ", ".join(f"{number} ({symbols[number]})" for number in range(rows, ids))
    remarks = [f"token ids {added} had no rows; theirs begin untrained, as in a new model"]
    first = min(symbols)
    if first < rows:
        taken = ", ".join(f"{number} ({symbols[number]})" for number in range(first, rows))
        remarks.append(f"token ids {taken} are taken for the symbols of the tokenizer, as the release orders them")
    return weights, remarks


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Parts:
    """Which of our parameters are in a file, and which are not."""

    head: HeadSpec | None
    shapes: dict[str, tuple[int, ...]]  # of those in the file, by canonical name
    missing: tuple[Parameter, ...]
    remarks: tuple[str, ...]

    def initial_values(self) -> dict[str, Tensor]:
        """Returns the values with which the missing parameters begin."""
        seed = RunConfig().seed
        return {parameter.name: initial_value(ParameterInfo.whole(parameter), seed) for parameter in self.missing}


def present_parts(family: Family, model: ModelConfig, theirs: Collection[str], task_head: HeadSpec | None) -> Parts:
    """Returns which of our parameters the short names `theirs` are. A fine-tuned model has its task's head, without the
    bias of GPT's, which no class of transformers has. Of others a head may be missing as a whole; with a pooler comes
    the head for pairs of texts, which reads it.
    """
    assert model.vocab_size is not None, "imports know their vocabulary size"
    if task_head is not None:
        ours = architecture(model, model.vocab_size, task_head).parameters
        shapes = {name: parameter.shape for name, parameter in ours.items() if family.has(name)}
        return Parts(task_head, shapes, tuple(ours[name] for name in ours if name not in shapes), ())
    head = NEXT_SENTENCE if family.pairs and any(name.startswith("pooler.") for name in theirs) else None
    ours = architecture(model, model.vocab_size, head).parameters
    remarks, missing = [], []
    for prefix in family.optional:
        names = [name for name in ours if name.startswith(prefix)]
        if names and not any(short in theirs for name in names for short in family.their_names(name)):
            missing += names
            remarks.append(f"has no {', '.join(names)}: they begin untrained, as in a new model")
    if family.pairs and head is None:
        remarks.append("has no pooler: fine-tuning begins with a new one")
    shapes = {name: parameter.shape for name, parameter in ours.items() if name not in missing}
    return Parts(head, shapes, tuple(ours[name] for name in missing), tuple(remarks))


def check_shapes(family: Family, theirs: Shapes, ours: Shapes, facts: Facts, origin: str) -> None:
    """Raises CheckpointError, naming what is missing, unknown or of another shape than our parameters. `theirs` are the
    shapes of the file under transformers' short names.
    """
    wanted = family.their_shapes(ours, facts)
    problems = [f"{origin}: has no {name}" for name in sorted(wanted.keys() - theirs.keys())]
    unknown = sorted(theirs.keys() - wanted.keys())
    problems += [f"{origin}: {name!r:.80} is no part of {family.title}" for name in unknown]
    problems += [
        f"{origin}: {name} is {list(theirs[name])}, the configuration says {list(shape)}"
        for name, shape in wanted.items()
        if theirs.get(name, shape) != shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more like it)" if len(problems) > 1 else ""
        raise CheckpointError(problems[0] + more)


def our_weights(family: Family, theirs: Mapping[str, Tensor], ours: Shapes, facts: Facts) -> dict[str, Tensor]:
    """Returns values by canonical name, from tensors under transformers' short names whose shapes were checked."""
    return {name: family.from_theirs(name, theirs, facts) for name in ours}
