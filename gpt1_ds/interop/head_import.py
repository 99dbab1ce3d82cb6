"""The head of a fine-tuned model of transformers, as `checkpoint import --task` reads it.

    ...ForSequenceClassification   a class by `id2label`, or with one output a score
    BertForMultipleChoice          one of several choices
    ...ForQuestionAnswering        a span of a context
    ...ForTokenClassification      a tag of each word, by `id2label`

A folder of transformers does not say whether the head reads one text or two, or which task it is. --task does, by
`single` or `pair`, `span` or `tagging`, or by the task's name in the registry, whose order of classes the rows of the
head then get.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec, TokenKind
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST, TABLE, TOKEN_KINDS, ColumnsConfig
from gpt1_ds.data.tokenizers import json_file
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.settings import Settings
from gpt1_ds.interop.head_export import TOKEN_CLASSES
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import ROLES, fitted
from gpt1_ds.tasks.kinds import KINDS, Classification, Regression, Span, Tagging
from gpt1_ds.tasks.kinds.span import ANSWER, NO_ANSWER
from gpt1_ds.tasks.reading import task_of_spec
from gpt1_ds.tasks.registry import SPECS, find_spec
from gpt1_ds.tasks.specs import Spec
from gpt1_ds.tasks.token_metrics import entity_problem

COLUMNS = {
    "single": ColumnsConfig(text="text", label="label"),
    "pair": ColumnsConfig(text="text", text2="text2", label="label"),
}
NONE = "none"  # the head is left out
SPAN, TAGGING = TOKEN_KINDS
# of tags the folder itself has the names, in its own order
NAMED = tuple(
    name for name, spec in SPECS.items() if name != TABLE and spec.task is not Tagging and not spec.task.writes_text
)
TASKS = (*COLUMNS, SPAN, TAGGING, NONE, *NAMED)  # what --task may say
UNNAMED = "LABEL_"  # with which transformers begins the names of classes that have none


@dataclass(frozen=True)
class Classifier:
    """The head of an imported model, and the task that it is for."""

    task: Task
    settings: TaskConfig
    head: HeadSpec
    rows: tuple[int, ...] | None = None  # of the file's head, in the order of the task's classes; None: as they are
    remarks: tuple[str, ...] = ()

    def ordered(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns all weights, those of the head in the order of the task's classes."""
        if self.rows is None:
            return dict(weights)
        rows = list(self.rows)
        return {name: value[rows] if name.startswith("head.") else value for name, value in weights.items()}

    def check_symbols(self, source: Path, tokenizer: Tokenizer, token_rows: int) -> None:
        """Raises CheckpointError, or ConfigError for the tokenizer, unless the model knows the symbols around texts."""
        first, between, last = ROLES[self.task.symbols]
        for role in (first, *between, last):
            if tokenizer.special_ids.require(role, f"task.name={self.task.name}") >= token_rows:
                raise CheckpointError(
                    f"{source}: has no row for the symbol {role}: it was fine-tuned on texts without it; fine-tune its "
                    "language model here instead"
                )

    def check_layout(self, source: Path, tokenizer: TokenizerJson, tells_segments: bool) -> None:
        """Raises CheckpointError where the library lays texts out in another way than this program: the head has
        learned that way. Raises ConfigError for a tokenizer without a symbol.
        """
        if self.task.symbols == "extract":
            return  # no other program has such a layout: `check_symbols` refuses it
        first, between, last = ROLES[self.task.symbols]
        has_segments, one_text = self.task.symbols == "separator", self.task.layout == "single"
        rest = [(last, 0)] if one_text else [*((role, 0) for role in between), ("B", 1), (last, 1)]

        def shown(parts: Iterable[tuple[str, int]], segments: bool) -> str:
            return " ".join(f"{name}:{segment}" if segment and segments else name for name, segment in parts)

        def name(part: int | str) -> str:
            return part if isinstance(part, str) else tokenizer.names.get(part, str(part))

        def symbol(role: str) -> str:
            return role if role in "AB" else name(tokenizer.special_ids.require(role, f"task.name={self.task.name}"))

        found = json_file.layout(source, tokenizer.contents, pair=not one_text)
        texts = {"A"} if one_text else {"A", "B"}
        if not texts <= {part for part, _ in found}:
            return  # its vocabulary has no letters, so that the texts of the comparison are empty
        theirs = shown(((name(part), segment) for part, segment in found), has_segments and tells_segments)
        ours = shown(((symbol(role), segment) for role, segment in [(first, 0), ("A", 0), *rest]), has_segments)
        if theirs != ours:
            raise CheckpointError(
                f"{source}: its tokenizer lays texts out as {theirs:.80}, and here they are laid out as {ours:.80}, "
                f"which its head has not learned; pass --task {NONE} for its encoder alone, or --tokenizer if it was "
                "fine-tuned with another one"
            )


