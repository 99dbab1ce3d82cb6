"""What a configuration may say that came with a run or a checkpoint: the model, the data and the training.

Where a run is written, what a job runs on its nodes, and to whom it reports are its user's decisions: a stranger's
checkpoint must not bring shell lines (`slurm.setup`), an image or a W&B project along.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config.values import texts_in

SECTIONS = ("model", "objective", "data", "train", "optimizer", "schedule", "guard", "task", "probes")
# Of SECTIONS: what depends on whose machine it is. A task file of lm-evaluation-harness may name code of its user's.
NOT_CARRIED = {"train": ("device", "deepspeed_patches", "evaluations")}
KEYS = {  # of the other sections
    "run": ("name", "seed"),
    "parallel": ("tensor", "pipeline", "zero", "sequence", "assembly"),
    "checkpoint": ("every", "keep", "keep_every", "background"),
}


def lies_in_a_run(path: Path) -> bool:
    """Returns whether a file is the configuration that a run folder or a checkpoint keeps of itself."""
    folder = path.resolve().parent
    inside = (folder / "manifest.json").exists() or (folder / "checkpoints").is_dir()
    return path.resolve().name == "config.yaml" and inside


def carried(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns (what may be read of `values`, the other keys that are not as in `defaults`)."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for section, keys in values.items():
        if section in SECTIONS:
            own = NOT_CARRIED.get(section, ()) if isinstance(keys, Mapping) else ()
            usual = defaults.get(section, {})
            kept[section] = {key: keys[key] for key in keys if key not in own} if own else keys
            left_out += [f"{section}.{key}" for key in own if key in keys and keys[key] != usual.get(key)]
        elif not isinstance(keys, Mapping):
            left_out.append(str(section))
        else:
            allowed, usual = KEYS.get(section, ()), defaults.get(section, {})
            kept |= {section: {key: keys[key] for key in keys if key in allowed}} if allowed else {}
            left_out += [f"{section}.{key}" for key in keys if key not in allowed and keys[key] != usual.get(key)]
    return kept, left_out


def refuse_interpolations(values: Mapping[str, Any], origin: str) -> None:
    """A resolved configuration has none. Raises ConfigError."""
    for text in texts_in(values):
        raise ConfigError(f"{origin}: {text!r:.80}: no ${{...}} is read from a run or a checkpoint; remove it")
