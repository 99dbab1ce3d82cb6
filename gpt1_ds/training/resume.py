"""Which keys a run may change when it continues in its folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.config.sections import LENGTH_KEYS

MAY_CHANGE = (
    "run.name",
    "run.dir",
    "run.share",
    "parallel.",
    "train.device",
    "train.deterministic",
    "train.micro_batch",
    "train.recompute",
    "train.compile",
    "train.cuda_graphs",
    "train.deepspeed_patches",
    "train.steps",
    "train.tokens",
    "train.epochs",
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.profile",
    "checkpoint.",
    "guard.",
    "tracking.",
    "slurm.",
    "data.epochs_limit",
    "data.verify",
    "probes",
)


CONTEXT = "model.context"
FEW = 5  # keys that are named one by one


def changes(before: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Key -> (before, now) of everything that differs."""
    old, new = _flat(asdict(before)), _flat(asdict(now))
    return {key: (old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)}


def check(folder: str, changed: dict[str, tuple[Any, Any]], grows: bool = False) -> None:
    """Raise ConfigError naming every changed key that would make it another run; of many, how many they are. With
    `grows` its context may be longer than before.
    """
    wrong = forbidden(changed, grows)
    if len(wrong) > FEW:  # not the same run with a slip, but another one
        shown = ", ".join(list(wrong)[:FEW])
        raise ConfigError(
            f"{folder} belongs to another configuration: {len(wrong)} keys have other values ({shown}, ...); choose "
            "another run.name, or begin anew with checkpoint.resume=never"
        )
    ConfigError.raise_all(
        f"{folder} belongs to another configuration: {key} was {old!r} and is now {new!r}; set it back, choose another "
        "run.name, or begin anew with checkpoint.resume=never"
        for key, (old, new) in wrong.items()
    )


def length_note(changed: dict[str, tuple[Any, Any]]) -> str | None:
    """Returns what a run of another length has to know: its schedule is a function of the whole length, so a part that
    is a fraction of it moves, a warm-up that was over as well.
    """
    keys = (f"train.{key}" for key in LENGTH_KEYS)
    shown = [f"{key} {changed[key][0]} -> {changed[key][1]}" for key in keys if key in changed]
    return f"{', '.join(shown)}: rates are now those of a run that had this length from its start" if shown else None


def forbidden(changed: dict[str, tuple[Any, Any]], grows: bool = False) -> dict[str, tuple[Any, Any]]:
    """Returns those of the changed keys that would make it another run; with `grows` a longer context does not."""
    wrong = {key: pair for key, pair in changed.items() if not key.startswith(MAY_CHANGE)}
    if grows and CONTEXT in wrong and wrong[CONTEXT][1] > wrong[CONTEXT][0]:
        del wrong[CONTEXT]
    return wrong


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
