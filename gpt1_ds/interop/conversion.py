"""Parameters of a file in transformers' form as ours; shapes are compared before anything is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import NEXT_SENTENCE, HeadSpec
from gpt1_ds.architecture.layer import Parameter
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.config.sections import RunConfig
from gpt1_ds.interop.families.family import Facts, Family
from gpt1_ds.model.names import ParameterInfo, initial_value

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Parts:
    """Which parameters of ours a file has (`shapes`), and which an import begins anew (`fresh`)."""

    head: HeadSpec | None
    shapes: dict[str, tuple[int, ...]]
    fresh: tuple[Parameter, ...]
    remarks: tuple[str, ...]

    def drawn(self) -> dict[str, Tensor]:
        return {one.name: initial_value(ParameterInfo.whole(one), RunConfig().seed) for one in self.fresh}


def present_parts(
    family: Family, model: ModelConfig, theirs: Collection[str], task_head: HeadSpec | None = None
) -> Parts:
    """What of the model the short names `theirs` are. A fine-tuned model has its task's head, and of that all but what
    no class has: the bias of GPT's. Of others a head may be missing as a whole; with a pooler comes the head for pairs
    of texts, which reads it.
    """
    assert model.vocab_size is not None, "imports know their vocabulary size"
    if task_head is not None:
        known = architecture(model, model.vocab_size, task_head).parameters
        shapes = {name: one.shape for name, one in known.items() if family.has(name)}
        return Parts(task_head, shapes, tuple(one for name, one in known.items() if name not in shapes), ())
    head = NEXT_SENTENCE if family.pairs and any(name.startswith("pooler.") for name in theirs) else None
    known = architecture(model, model.vocab_size, head).parameters
    remarks, missing = [], []
    for beginning in family.fresh:
        names = [name for name in known if name.startswith(beginning)]
        if names and not any(short in theirs for name in names for short in family.their_names(name)):
            missing += names
            remarks.append(f"has no {', '.join(names)}: they begin untrained, as in a new model")
    if family.pairs and head is None:
        remarks.append("has no pooler: fine-tuning begins with a new one")
    shapes = {name: one.shape for name, one in known.items() if name not in missing}
    return Parts(head, shapes, tuple(known[name] for name in missing), tuple(remarks))


def check_shapes(family: Family, theirs: Shapes, ours: Shapes, facts: Facts, origin: str) -> None:
    """Hold the shapes under transformers' short names against those of our parameters, before anything is read.

    Raises CheckpointError, naming what is missing, unknown or of another shape.
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
    """Canonical name -> value, from tensors under transformers' short names whose shapes were checked."""
    return {name: family.from_theirs(name, theirs, facts) for name in ours}
