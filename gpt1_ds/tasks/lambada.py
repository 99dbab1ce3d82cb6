"""Passages of LAMBADA (Paperno et al. 2016): what is the last word? It needs more than the last sentence."""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.tasks.dev import capped
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.hub_sets import way_to
from gpt1_ds.tasks.rows import FEW
from gpt1_ds.tasks.tables import open_table

LAMBADA = "lambada"
FILE = "lambada_test.jsonl"  # OpenAI's, with the case and line breaks of the books


def read_passages(path: Path, limit: int | None = None) -> Examples:
    """An example's `texts` are what comes before the last blank, and the word after it. `path` is the folder of
    OpenAI's file, or a file of JSON lines with `text`. Raises DataError for what is not there, and for passages of one
    word.
    """
    file = path if path.is_file() else path / FILE
    if not file.is_file():
        raise DataError(
            f"{path}: holds no {FILE}; name the folder that holds it, or a file of JSON lines with text" + way_to(path)
        )
    examples: list[Example] = []
    problems = []
    for number, row in enumerate(open_table(file, "jsonl").rows):
        text = row.values.get("text") if not row.problem else None
        before, _, word = text.strip().rpartition(" ") if isinstance(text, str) else ("", "", "")
        if before.strip():
            examples.append(Example(str(number), (before, word)))
        else:
            problems.append(f"{file} {row.place}: {row.problem or 'text has no two words'}; correct this line")
    DataError.raise_all(problems[:FEW])
    return capped(tuple(examples), limit)
