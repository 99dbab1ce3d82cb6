"""Weights from elsewhere as an ordinary checkpoint, which every layout starts from.

It holds masters but no moments, step 0 and no data hash, so `checkpoint.init_from` takes it and a resume does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.checkpoint.shard import write_shard
from gpt1_ds.checkpoint.store import Contents, complete
from gpt1_ds.checkpoint.whole import probe_loss, whole_model
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import published_folder
from gpt1_ds.config import Config, ModelConfig, to_carried_yaml
from gpt1_ds.config.run import RunConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.model import names
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.init import initial_value
from gpt1_ds.model.names import ParameterInfo

TENSORS = "state/rank-00000.safetensors"


@dataclass(frozen=True)
class Foreign:
    """What an importer found: the model's shape and its weights under canonical names, fp32, at their full shape."""

    origin: str  # "hf" or "openai", as in `--from`
    source: Path
    model: ModelConfig
    weights: dict[str, Tensor]
    remarks: tuple[str, ...] = ()  # what a person should know about this import, one line each


def free_place(out: Path) -> Path:
    """`out` as an absolute path where a folder may be published. Raises CheckpointError when something is there, or
    when its name is that of a run's own checkpoint, which would be taken for one of another step.
    """
    out = out.resolve()
    if re.fullmatch(r"step-\d{8,}", out.name):
        raise CheckpointError(f"{out}: such names are for the checkpoints of runs; choose another --out")
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    if out.exists():
        raise CheckpointError(f"{out}: is there already and not empty; choose another --out or remove it")
    return out


def publish(foreign: Foreign, tokenizer_folder: Path, out: Path, provenance: dict[str, str]) -> list[str]:
    """Write the checkpoint `out`; what to tell about it, one line each. Raises CheckpointError.

    The model is really run once: its loss on the probe row goes into the manifest, and weights that are not finite are
    refused.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    config = Config(run=RunConfig(name=re.sub(r"[^A-Za-z0-9._-]", "-", out.name)), model=foreign.model)
    config, weights, remarks = fit_vocabulary(config, foreign, tokenizer)
    model = whole_model(config, lambda info: weights[info.name])
    probe = probe_loss(model, config)
    if not all(bool(torch.isfinite(value).all()) for value in weights.values()):
        raise CheckpointError(f"{foreign.source}: some weights are not finite; this is not a trained model")
    facts: dict[str, Any] = {
        "step": 0,
        "tokens": 0,
        "updates": 0,
        "layout": {"tensor": 1, "pipeline": 1, "data": 1, "zero": 0, "pipelined": False},
        "precision": "fp32",
        "seed": config.run.seed,
        "hashes": {**provenance, "data": "", "tokenizer": tokenizer.fingerprint},
        "loss_scaler": {},
        "probe": {"loss": probe, "precision": "fp32"},
        "imported": foreign.origin,
    }
    with published_folder(out) as folder:
        _write(folder, _fragments(model, weights), Contents(0, facts, to_carried_yaml(config), tokenizer_folder))
    return [*foreign.remarks, *remarks]


def fit_vocabulary(
    config: Config, foreign: Foreign, tokenizer: Tokenizer
) -> tuple[Config, dict[str, Tensor], list[str]]:
    """The model with one token row for every id of the tokenizer, and remarks on rows that were added.

    Only control symbols may lack a row: theirs are initialised as in a new model. Raises CheckpointError for a
    tokenizer that cannot be the model's.
    """
    rows, ids = foreign.weights["tokens.weight"].shape[0], tokenizer.vocab_size
    symbols = {
        tokenizer.start_id: "start",
        tokenizer.delimiter_id: "delimiter",
        tokenizer.extract_id: "extract",
        tokenizer.eod_id: "end of document",
    }
    if rows > ids:
        raise CheckpointError(
            f"{foreign.source}: has rows for {rows} token ids, the tokenizer knows {ids}; pass --tokenizer with the "
            "model's own, and drop ids that were added to the model (resize_token_embeddings) first"
        )
    missing = range(rows, ids)
    if not symbols.keys() >= set(missing):
        raise CheckpointError(
            f"{foreign.source}: has rows for {rows} token ids, the tokenizer gives text ids up to "
            f"{max(set(range(ids)) - symbols.keys())}; pass --tokenizer with the model's own"
        )
    config = replace(config, model=replace(config.model, vocab_size=ids))
    if not missing:
        return config, foreign.weights, []
    shape = (ids, config.model.width)
    fresh = initial_value(ParameterInfo("tokens.weight", shape), config.run.seed)[rows:]
    weights = {**foreign.weights, "tokens.weight": torch.cat([foreign.weights["tokens.weight"], fresh])}
    added = ", ".join(f"{number} ({symbols[number]})" for number in missing)
    remarks = [f"token ids {added} had no rows; theirs begin untrained, as in a new model"]
    first = min(symbols)
    if first < rows:
        taken = ", ".join(f"{number} ({symbols[number]})" for number in range(first, rows))
        remarks.append(f"token ids {taken} are taken for the symbols of the tokenizer, as the release orders them")
    return config, weights, remarks


def _fragments(model: DenseModel, weights: dict[str, Tensor]) -> list[Fragment]:
    """Whole parameters, labelled as a single rank labels them."""
    infos = [names.info(parameter) for parameter in model.parameters()]
    return [Fragment(info, 0, weights[info.name].reshape(-1)) for info in infos]


def _write(folder: Path, fragments: list[Fragment], contents: Contents) -> None:
    (folder / "state").mkdir()
    complete(folder, contents, [write_shard(folder, TENSORS, fragments)])
