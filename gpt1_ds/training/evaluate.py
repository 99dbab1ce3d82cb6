"""`evaluate`: the held-out loss of a checkpoint, over all of a dataset's validation split, on any layout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError, DataError
from gpt1_ds.common.files import write_json
from gpt1_ds.config import Config
from gpt1_ds.data.sources import open_data
from gpt1_ds.training.build import batch_shape, build_engine, with_vocabulary
from gpt1_ds.training.held_out import held_out_loss
from gpt1_ds.training.session import joined, run_folder

HELD_OUT = "held-out"


def evaluate(config: Config, checkpoint: Path, out: Path | None) -> int:
    """Score `checkpoint` on this rank's share; rank 0 prints the result and merges it into `out` (eval.json)."""
    with joined(config) as grid:
        data = grid.agree(lambda: open_data(config))
        if data.held_out is None:
            raise DataError(f"{config.data.path[0].path}: has no validation split; build it with --validation above 0")
        config = with_vocabulary(config, data.tokenizer.vocab_size)
        manifest.check_size(checkpoint, grid.agree(lambda: manifest.read(checkpoint)), config.model)
        engine = build_engine(config, data.tokenizer.vocab_size, grid, initialise=False)
        store = Store(run_folder(config), engine, config)
        problem = store.verify(checkpoint)
        if problem is not None:
            raise CheckpointError(problem)
        facts = store.load(checkpoint, weights_only=True)
        if facts["hashes"]["tokenizer"] != data.tokenizer_hash:
            raise DataError(
                f"{config.data.path[0].path}: was built with another tokenizer than {checkpoint} was trained with"
            )
        step = int(facts["step"])
        record = held_out_loss(engine, data, batch_shape(config, grid), step, int(facts["tokens"]), limit=0)
        if grid.rank == 0:
            log.say(
                f"{checkpoint}: held-out loss {record.loss:.4f} nats per token, perplexity {record.perplexity:.2f}, "
                f"{record.bits_per_byte:.4f} bits per byte"
            )
            metrics = {key: asdict(record)[key] for key in ("loss", "perplexity", "bits_per_byte")}
            entry = {"task": HELD_OUT, "split": "validation", "step": step, "metrics": metrics}
            if out is not None:
                merge(out, entry)
    return 0


def merge(path: Path, entry: dict[str, object]) -> None:
    """Put one result into an eval.json list, in place of an older one for the same task, split and step."""
    entries = json.loads(path.read_text()) if path.exists() else []
    same = [(e["task"], e["split"], e["step"]) for e in entries]
    key = (entry["task"], entry["split"], entry["step"])
    entries = [e for e, k in zip(entries, same, strict=True) if k != key]
    write_json(path, [*entries, entry])
