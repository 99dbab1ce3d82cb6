"""Tasks in text, as T5 reads and writes them (Raffel et al. 2020, appendix D): the name of the task and its texts after
their names, then an answer in words.

    mnli hypothesis: A man sleeps. premise: A man is awake.              contradiction
    stsb sentence1: A dog runs. sentence2: The dog is running.           3.8
    copa choice1: It rained. choice2: It snowed. premise: ... question: cause    choice1

As in `preprocessors.glue` and `stsb` of the authors' code (t5/data/preprocessors.py), texts stand in the alphabetical
order of their names, and a score is rounded to 0.2. Tasks that the paper does not have follow the same rules. Choices
are always called choice1, choice2, ...
WiC and MultiRC are not as T5 reads them, whose names are those of three texts: here WiC's word stands before its first
sentence, and MultiRC's question before the answer.
A source ends with the end symbol, and so does an answer. What is cut of a source is its end.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import ModelConfig, TaskConfig
from gpt1_ds.config.task import SHORTEST
from gpt1_ds.data.tokenizers.base import Tokenizer, most_beams
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.registry import class_names

Int32s = NDArray[np.int32]
FIELDS = {  # names of the texts, in the order of an example
    **dict.fromkeys(("mnli", "snli", "scitail", "cb"), ("premise", "hypothesis")),
    "qnli": ("question", "sentence"),
    "boolq": ("passage", "question"),
    "qqp": ("question1", "question2"),
    "race": ("article", "question"),
    "cosmosqa": ("context", "question"),
}


def in_text(task: Task) -> Task:
    """Returns `task` as text, with all that an answer may be."""
    layout = "pair" if task.layout == "both" else task.layout  # the order of two texts says nothing
    fields = FIELDS.get(task.name, task.text_fields())
    return replace(task, layout=layout, fields=fields, answers=task.text_answers(class_names(task)))


def encode_source(task: Task, example: Example, tokenizer: Tokenizer, limit: int) -> tuple[Int32s, bool]:
    """Returns (int32 [tokens], at most `limit`, whether a part was cut off)."""
    tokens = tokenizer.encode(task.source(example))
    return np.append(tokens[: limit - 1], np.int32(tokenizer.eod_id)), len(tokens) >= limit


def encode_answers(task: Task, tokenizer: Tokenizer) -> tuple[Int32s, ...]:
    """Returns the tokens of each answer, the end symbol included. Raises ConfigError where the tokenizer cannot tell
    two apart.
    """
    found: dict[bytes, str] = {}
    encoded = []
    for answer in task.answers:
        tokens = tokenizer.encode(answer)
        other = found.setdefault(tokens.tobytes(), answer)
        if other != answer:
            raise ConfigError(
                f"task.form=text: the tokenizer has the same tokens for {answer} and {other}; use task.form=head"
            )
        encoded.append(np.append(tokens, np.int32(tokenizer.eod_id)))
    return tuple(encoded)


def text_limits(task: Task, settings: TaskConfig, tokenizer: Tokenizer, limit: int, stacks: int) -> tuple[int, int]:
    """Returns (tokens of a source, tokens of an answer) at most, ends included, where a row has `limit` positions.
    Raises ConfigError where an answer leaves no place for a source, and for more beams than the tokenizer has tokens
    for.
    """
    if task.writes_text:
        if (beams := settings.decoding.beams) > max(1, most := most_beams(tokenizer)):
            raise ConfigError(
                f"task.decoding.beams={beams} must be at most {most}, half of the tokens that can be written; use fewer"
            )
        longest = settings.target_length or (limit if stacks == 2 else limit // 2)
        what, way_out = f"task.target_length={longest} leaves", "a smaller one"
    else:
        longest = max(map(len, encode_answers(task, tokenizer)))
        what = f"task.form=text: an answer has {longest} tokens, which leaves"
        way_out = "a larger one, or shorter labels"
    left = limit if stacks == 2 else limit - longest + 1
    if longest > limit or left < SHORTEST:
        raise ConfigError(
            f"{what} too few of the {limit} tokens of a row (task.max_length, else model.context) for a source; "
            f"use {way_out}"
        )
    return left, longest


def most_written(model: ModelConfig, longest: int) -> int:
    """Returns the number of tokens of a text at most where a target has `longest`: a decoder's first place is that of
    its start.
    """
    return min(longest, model.context - 1) if model.stacks == 2 else longest