def read_classifier(
    settings: Settings,
    family: Family,
    model: ModelConfig,
    outputs: int | None,
    name: str | None,
    limit: int | None,
) -> Classifier | None:
    """Returns the head of a folder and its task; None where the file has no head. `outputs` are those of the file's
    head (None: it has none), `name` is the value of --task, `limit` is in tokens of a sequence. Raises CheckpointError.
    """
    source = settings.path.parent
    _check_class(settings, family)
    if outputs is None:
        if name is not None:
            raise CheckpointError(f"{source}: has no head of a fine-tuned model; leave --task {name} out")
        return None
    of_tokens = token_kind(settings, family)
    choice = of_tokens is None and _is_choice(settings, family)
    if settings.values.get("problem_type") == "multi_label_classification":
        raise CheckpointError(f"{settings.path}: problem_type multi_label_classification: a text has one class here")
    if settings.values.get("problem_type") == "regression" and outputs > 1 and of_tokens is None:
        raise CheckpointError(f"{settings.path}: problem_type regression: a text has one score here, not {outputs}")
    if name is None:
        raise CheckpointError(
            f"{source}: is a fine-tuned model; say what it reads: --task single (one text), pair (two), or the name of "
            f"its task: {', '.join(NAMED)}; --task none leaves its head out"
        )
    names: tuple[str, ...] = () if outputs == 1 or of_tokens == "span" else _names(settings, outputs)
    config = _config(name, names, _dropout(settings, family, model), limit)
    spec = find_spec(config)
    order = _order(settings, name, spec, names) if issubclass(spec.task, Classification) else (spec.labels,)
    if issubclass(spec.task, Span):
        order = ((ANSWER, NO_ANSWER) if name == "squad2" else (ANSWER,),)
    task = fitted(task_of_spec(spec, config, order[0]), config, model)
    fits = task.reads_tokens == bool(of_tokens) and (task.kind == TAGGING) == (of_tokens == "tags")
    if not fits or (task.layout == "choice", task.outputs) != (choice, outputs):
        if of_tokens:
            has = {"span": "spans", "tags": "tags"}[of_tokens]
        elif choice:
            has = "choices"
        else:
            has = f"{outputs} outputs" if outputs > 1 else "a score"
        raise CheckpointError(f"{source}: its head is for {has}, --task {name} is a {task.kind}; name another task")
    head = task.head(config, model)
    return Classifier(task, config, head, *order[1:])


def token_kind(settings: Settings, family: Family) -> TokenKind | None:
    """Returns the kind of head of a class that scores every token; None for other classes, and where a family has
    none.
    """
    if family.classifier == "linear":
        return None
    name = _class_name(settings)
    return next((kind for kind, ending in TOKEN_CLASSES.items() if name == family.stem + ending), None)


def _class_name(settings: Settings) -> str:
    classes = settings.values.get("architectures")
    return classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""


