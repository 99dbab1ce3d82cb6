"""Tiny tasks of every kind that can be learned, written as tables."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from gpt1_ds.config.task import GENERATION, TOKEN_KINDS

TEXT = "the module returns a list of names when an object is called with two arguments and raises no error"
WORDS = TEXT.split()
COLUMNS = {
    "single": "{text: a, label: x}",
    "pair": "{text: a, text2: b, label: x}",
    "similarity": "{text: a, text2: b, label: x}",
    "regression": "{text: a, text2: b, label: x}",
    "choice": "{text: a, label: x, choices: [c]}",
    "question": "{text: a, text2: b, label: x, choices: [c]}",
}
KIND = {"single": "classification", "pair": "classification", "question": "choice"}  # of those named otherwise


def make_task(folder: Path, shape: str, train: int = 48, dev: int = 20) -> list[str]:
    """Writes files of a task of this shape, the same every time. Returns the arguments that configure it."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(shape)
    for split, count in (("train", train), ("dev", dev)):
        rows = [_row(shape, draw, number) for number in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kind, _, loss = shape.partition("-")
    kind = KIND.get(kind, kind)
    if loss:
        return _make_sentences(folder, loss)
    if kind in (*TOKEN_KINDS, GENERATION):  # whose columns have names of their own
        return ["task.name=table", f"task.path={folder}", f"task.kind={kind}"]
    return ["task.name=table", f"task.path={folder}", f"task.kind={kind}", f"task.columns={COLUMNS[shape]}"]


def _make_sentences(folder: Path, loss: str) -> list[str]:
    """Moves what scores the vectors beside the training file. Returns the arguments that configure the task."""
    scored = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    (folder / "sts").mkdir(exist_ok=True)
    lines = ["sentence1\tsentence2\tscore", *(f"{row['a']} .\t{row['b']} .\t{row['score']}" for row in scored)]
    (folder / "sts" / "dev.tsv").write_text("\n".join(lines) + "\n")
    (folder / "dev.jsonl").unlink()
    words = ["task.name=table", f"task.path={folder}", "task.kind=sentences", f"task.loss={loss}"]
    return [*words, f"task.columns={COLUMNS['pair']}", f"task.sts={folder / 'sts'}"]


def _row(shape: str, draw: random.Random, number: int) -> dict[str, Any]:
    """Returns one example, whose words show what its answer is."""

    def text() -> list[str]:
        return draw.choices(WORDS, k=draw.randint(2, 7))

    if shape == "tagging":
        words = draw.choices(WORDS, k=draw.randint(3, 9))
        return {"tokens": words, "tags": [f"B-{word[0]}" if word[0] in "lna" else "O" for word in words]}
    if shape == "generation":
        words = text()
        return {"source": " ".join(words), "target": " ".join(words[-3:])}
    if shape == "span":
        return _question(draw, number)
    row: dict[str, Any] = {"a": " ".join(text()), "b": " ".join(text())}
    if shape == "regression":
        common = draw.randint(0, 4)
        row["b"] = " ".join([*draw.choices(row["a"].split(), k=common), *draw.choices(["file", "path"], k=4 - common)])
        return {**row, "x": round(common * 1.2 + 0.1, 2)}
    if shape in ("choice", "question"):
        right = number % 3
        return {**row, "x": right, "c": [" ".join(text()[:3]) + (" file" if n == right else "") for n in range(3)]}
    if shape.startswith("sentences"):
        number, kind = divmod(number, 3)  # three texts for one
        row["a"] = " ".join(random.Random(number).choices(WORDS, k=5))
        row["score"] = (5.0, 2.5, 0.5)[kind]
        row["b"] = " ".join([*row["a"].split()[: 5 - 2 * kind], *draw.choices(["file", "path"], k=1 + kind)])
        label = ("entailment", "neutral", "contradiction")[kind]
        return {**row, "x": row["score"] if shape == "sentences-cosine" else label}
    label = number % 2
    row["b" if shape != "single" and number % 4 > 1 else "a"] += " file path" if label else " value"
    return {**row, "x": ("no", "yes")[label]}


def _question(draw: random.Random, number: int) -> dict[str, Any]:
    """Returns a question whose answer follows the word that is asked for; now and then there is none."""
    words = draw.choices([word for word in WORDS if word != "error"], k=draw.randint(30, 60))
    answers, starts = [], []
    if number % 4:
        at = draw.randrange(len(words) - 1)
        words[at] = "error"
        answers, starts = [words[at + 1]], [len(" ".join(words[: at + 1])) + 1]
    return {"question": "which error", "context": " ".join(words), "answers": answers, "starts": starts}
