"""Fine-tuning runs of every kind of task, seconds each, whose heads have learned something."""

from __future__ import annotations

import json
import random
from pathlib import Path

from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.evaluation.predict import Predictor
from gpt1_ds.launcher import launch
from gpt1_ds.tasks.lines import Format, LineReader
from gpt1_ds.training.configuration import finetune_config
from tools.small_tasks import COLUMNS, KIND

SENTENCE = "a list of names is returned when the module has no object with <unk> two arguments or an error"
SETTINGS = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=160", "run.seed=5", "train.steps=30"),
    *("train.global_batch=16", "train.micro_batch=8", "optimizer.lr=1e-2", "schedule.kind=constant"),
    *("schedule.warmup_steps=1", "task.score_range=[1,4]"),
]


def rows(shape: str, count: int) -> list[dict[str, object]]:
    """Columns a, b, c (choices) and x, of which the task takes some; the label shows in the texts."""
    draw, words = random.Random(f"{shape} {count}"), SENTENCE.split()
    found = []
    for number in range(count):
        first, second = (" ".join(draw.choices(words, k=draw.randint(1, 8))) for _ in "ab")
        row: dict[str, object] = {"a": first, "b": second}
        if shape == "regression":
            row.update(x=1 + number % 4 * 0.9, b=second + " same" * (number % 4))
        elif shape in ("choice", "question"):
            choices = [" ".join(draw.choices(words, k=3)) + " right" * (place == number % 3) for place in range(3)]
            row.update(x=number % 3, c=choices)
        else:
            shown = ("", " file file file", " path value: path value")[number % 3]
            row.update(x=("no", "perhaps not", "oui é")[number % 3], a=first + shown)
        found.append(row)
    return found


def fine_tune(shape: str, tokenizer: Path, folder: Path, *words: str) -> Path:
    """The folder of a finished run from nothing on a task of this shape; 41 examples in dev, 9 without label in test.

    The files lie in `folder` and are gone through by `rows(shape, 41)` again.
    """
    folder.mkdir(parents=True)
    for split, count in (("train", 96), ("dev", 41), ("test", 9)):
        lines = [{key: row[key] for key in row if split != "test" or key != "x"} for row in rows(shape, count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = ["task.name=table", f"task.path={folder}", f"task.kind={KIND.get(shape, shape)}"]
    place = [f"task.tokenizer={tokenizer}", f"run.dir={folder / 'runs'}", "run.name=r"]
    config = finetune_config([], [*task, f"task.columns={COLUMNS[shape]}", *place, *SETTINGS, *words])
    assert launch.launch("gpt1_ds.training.finetuning:finetune", (config,), 1) == 0
    return folder / "runs" / "r"


def fields(shape: str, row: dict[str, object]) -> list[str]:
    """A row as the fields of a line for `predict`."""
    texts = [str(row["a"]), *([str(row["b"])] if "text2" in COLUMNS[shape] else [])]
    choices = row.get("c", [])
    assert isinstance(choices, list)
    return texts + choices


def predictor_of(checkpoint: Path, form: Format = "tsv") -> tuple[Predictor, LineReader]:
    """The model as it serves, and what reads examples for it from the fields of lines of this form."""
    predictor = Predictor(load_checkpoint(checkpoint))
    return predictor, LineReader(predictor.task, predictor.settings, form)


def labels(run: Path, split: str = "dev") -> list[str]:
    """What the run itself predicted."""
    lines = (run / "predictions" / f"table-{split}.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[1] for line in lines]