def _check_class(settings: Settings, family: Family) -> None:
    """Raises CheckpointError for a class with a head of another kind than those that are read here."""
    name = _class_name(settings)
    heads = (f"{family.stem}ForSequenceClassification", f"{family.stem}ForNextSentencePrediction")
    known = (family.language_model, family.pairs, family.choices, *heads)
    if token_kind(settings, family):
        return
    if not name.startswith(f"{family.stem}For") or name in known:
        return
    way = f"--task {NONE} imports its weights without the head" if family.prefix else "name the folder of another class"
    raise CheckpointError(f"{settings.path}: architectures {name:.80}: its head has no counterpart here; {way}")


def left_out(names: Collection[str], family: Family, source: Path) -> list[str]:
    """Returns those `names` of tensors that `--task none` leaves out: all that belong to no base model and no language
    model. Raises CheckpointError where there is none.
    """
    known = tuple(beginning for beginning in ("cls.", "lm_head.") if beginning in family.outside)
    found = sorted(name for name in names if not name.startswith((family.prefix, *known))) if family.prefix else []
    if not found or not any(name.startswith(family.prefix) for name in names):
        raise CheckpointError(f"{source}: has no head of a fine-tuned model; leave --task {NONE} out")
    return found


def _is_choice(settings: Settings, family: Family) -> bool:
    """Returns whether the head is for choices. Raises CheckpointError for a class with a head that is not read here."""
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
    """Returns the `task` section of the checkpoint. Whoever evaluates it names the path of the files."""
    keys: dict[str, Any] = {"name": name, "path": f"data/{name}", "head_dropout": dropout, "max_length": limit}
    kind = SPECS[name].task if name in SPECS else Classification if names else Regression
    if name in TOKEN_KINDS:
        kind = KINDS[name]
        keys |= {"name": TABLE, "kind": name, "labels": list(names)}
        if name == TAGGING and entity_problem(names):
            keys["metric"] = "accuracy"
    if kind is Span:
        keys["head_dropout"] = 0.0  # the class of transformers has none
    if name in COLUMNS:
        keys |= {"name": TABLE, "kind": kind.kind, "columns": COLUMNS[name], "labels": list(names)}
    if kind.reads_scores:
        keys["regression"] = "classes" if names else "value"
    return TaskConfig(lm_coefficient=0.0, **keys)


def _order(
    settings: Settings, name: str, spec: Spec, names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...] | None, tuple[str, ...]]:
    """Returns (the task's classes, for each the row of the file's head, remarks)."""
    if not spec.labels or spec.labels == names:
        return names, None, ()
    if len(names) == len(spec.labels) and all(one.startswith(UNNAMED) for one in names):
        taken = ", ".join(spec.labels)
        return spec.labels, None, (f"its classes have no names; they are taken for {taken}: evaluate it to be sure",)
    label_of = {label.casefold(): label for label in spec.labels}
    label_of |= {alias.casefold(): label for alias, label in spec.aliases.items()}
    labels = [label_of.get(name.casefold()) for name in names]
    if sorted(map(str, labels)) != sorted(spec.labels):
        raise CheckpointError(
            f"{settings.path}: id2label names {', '.join(names)}; --task {name} has {', '.join(spec.labels)}: use "
            f"--task {'pair' if spec.text2 else 'single'}"
        )
    return spec.labels, tuple(labels.index(label) for label in spec.labels), ()


def length_limit_of(values: Mapping[str, Any], context: int) -> tuple[int | None, tuple[str, ...]]:
    """Returns the tokens of a sequence, by the `tokenizer_config.json` with these `values`, None for the context; and a
    remark where they name a limit that no task can have.
    """
    given = values.get("model_max_length")
    if given is None or (isinstance(given, (int, float)) and given >= context):  # 1e30 stands for no limit
        return None, ()
    if type(given) is int and given >= SHORTEST:
        return given, ()
    remark = f"the model_max_length {given!r:.40} of its tokenizer is left out: a task needs {SHORTEST} tokens or more"
    return None, (f"{remark}, and texts are cut at the model's {context}",)
