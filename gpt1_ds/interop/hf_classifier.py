"""What the head of a fine-tuned model of transformers is for: the way back of interop/hf_task.py.

    ...ForSequenceClassification   a class by `id2label`, or with one output a score
    BertForMultipleChoice          one of several choices

A folder does not say whether the head reads one text or two, or which task it is: `checkpoint import --task` does, by
`single` or `pair`, or by the task's name in the registry, whose order of classes the rows of the head then get.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec, head_kind
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST, TABLE, ColumnsConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.interop.families.family import Family, Settings
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import ROLES, fitted
from gpt1_ds.tasks.kinds import Classification, Regression
from gpt1_ds.tasks.reading import task_of_spec
from gpt1_ds.tasks.registry import SPECS, Spec, find_spec

COLUMNS = {
    "single": ColumnsConfig(text="text", label="label"),
    "pair": ColumnsConfig(text="text", text2="text2", label="label"),
}
NONE = "none"  # the head is left out
TASKS = (*COLUMNS, NONE, *(name for name in SPECS if name != TABLE))  # what --task may say
UNNAMED = "LABEL_"  # with which transformers begins the names of classes that have none


@dataclass(frozen=True)
class Classifier:
    task: Task
    settings: TaskConfig
    head: HeadSpec
    rows: tuple[int, ...] | None = None  # of their head, in the order of the task's classes; None: as they are
    remarks: tuple[str, ...] = ()

    def ordered(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All weights, those of the head in the order of the task's classes."""
        if self.rows is None:
            return dict(weights)
        rows = list(self.rows)
        return {name: value[rows] if name.startswith("head.") else value for name, value in weights.items()}

    def check_symbols(self, source: Path, tokenizer: Tokenizer, token_rows: int) -> None:
        """Raise CheckpointError, or ConfigError for the tokenizer, unless the model knows the symbols around texts."""
        first, between, last = ROLES[self.task.symbols]
        for role in (first, *between, last):
            if tokenizer.special_ids.require(role, f"task.name={self.task.name}") >= token_rows:
                raise CheckpointError(
                    f"{source}: has no row for the symbol {role}: it was fine-tuned on texts without it; fine-tune its "
                    "language model here instead"
                )


def read_classifier(
    settings: Settings,
    family: Family,
    model: ModelConfig,
    outputs: int | None,
    name: str | None,
    limit: int | None,
) -> Classifier | None:
    """The task of a head with so many `outputs` (None: the file has no head) that `name`, what --task says, stands for;
    `limit` is in tokens of a sequence. Raises CheckpointError.
    """
    source = settings.path.parent
    _check_class(settings, family)
    if outputs is None:
        if name is not None:
            raise CheckpointError(f"{source}: has no head of a fine-tuned model; leave --task {name} out")
        return None
    choice = _is_choice(settings, family)
    if settings.values.get("problem_type") == "multi_label_classification":
        raise CheckpointError(f"{settings.path}: problem_type multi_label_classification: a text has one class here")
    if name is None:
        raise CheckpointError(
            f"{source}: is a fine-tuned model; say what it reads: --task single (one text), pair (two), or the name of "
            f"its task: {', '.join(TASKS[len(COLUMNS) + 1 :])}; --task none leaves its head out"
        )
    names: tuple[str, ...] = () if outputs == 1 else _names(settings, outputs)
    config = _config(name, names, _dropout(settings, family, model), limit)
    spec = find_spec(config)
    order = _order(settings, name, spec, names) if issubclass(spec.task, Classification) else (spec.labels,)
    task = fitted(task_of_spec(spec, config, order[0]), config, model)
    if (task.layout == "choice", task.outputs) != (choice, outputs):
        has = "choices" if choice else f"{outputs} outputs" if outputs > 1 else "a score"
        raise CheckpointError(f"{source}: its head is for {has}, --task {name} is a {task.kind}; name another task")
    dropout = config.head_dropout
    head = HeadSpec(outputs, task.sequences, choice, dropout, config.lm_coefficient, head_kind(model))
    return Classifier(task, config, head, *order[1:])


def _check_class(settings: Settings, family: Family) -> None:
    """Raises CheckpointError for a class with a head of another kind than those that are read here."""
    given = settings.values.get("architectures")
    name = given[0] if isinstance(given, list) and given and isinstance(given[0], str) else ""
    heads = (f"{family.stem}ForSequenceClassification", f"{family.stem}ForNextSentencePrediction")
    known = (family.language_model, family.pairs, family.choices, *heads)
    if not name.startswith(f"{family.stem}For") or name in known:
        return
    way = f"--task {NONE} imports its weights without the head" if family.prefix else "name the folder of another class"
    raise CheckpointError(f"{settings.path}: architectures {name:.80}: its head has no counterpart here; {way}")


