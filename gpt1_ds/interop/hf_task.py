"""A fine-tuned model as the classes of transformers that have a head.

    classification, similarity, regression   OpenAIGPTForSequenceClassification, read at the last token that is no pad
    choice                                   OpenAIGPTDoubleHeadsModel, read at mc_token_ids

**The bias of a classifier's head.** `score` has none. It is the only reader of the last block's output, which a
LayerNorm ends: `score(g x + b)`. So b moves by the shortest d with W d = bias, and every output is as it should be; the
rest of the weights stay as they are. Where sequences are added (similarity reads both orders), each has its share.

The tokenizer of such a folder lays inputs out by itself: one text as S x E, two as S a D b E.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.whole import head_of
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import Config
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.tasks.base import Task

CLASSIFIER, CHOICES = "OpenAIGPTForSequenceClassification", "OpenAIGPTDoubleHeadsModel"
TOLERANCE = 1e-6  # of a bias that was moved
_TOKENS, _TIED = "transformer.tokens_embed.weight", "lm_head.weight"


@dataclass(frozen=True)
class FineTuned:
    """What an export tells of the task. `limit` is in tokens of a sequence."""

    head: HeadSpec
    task: Task
    limit: int

    @classmethod
    def of(cls, folder: Path, facts: dict[str, Any], config: Config) -> FineTuned | None:
        """None for a language model. Raises CheckpointError."""
        head = head_of(folder, facts)
        if head is None or config.task is None:
            return None
        try:
            task = Task.of(facts["task"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise CheckpointError(f"{folder}: damaged: its manifest does not say what the head is for") from None
        return cls(head, task, config.task.max_length or config.model.context)

    @property
    def architecture(self) -> str:
        return CHOICES if self.head.choice else CLASSIFIER

    def config(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What `config.json` says besides the model's shape."""
        pad = {"architectures": [self.architecture], "pad_token_id": tokenizer.unknown_id}
        if self.head.choice:
            summary = {"summary_type": "cls_index", "summary_use_proj": True, "summary_proj_to_labels": True}
            dropout = {"summary_activation": None, "summary_first_dropout": self.head.dropout}
            return {**pad, "num_labels": 1, **summary, **dropout}
        labels = self.task.labels or tuple(map(str, range(self.head.outputs)))
        names = {str(number): label for number, label in enumerate(labels)}
        numbers = {label: number for number, label in enumerate(labels)}
        return {**pad, "id2label": names, "label2id": numbers, "problem_type": "single_label_classification"}


def to_their_head(tensors: dict[str, Tensor], weight_OD: Tensor, bias_O: Tensor, tuned: FineTuned, layers: int) -> None:
    """Put the head among the `tensors` of a language model under transformers' names. Raises CheckpointError."""
    if tuned.head.choice:
        tensors[_TIED] = tensors.pop(_TOKENS)  # the name that transformers saves, and reads, for this class
        tensors.update({"multiple_choice_head.summary.weight": weight_OD, "multiple_choice_head.summary.bias": bias_O})
        return
    norm = f"transformer.h.{layers - 1}.ln_2.bias"
    tensors[norm] = move_bias(tensors[norm], weight_OD, bias_O / tuned.head.sequences)
    tensors["score.weight"] = weight_OD


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
            f"{CLASSIFIER} has no bias, and this head's cannot go elsewhere (off by {error:.1e}): the weights of its "
            "classes depend on one another"
        )
    return moved_D


def lay_out_inputs(files: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Let the tokenizer in transformers' form add the control symbols to one text or two, and pad with id 0."""
    contents, settings = files["tokenizer.json"], files["tokenizer_config.json"]
    symbols = {token["id"]: token["content"] for token in contents["added_tokens"]}

    def special(number: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": symbols[number], "type_id": 0}}

    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    start, delimiter, extract = map(special, (tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id))
    used = (tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id)
    contents["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, first, extract],
        "pair": [start, first, delimiter, second, extract],
        "special_tokens": {symbols[n]: {"id": symbols[n], "ids": [n], "tokens": [symbols[n]]} for n in used},
    }
    settings["pad_token"] = symbols[tokenizer.unknown_id]  # the extract token ends a sequence, so no text is mistaken
    settings["padding_side"] = "right"
    settings["model_input_names"] = ["input_ids", "attention_mask"]  # GPT-1 would add token types to its embeddings
