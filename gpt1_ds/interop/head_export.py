"""A fine-tuned model as a class of transformers that has a head.

    classification, similarity, regression   ...ForSequenceClassification
    choice                                   ...DoubleHeadsModel, read at mc_token_ids, or BertForMultipleChoice
    span                                     ...ForQuestionAnswering, of BERT and RoBERTa
    tagging                                  ...ForTokenClassification, of BERT and RoBERTa
    sentences                                ...Model, in a folder of sentence-transformers (sentence_export.py)

GPT's classifiers read the last token that is no padding, BERT's and RoBERTa's the first.

**The bias of a GPT classifier's head.** `score` of transformers has none. It is the only reader of the last block's
output, which a LayerNorm ends: `score(g x + b)`. So b moves by the shortest d with W d = bias, and every output is as
it should be; the rest of the weights stay as they are. Where the outputs of several sequences are added (similarity
reads both orders), each has an equal part of the bias.

The exported tokenizer lays inputs out by itself, as tasks/encoding.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec, TokenKind
from gpt1_ds.checkpoint.whole import head_of, task_of
from gpt1_ds.common.errors import CheckpointError, DamagedError
from gpt1_ds.config import Config, ModelConfig
from gpt1_ds.data.tokenizers import json_file, json_sections
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.hf_config import padding_id
from gpt1_ds.model.sentence_vector import SentenceVector
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import ROLES
from gpt1_ds.tasks.registry import class_names

TOKEN_CLASSES: Mapping[TokenKind, str] = {"span": "ForQuestionAnswering", "tags": "ForTokenClassification"}
TOLERANCE = 1e-6  # of a bias that was moved


@dataclass(frozen=True)
class FineTuned:
    """What a checkpoint was fine-tuned on, as an export needs it. `limit` is in tokens of a sequence."""

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
        """Returns what `config.json` says besides the model's shape."""
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


def put_head(
    tensors: dict[str, Tensor], weight_OD: Tensor, bias_O: Tensor, tuned: FineTuned, model: ModelConfig
) -> None:
    """Puts a linear head among the `tensors` of a language model, all under transformers' short names. Raises
    CheckpointError.
    """
    if tuned.head.choice:
        for copy, original in tuned.family.copies.items():  # of this class transformers saves, and reads, the copy
            tensors[copy] = tensors.pop(original)
        tensors.update({"multiple_choice_head.summary.weight": weight_OD, "multiple_choice_head.summary.bias": bias_O})
        return
    (norm,) = tuned.family.their_names(last_norm(model))
    tensors[norm] = move_bias(tensors[norm], weight_OD, bias_O / tuned.head.sequences)
    tensors["score.weight"] = weight_OD


def last_norm(model: ModelConfig) -> str:
    """Returns the name of the bias of the LayerNorm that a linear head reads."""
    return "final_norm.bias" if model.norm == "pre" else f"blocks.{model.layers - 1}.mlp_norm.bias"


def move_bias(norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor) -> Tensor:
    """Returns the bias [D] of the LayerNorm with which a linear layer of `weight_OD` without bias gives what it gave
    with `bias_O`.

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
    """Makes the exported tokenizer put the vector's symbols around a text, and fill up short texts."""
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
    """Makes the exported tokenizer add the symbols to one text or two, as in fine-tuning."""
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
