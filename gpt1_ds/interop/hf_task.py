"""A fine-tuned model as the classes of transformers that have a head, and the way back: what the head of such a model
is for.

    classification, similarity, regression   ...ForSequenceClassification
    choice                                   ...DoubleHeadsModel, read at mc_token_ids, or BertForMultipleChoice
    span                                     ...ForQuestionAnswering, of BERT and RoBERTa
    tagging                                  ...ForTokenClassification, of BERT and RoBERTa
    sentences                                ...Model, in a folder of sentence-transformers (sentence_folder.py)

GPT's classifiers are read at the last token that is no pad, BERT's and RoBERTa's at the first.

**The bias of a GPT classifier's head.** `score` has none. It is the only reader of the last block's output, which a
LayerNorm ends: `score(g x + b)`. So b moves by the shortest d with W d = bias, and every output is as it should be; the
rest of the weights stay as they are. Where sequences are added (similarity reads both orders), each has an equal part.

The tokenizer of such a folder lays inputs out by itself (tasks/encoding.py).

    ...ForSequenceClassification   a class by `id2label`, or with one output a score
    BertForMultipleChoice          one of several choices
    ...ForQuestionAnswering        a span of a context
    ...ForTokenClassification      a tag of each word, by `id2label`

A folder does not say whether the head reads one text or two, or which task it is: `checkpoint import --task` does, by
`single` or `pair`, `span` or `tagging`, or by the task's name in the registry, whose order of classes the rows of the
head then get.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec, TokenKind
from gpt1_ds.checkpoint.whole import head_of, task_of
from gpt1_ds.common.errors import CheckpointError, DamagedError
from gpt1_ds.config import Config, ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST, TABLE, TOKEN_KINDS, ColumnsConfig
from gpt1_ds.data.tokenizers import json_file, json_sections
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.interop.families.family import Family, Settings
from gpt1_ds.interop.hf_config import padding_id
from gpt1_ds.model.sentence_vector import SentenceVector
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import ROLES, fitted
from gpt1_ds.tasks.kinds import KINDS, Classification, Regression, Span, Tagging
from gpt1_ds.tasks.kinds.span import ANSWER, NO_ANSWER
from gpt1_ds.tasks.reading import task_of_spec
from gpt1_ds.tasks.registry import SPECS, Spec, class_names, find_spec
from gpt1_ds.tasks.token_metrics import entity_problem

TOLERANCE = 1e-6  # of a bias that was moved


@dataclass(frozen=True)
class FineTuned:
    """What an export tells of the task. `limit` is in tokens of a sequence."""

    family: Family
    head: HeadSpec
    task: Task
    limit: int

    @classmethod
    def of(cls, folder: Path, facts: dict[str, Any], config: Config, family: Family) -> FineTuned | None:
        """Returns what a checkpoint was fine-tuned on; None for a language model. Raises CheckpointError, also for a
        head that the family does not have.
        """
        head = head_of(folder, facts)
        if head is None or config.task is None:
            return None
        if head.choice and family.choices is None:
            raise CheckpointError(
                f"{folder}: fine-tuned on choices: a {family.stem} with a head for them cannot be exported; "
                "`gpt1-ds predict` runs it"
            )
        if head.reads_tokens and family.classifier != "linear":
            family = family.with_token_head(head.kind)
        elif head.loss is None and head.kind != family.classifier:
            raise CheckpointError(
                f"{folder}: has a head of kind {head.kind}: {family.stem}ForSequenceClassification knows only "
                f"{family.classifier}; `gpt1-ds predict` runs it"
            )
        if (task := task_of(folder, facts)) is None:
            raise DamagedError(f"{folder}: damaged: its manifest does not say what the head is for")
        return cls(family, head, task, config.task.max_length or config.model.context)

    @property
    def architecture(self) -> str:
        if self.head.loss is not None:
            return f"{self.family.stem}Model"
        if self.head.reads_tokens:
            return self.family.stem + TOKEN_CLASSES[self.head.kind]  # type: ignore[index]
        choices = self.family.choices if self.head.choice else None
        return choices or f"{self.family.stem}ForSequenceClassification"

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What `config.json` says besides the model's shape."""
        pad: dict[str, Any] = {"pad_token_id": padding_id(tokenizer)}
        if self.head.loss is not None:
            return pad
        if self.head.kind != "linear":
            pad["classifier_dropout"] = self.head.dropout
        if self.head.kind == "span":
            return pad
        if self.head.is_value:
            return {**pad, "num_labels": 1, "problem_type": "regression"}
        if self.head.choice and self.head.kind != "linear":
            return pad
        if self.head.choice:
            summary = {"summary_type": "cls_index", "summary_use_proj": True, "summary_proj_to_labels": True}
            dropout = {"summary_activation": None, "summary_first_dropout": self.head.dropout}
            return {**pad, "num_labels": 1, **summary, **dropout}
        labels = class_names(self.task) or tuple(map(str, range(self.head.outputs)))
        names = {str(number): label for number, label in enumerate(labels)}
        numbers = {label: number for number, label in enumerate(labels)}
        kind = {} if self.head.reads_tokens else {"problem_type": "single_label_classification"}
        return {**pad, "id2label": names, "label2id": numbers, **kind}


def to_their_head(
    tensors: dict[str, Tensor], weight_OD: Tensor, bias_O: Tensor, tuned: FineTuned, model: ModelConfig
) -> None:
    """Put a linear head among the `tensors` of a language model, all under transformers' short names. Raises
    CheckpointError.
    """
    if tuned.head.choice:
        for (
            copy,
            original,
        ) in tuned.family.copies.items():  # the name that transformers saves, and reads, for this class
            tensors[copy] = tensors.pop(original)
        tensors.update({"multiple_choice_head.summary.weight": weight_OD, "multiple_choice_head.summary.bias": bias_O})
        return
    (norm,) = tuned.family.their_names(last_norm(model))
    tensors[norm] = move_bias(tensors[norm], weight_OD, bias_O / tuned.head.sequences)
    tensors["score.weight"] = weight_OD


