"""`sample --input`: a prompt or source a line, or a JSON object with the key `text`, answered in batches.

An object may have a `seed` of its own. What has arrived is answered at once, so a pipe may be slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpt1_ds.common.errors import ArgumentError, DataError
from gpt1_ds.evaluation.decoding import PROMPTS
from gpt1_ds.evaluation.generate import source_ids, written
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.predict import windows
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.tasks.lines import ENDINGS, as_object, decoded
from gpt1_ds.tasks.rows import BadRowError


@dataclass(frozen=True)
class Prompt:
    text: str
    seed: int


def answers(loaded: Loaded, path: Path, sampling: Sampling) -> Iterator[list[str]]:
    """Yields a JSON line for each line of a file or pipe, batch by batch: its `prompt`, and the `text` that the model
    writes after it. Raises DataError at the first line that is no prompt, when those before its batch are answered.
    """
    number, is_json = 0, ENDINGS.get(path.suffix.lower()) == "jsonl"
    with path.open("rb") as stream:
        for lines in windows(stream.fileno()):
            is_json = is_json or (number == 0 and _is_object(lines[0]))
            for begin in range(0, len(lines), PROMPTS):
                prompts = []
                for line in lines[begin : begin + PROMPTS]:
                    number += 1
                    try:
                        prompts.append(_prompt(loaded, line, number, is_json, sampling))
                    except (BadRowError, ArgumentError) as problem:
                        raise DataError(f"{path} line {number}: {problem}") from None
                texts = written(loaded, [one.text for one in prompts], sampling, [one.seed for one in prompts])
                yield [json.dumps({"prompt": one.text, "text": text}) for one, text in zip(prompts, texts, strict=True)]


def _is_object(line: bytes) -> bool:
    try:
        return "text" in as_object(decoded(line, 1))
    except BadRowError:
        return False


def _prompt(loaded: Loaded, line: bytes, number: int, is_json: bool, sampling: Sampling) -> Prompt:
    """Raises BadRowError for a line that is no prompt, ArgumentError for a source or a seed that cannot be used."""
    text, seed = decoded(line, number), sampling.seed
    if is_json:
        values = as_object(text)
        if not isinstance(values.get("text"), str) or type(values.get("seed", seed)) is not int:
            raise BadRowError('needs "text", a string, and may have "seed", a whole number')
        text, seed = values["text"], values.get("seed", seed)
        replace(sampling, seed=seed)  # checks it
    if loaded.model.stacks == 2:
        source_ids(loaded, text)
    return Prompt(text, seed)
