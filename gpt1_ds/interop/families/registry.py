"""The families, and which one a `config.json` or a model of ours belongs to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpt1_ds.checkpoint.external import read_object
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families import bert, gpt2, openai_gpt, roberta, t5
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.families.settings import Settings

FAMILIES = (openai_gpt.FAMILY, gpt2.FAMILY, roberta.FAMILY, bert.FAMILY, *t5.FAMILIES)


def family_of_model(source: Path, model: ModelConfig) -> Family:
    """Returns the one that expresses the model of the checkpoint `source`. Raises CheckpointError, naming what the
    nearest one cannot express.
    """
    if model.kind == "lstm":
        raise CheckpointError(
            f"{source}: model.kind={model.kind}: transformers has no such model; `gpt1-ds predict` runs it"
        )
    problems, nearest = min(
        ((list(family.problems(model)), family) for family in FAMILIES), key=lambda found: len(found[0])
    )
    for problem in problems:
        raise CheckpointError(f"{source}: {problem}")
    return nearest


def read_config(
    path: Path, differ: Callable[[str, str], bool] = lambda _one, _other: False
) -> tuple[Family, ModelConfig, Facts]:
    """Returns the family and the shape of the model that a `config.json` describes; `differ` says of two names of
    tensors whether its files have both, and not alike. Raises CheckpointError for another architecture or absurd
    numbers.
    """
    values = read_object(path)
    found = values.get("model_type")
    known = [family for family in FAMILIES if family.model_type == found]
    if not known:
        types = dict.fromkeys(family.model_type for family in FAMILIES)
        raise CheckpointError(f"{path}: model_type {found!r:.60} is not known here; {' or '.join(types)} is")
    settings = Settings(path, values, known[0].title, differ)
    family = next(family for family in known if family.is_variant(settings))
    model = family.read_config(settings)
    for problem in model.problems():
        raise CheckpointError(f"{path}: {problem}")
    return family, model, Facts(model.heads, family.first_position(settings))