def left_out(names: Collection[str], family: Family, source: Path) -> list[str]:
    """Which of the `names` of tensors `--task none` leaves out: all that are of no base model and no language model.
    Raises CheckpointError where there is none.
    """
    known = tuple(beginning for beginning in ("cls.", "lm_head.") if beginning in family.outside)
    found = sorted(name for name in names if not name.startswith((family.prefix, *known))) if family.prefix else []
    if not found or not any(name.startswith(family.prefix) for name in names):
        raise CheckpointError(f"{source}: has no head of a fine-tuned model; leave --task {NONE} out")
    return found


def _is_choice(settings: Settings, family: Family) -> bool:
    """Raises CheckpointError for a class with another head than those that are read here."""
    choices = family.choices if family.classifier != "linear" else None  # of GPT's the head is left out
    known = [name for name in (f"{family.stem}ForSequenceClassification", choices) if name is not None]
    given = settings.values.get("architectures") or known[:1]
    if not isinstance(given, list) or given[0] not in known:
        raise CheckpointError(
            f"{settings.path}: architectures {given!r:.80}: of models with a head, {' and '.join(known)} can be "
            f"imported; --task {NONE} imports another one without its head"
        )
    return bool(given[0] == choices)


def _names(settings: Settings, outputs: int) -> tuple[str, ...]:
    """Returns the names of the classes."""
    given = settings.values.get("id2label", {str(number): f"{UNNAMED}{number}" for number in range(outputs)})
    numbers = [str(number) for number in range(outputs)]
    if not isinstance(given, dict) or sorted(given) != sorted(numbers):
        raise CheckpointError(
            f"{settings.path}: id2label {given!r:.80} does not name the {outputs} outputs of the head"
        )
    names = tuple(given[number] for number in numbers)
    if not all(isinstance(name, str) and name and name.isprintable() for name in names) or len(set(names)) < outputs:
        raise CheckpointError(f"{settings.path}: id2label {given!r:.80}: names are lines of text, each another one")
    return names


def _dropout(settings: Settings, family: Family, model: ModelConfig) -> float:
    if family.classifier == "linear":
        return TaskConfig.head_dropout
    given = settings.values.get("classifier_dropout")
    return model.residual_dropout if given is None else settings.real("classifier_dropout", 0.0)


def _config(name: str, names: tuple[str, ...], dropout: float, limit: int | None) -> TaskConfig:
    """The `task` section of the checkpoint. Its path is to be named by whoever evaluates."""
    found: dict[str, Any] = {"name": name, "path": f"data/{name}", "head_dropout": dropout, "max_length": limit}
    kind = SPECS[name].task if name in SPECS else Classification if names else Regression
    if name in COLUMNS:
        found |= {"name": TABLE, "kind": kind.kind, "columns": COLUMNS[name], "labels": list(names)}
    if kind.reads_scores:
        found["regression"] = "classes" if names else "value"
    return TaskConfig(lm_coefficient=0.0, **found)


def _order(
    settings: Settings, name: str, spec: Spec, names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...] | None, tuple[str, ...]]:
    """(the task's classes, which row of their head is each one's, remarks)."""
    if not spec.labels or spec.labels == names:
        return names, None, ()
    if len(names) == len(spec.labels) and all(one.startswith(UNNAMED) for one in names):
        taken = ", ".join(spec.labels)
        return spec.labels, None, (f"its classes have no names; they are taken for {taken}: evaluate it to be sure",)
    known = {**{one.casefold(): one for one in spec.labels}, **{a.casefold(): one for a, one in spec.aliases.items()}}
    found = [known.get(one.casefold()) for one in names]
    if sorted(map(str, found)) != sorted(spec.labels):
        raise CheckpointError(
            f"{settings.path}: id2label names {', '.join(names)}; --task {name} has {', '.join(spec.labels)}: use "
            f"--task {'pair' if spec.text2 else 'single'}"
        )
    return spec.labels, tuple(found.index(one) for one in spec.labels), ()


def length_limit_of(values: Mapping[str, Any], context: int) -> int | None:
    """Tokens of a sequence, by the `tokenizer_config.json` with these `values`; None: the context."""
    given = values.get("model_max_length")
    return given if type(given) is int and SHORTEST <= given < context else None
