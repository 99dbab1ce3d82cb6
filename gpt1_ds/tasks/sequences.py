"""Examples of any task as token sequences."""

from __future__ import annotations

from collections.abc import Sequence

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.encoding import Encoded, encode
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.span_rows import encode_spans
from gpt1_ds.tasks.tag_rows import encode_tags
from gpt1_ds.tasks.target_rows import encode_targets


def encode_examples(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, settings: TaskConfig, limit: int, answer: int = 0
) -> Encoded:
    """Returns the sequences of at most `limit` tokens; of a text that is written, at most `answer`. Raises DataError
    for a longer one where task.too_long=raise.
    """
    if task.writes_text:
        rows = encode_targets(task, examples, tokenizer, limit, answer)
        _check(task, settings, rows.cut_targets, len(rows), f"targets are longer than {answer}", "task.target_length")
        encoded: Encoded = rows
    elif task.reads_tokens and task.layout == "pair":
        return encode_spans(task, examples, tokenizer, limit, settings.stride)
    elif task.reads_tokens:
        return encode_tags(task, examples, tokenizer, limit)
    else:
        encoded = encode(task, examples, tokenizer, limit)
    _check(task, settings, encoded.truncated, len(encoded), f"examples are longer than {limit}", "task.max_length")
    return encoded


def _check(task: Task, settings: TaskConfig, cut: int, count: int, what: str, key: str) -> None:
    if cut and settings.too_long == "raise":
        raise DataError(
            f"task.too_long=raise: {cut} of {count} {what} tokens; set a larger {key}, leave them out of {task.name}, "
            "or set task.too_long=cut"
        )