def last_norm(model: ModelConfig) -> str:
    """The bias of the LayerNorm that a linear head reads."""
    return "final_norm.bias" if model.norm == "pre" else f"blocks.{model.layers - 1}.mlp_norm.bias"


def move_bias(norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor) -> Tensor:
    """The LayerNorm's bias with which a linear of `weight_OD` without bias gives what it gave with `bias_O`.

    Raises CheckpointError where the weight's rows depend on one another and the bias does not follow them.
    """
    weight, bias = weight_OD.double(), bias_O.double()
    shift_D = torch.linalg.pinv(weight) @ bias
    moved_D: Tensor = (norm_D.double() + shift_D).float()
    error = (weight @ (moved_D.double() - norm_D.double()) - bias).abs().max()
    if not error <= TOLERANCE * max(1.0, float(bias.abs().max())):
        raise CheckpointError(
            f"ForSequenceClassification has no bias, and this head's cannot go elsewhere (off by {error:.1e}): the "
            "weights of its classes depend on one another"
        )
    return moved_D


def lay_out_vector(files: dict[str, Any], tokenizer: Tokenizer, vector: SentenceVector) -> None:
    """Let the tokenizer in transformers' form put the vector's symbols around a text, and fill up short ones."""
    contents, settings = files["tokenizer.json"], files["tokenizer_config.json"]
    names = {token["id"]: token["content"] for token in contents["added_tokens"]}
    settings |= {"padding_side": "right", "pad_token": names[padding_id(tokenizer)]}
    if json_file.symbols_around(Path("tokenizer.json"), contents) == (vector.first, vector.last):
        return
    if missing := {*vector.first, *vector.last} - names.keys():
        raise CheckpointError(f"its tokenizer has no symbols with the ids {sorted(missing)}, which stand around a text")
    first, last = ([(names[number], 0) for number in ids] for ids in (vector.first, vector.last))
    symbols = {name: number for number, name in names.items()}
    single = [*first, ("A", 0), *last]
    contents["post_processor"] = json_sections.template(single, [*single, ("B", 0), *last], symbols)


def lay_out_inputs(files: dict[str, Any], tokenizer: Tokenizer, task: Task) -> None:
    """Let the tokenizer in transformers' form add the symbols to one text or two, as in fine-tuning."""
    contents, settings = files["tokenizer.json"], files["tokenizer_config.json"]
    names = {token["id"]: token["content"] for token in contents["added_tokens"]}

    def symbol(role: str) -> str:
        name: str = names[tokenizer.special_ids.require(role, f"task.name={task.name}")]
        return name

    first, between, last = ROLES[task.symbols]
    segment = int(task.symbols == "separator")  # of the second text
    begin, middle, end = [(symbol(first), 0), ("A", 0)], [(symbol(role), 0) for role in between], symbol(last)
    contents["post_processor"] = json_sections.template(
        [*begin, (end, 0)], [*begin, *middle, ("B", segment), (end, segment)], {name: n for n, name in names.items()}
    )
    settings["padding_side"] = "right"
    if task.symbols == "extract":
        settings["pad_token"] = names[padding_id(tokenizer)]  # extract ends a sequence, so no text is mistaken
    # without a word about segments: GPT-1 would add them to its embeddings
    segments = ["token_type_ids"] if segment else []
    settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]


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
TOKEN_CLASSES: Mapping[TokenKind, str] = {"span": "ForQuestionAnswering", "tags": "ForTokenClassification"}
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

    def check_layout(self, source: Path, tokenizer: TokenizerJson, tells_segments: bool) -> None:
        """Raise CheckpointError where the library lays texts out in another way than is done here: the head has learned
        that way. Raises ConfigError for a tokenizer without a symbol.
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
    """The task of a head with so many `outputs` (None: the file has no head) that `name`, what --task says, stands for;
    `limit` is in tokens of a sequence. Raises CheckpointError.
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
        has = "choices" if choice else f"{outputs} outputs" if outputs > 1 else "a score"
        has = {"span": "spans", "tags": "tags"}.get(of_tokens or "", has)
        raise CheckpointError(f"{source}: its head is for {has}, --task {name} is a {task.kind}; name another task")
    head = task.head(config, model)
    return Classifier(task, config, head, *order[1:])


def token_kind(settings: Settings, family: Family) -> TokenKind | None:
    """The kind of head of a class that scores every token, of a family where such a class is read here."""
    if family.classifier == "linear":
        return None
    name = _class(settings)
    return next((kind for kind, ending in TOKEN_CLASSES.items() if name == family.stem + ending), None)


def _class(settings: Settings) -> str:
    given = settings.values.get("architectures")
    return given[0] if isinstance(given, list) and given and isinstance(given[0], str) else ""


def _check_class(settings: Settings, family: Family) -> None:
    """Raises CheckpointError for a class with a head of another kind than those that are read here."""
    name = _class(settings)
    heads = (f"{family.stem}ForSequenceClassification", f"{family.stem}ForNextSentencePrediction")
    known = (family.language_model, family.pairs, family.choices, *heads)
    if token_kind(settings, family):
        return
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
    if name in TOKEN_KINDS:
        kind = KINDS[name]
        found |= {"name": TABLE, "kind": name, "labels": list(names)}
        if name == TAGGING and entity_problem(names):
            found["metric"] = "accuracy"
    if kind is Span:
        found["head_dropout"] = 0.0  # their class has none
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
