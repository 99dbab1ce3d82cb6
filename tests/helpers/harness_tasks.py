"""Task files of lm-evaluation-harness on a few lines of text: minimal pairs as BLiMP's, last words as LAMBADA's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SENTENCES = [
    "the module has a list of names and the names are returned when the file is read",
    "an object of the class is made by a call that has no argument at all in it",
    "a value may be a number or a text and it is written to the file in the end",
    "there is no way to read it again once the end of the path was reached by the object",
]
PAIRS = [
    {
        "sentence_good": f"{sentence.capitalize()}.",
        "sentence_bad": f"{' '.join(reversed(sentence.split()))}.",
        "UID": "p",
        "linguistics_term": ("binding", "ellipsis")[number % 2],
    }
    for number, sentence in enumerate(SENTENCES * 3)
]
LAST = [{"text": sentence} for sentence in SENTENCES]

_BLIMP = """output_type: multiple_choice
doc_to_text: ""
doc_to_target: 0
target_delimiter: ""
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
metric_list:
  - metric: acc
"""
_LAMBADA = """output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list:
  - metric: perplexity
  - metric: acc
"""
_ROLLING = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: bits_per_byte
"""
_GENERATION = """output_type: generate_until
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{text.split(' ')[-1]}}"
generation_kwargs:
  max_gen_toks: 8
  until: ["a", "."]
metric_list:
  - metric: exact_match
"""
FORMS = {"blimp": _BLIMP, "lambada": _LAMBADA, "rolling": _ROLLING, "generation": _GENERATION}


def write_task(folder: Path, form: str, rows: Iterable[Any] | None = None, name: str = "", **settings: str) -> Path:
    """The file of a task `local_<form>` on `rows`, all in `folder`."""
    name = name or f"local_{form}"
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows or (PAIRS if form == "blimp" else LAST)))
    top = f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\n"
    more = "".join(f"  {key}: {value}\n" for key, value in settings.items())
    (folder / f"{name}.yaml").write_text(f"{top}{more}test_split: test\n{FORMS[form]}")
    return folder / f"{name}.yaml"


def last_words(rows: Iterable[dict[str, str]]) -> list[tuple[str, str]]:
    """(what comes before, the blank and the last word) as LAMBADA's task cuts them."""
    parts = [row["text"].rpartition(" ") for row in rows]
    return [(before, f" {word}") for before, _, word in parts]
