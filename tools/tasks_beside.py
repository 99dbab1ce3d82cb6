"""Fine-tunes a model on a task with this program and with transformers' own loop, seed by seed.

    python tools/tasks_beside.py --model HF_FOLDER --data xquad=data/xquad --data wnut17=data/wnut17
        --work WORK --out OUT [--seeds 1 2 3] [--epochs 3] [--examples N] [--rate 5e-5]
    python tools/tasks_beside.py --model T5_FOLDER --data multi30k=data/multi30k ...

HF_FOLDER is an encoder, T5_FOLDER an encoder-decoder, and tools/untrained_t5.py makes one that was never trained. Both
programs begin with its weights, read the same examples, batches of like lengths, at the same rate, batch, epochs and
dropout, and keep the epoch that is best on dev; what is scored is the test set where it is labelled, else dev. A run
that is there in WORK is left, so that the same command continues. OUT/results.csv has every run; OUT/table.md the means
over seeds and ours less theirs, with the 95 % interval that joins seeds and examples; of sentences also the scores of
simple rules, fitted on the same examples. Takes hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.common.errors import ArgumentError
from gpt1_ds.config import TaskConfig, load
from gpt1_ds.scaling.tables import write_table
from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.comparison import estimate
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.metrics import control_scores, measure, read_submission, submission_name
from gpt1_ds.tasks.reading import TaskData, read_task
from gpt1_ds.tasks.token_metrics import objects
from tools.mistakes import told

PRESETS = {
    **{"xquad": "squad", "wnut17": "conll2003", "ewt_pos": "pos", "multi30k": "translation"},
    **{name: name for name in ("sst2", "snli", "stsb", "mrpc", "rte")},
}
BATCH = {"translation": 64}
USUAL = 32
LONGEST = {"squad": 384, "translation": 64}  # tokens of a row
USUAL_LENGTH = 128
TEXTS = {  # of both programs; a prefix would tell a model that knows one task nothing
    **{"task.prefix": "", "task.target_length": LONGEST["translation"], "task.decoding.beams": 4},
    **{"task.decoding.length_penalty": "plain", "task.decoding.length_alpha": 1.0},
    **{"task.dev": "[val.en]", "task.test": "[test_2016_flickr.en]"},
}
WRITTEN = 256  # texts of dev that are written at each epoch
ANSWER, BEST = 30, 20  # tokens of an answer; begins and ends that are combined, as in transformers' example of SQuAD
OURS, THEIRS = "gpt1-ds", "transformers"
PANELS = 4  # of a line of the figure


def extra(preset: str) -> list[str]:
    return [f"{key}={value}" for key, value in TEXTS.items()] if preset == "translation" else []


def read(preset: str, path: str, examples: int | None) -> tuple[TaskConfig, TaskData]:
    words = [f"task.path={path}", *([f"task.train_examples={examples}"] if examples else []), *extra(preset)]
    task = load([f"finetune/{preset}"], words).task
    assert task is not None
    return task, read_task(task)


def ours(preset: str, run: Path, seed: int, options: argparse.Namespace, path: str) -> list[Any]:
    """The answers of a run of this program to what is scored."""
    words = [
        *(f"checkpoint.init_from={options.work / 'imported'}", f"task.path={path}", f"run.dir={run.parent}"),
        *(f"run.name={run.name}", f"run.seed={seed}", f"train.epochs={options.epochs}", f"optimizer.lr={options.rate}"),
        *(f"train.global_batch={BATCH.get(preset, USUAL)}", f"task.max_length={longest(preset)}", "checkpoint.keep=1"),
        *("schedule.kind=linear", "schedule.warmup_steps=null", "schedule.warmup_fraction=0.1", *extra(preset)),
        *("optimizer.name=adamw", "optimizer.weight_decay=0.01", "optimizer.clip=1"),
        *(f"model.{kind}_dropout=0.1" for kind in ("residual", "embedding", "attention")),
        *(["model.ffn_dropout=0.1", f"task.decoded_examples={WRITTEN}"] if preset == "translation" else []),
        *([f"task.train_examples={options.examples}"] if options.examples else []),
    ]
    program = [sys.executable, "-P", "-m", "gpt1_ds", "finetune", "-c", f"finetune/{preset}", *words]
    subprocess.run(program, check=True, cwd=Path(__file__).parents[1])
    data = read(preset, path, options.examples)[1]
    name = submission_name(data.task.name, scored(data), data.task.submission)
    values: list[Any] = [*read_submission(run / "predictions" / name).values()]
    if preset in ("conll2003", "pos"):
        return [one.split(" ") for one in values]
    if preset in LONGEST:
        return values
    return [data.task.labels.index(one) if data.task.labels else float(one) for one in values]


def theirs(data: TaskData, preset: str, seed: int, options: argparse.Namespace) -> list[Any]:
    """The answers of transformers' Trainer to what is scored, after the epoch that is best on dev."""
    import transformers

    spelled = transformers.AutoTokenizer.from_pretrained(options.model)
    rows: Rows
    if preset == "squad":
        rows = Spans(spelled, longest(preset))
    elif preset == "translation":
        rows = Texts(spelled, longest(preset))
    elif preset in ("conll2003", "pos"):
        rows = Tags(spelled, longest(preset), data.task.labels)
    else:
        rows = Sentences(spelled, longest(preset), data.task)
    transformers.set_seed(seed)
    labels = {"num_labels": max(1, len(data.task.labels))} if isinstance(rows, (Tags, Sentences)) else {}
    model = getattr(transformers, rows.kind).from_pretrained(options.model, **labels)
    dev = data.splits["dev"][:WRITTEN] if preset == "translation" else data.splits["dev"]
    best: list[Any] = [-1.0, None]

    class Scored(transformers.TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            value = score(data.task, dev, rows.answers(dev, trainer))
            print(f"{preset} seed {seed}: {value:.4f}", flush=True)
            if value > best[0]:
                best[:] = [value, {name: part.clone() for name, part in model.state_dict().items()}]
            model.train()

    batch = BATCH.get(preset, USUAL)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(options.work / "trainer"), learning_rate=options.rate, num_train_epochs=options.epochs,
            per_device_train_batch_size=batch, per_device_eval_batch_size=batch, lr_scheduler_type="linear",
            warmup_steps=0.1, weight_decay=0.01, seed=seed, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True, dataloader_drop_last=True, remove_unused_columns=False,
            train_sampling_strategy="group_by_length",
        ),
        train_dataset=rows.inputs(data.splits["train"]),
        data_collator=rows.collate,
        callbacks=[Scored()],
    )  # fmt: skip
    trainer.train()
    model.load_state_dict(best[1])
    return rows.answers(data.splits[scored(data)], trainer)


def scored(data: TaskData) -> str:
    """The split whose answers are compared."""
    return "test" if "test" in data.splits and data.splits["test"][0].is_labelled else "dev"


def longest(preset: str) -> int:
    return LONGEST.get(preset, USUAL_LENGTH)


class Rows(ABC):
    """How transformers reads the examples of a task: `kind` is its class of models, `collate` makes a batch."""

    kind: str
    collate: Any

    @abstractmethod
    def inputs(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Returns the rows to train on or to predict."""

    @abstractmethod
    def answers(self, examples: Sequence[Example], trainer: Any) -> list[Any]:
        """Returns the trained model's answer to each example."""

    def predicted(self, examples: Sequence[Example], trainer: Any) -> Any:
        """Returns the logits of every row, in order. Trainer would drop and sort these rows as it does in training."""
        trainer.args.dataloader_drop_last = False
        trainer.args.train_sampling_strategy = "random"
        return trainer.predict(self.inputs(examples)).predictions


class Texts(Rows):
    """A source that is read and a target that is written, as transformers' example of translation does."""

    kind = "AutoModelForSeq2SeqLM"

    def __init__(self, spelled: Any, longest: int) -> None:
        import transformers

        self.spelled, self.longest = spelled, longest
        self.collate = transformers.DataCollatorForSeq2Seq(spelled, model=None)

    def inputs(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """The model shifts the labels to the right itself."""
        return [
            dict(self.spelled(one.texts[0], text_target=one.targets[0], truncation=True, max_length=self.longest))
            for one in examples
        ]

    def answers(self, examples: Sequence[Example], trainer: Any) -> list[Any]:
        import torch

        found: list[Any] = []
        trainer.model.eval()
        for start in range(0, len(examples), 32):
            texts = [example.texts[0] for example in examples[start : start + 32]]
            rows = self.spelled(texts, truncation=True, max_length=self.longest, padding=True, return_tensors="pt")
            with torch.no_grad():
                written = trainer.model.generate(
                    **rows, num_beams=4, length_penalty=1.0, early_stopping=False, max_new_tokens=self.longest
                )
            found += self.spelled.batch_decode(written, skip_special_tokens=True)
        return found


class Sentences(Rows):
    """One text or two, with a class or a score."""

    kind = "AutoModelForSequenceClassification"

    def __init__(self, spelled: Any, longest: int, task: Task) -> None:
        import transformers

        self.collate = transformers.DataCollatorWithPadding(spelled)
        self.spelled, self.longest, self.task = spelled, longest, task

    def inputs(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """A model of one label learns it by its squared error."""
        gold = self.task.gold(examples).tolist()
        return [
            {**self.spelled(*one.texts, truncation=True, max_length=self.longest), "labels": right}
            for one, right in zip(examples, gold, strict=True)
        ]

    def answers(self, examples: Sequence[Example], trainer: Any) -> list[Any]:
        logits_NK = self.predicted(examples, trainer)
        return list((logits_NK[:, 0] if self.task.has_scores else logits_NK.argmax(1)).tolist())


class Tags(Rows):
    """Sentences as BERT's authors tag them: the first piece of a word counts."""

    kind = "AutoModelForTokenClassification"

    def __init__(self, spelled: Any, longest: int, labels: Sequence[str]) -> None:
        import transformers

        self.collate = transformers.DataCollatorForTokenClassification(spelled)
        self.spelled, self.longest, self.labels = spelled, longest, labels

    def inputs(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        return [self._row(example)[0] for example in examples]

    def _row(self, example: Example) -> tuple[dict[str, Any], list[int]]:
        """(what the model reads, the place of each word that is in it)"""
        row = self.spelled([*example.texts], is_split_into_words=True, truncation=True, max_length=self.longest)
        words = row.word_ids()
        places = [words.index(word) for word in range(len(example.texts)) if word in words]
        labels = [-100] * len(words)
        for tag, place in zip(example.tags, places, strict=False):
            labels[place] = self.labels.index(tag)
        return {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"], "labels": labels}, places

    def answers(self, examples: Sequence[Example], trainer: Any) -> list[Any]:
        logits_NTO = self.predicted(examples, trainer)
        missing = "O" if "O" in self.labels else self.labels[0]
        found = []
        for example, logits_TO in zip(examples, logits_NTO, strict=True):
            places = self._row(example)[1]
            tags = [self.labels[int(logits_TO[place].argmax())] for place in places]
            found.append([*tags, *[missing] * (len(example.texts) - len(tags))])
        return found


class Spans(Rows):
    """Questions as transformers' example of SQuAD reads them."""

    kind = "AutoModelForQuestionAnswering"

    def __init__(self, spelled: Any, longest: int) -> None:
        import transformers

        self.collate = transformers.DataCollatorWithPadding(spelled)
        self.spelled, self.longest = spelled, longest

    def _rows(self, example: Example) -> Any:
        return self.spelled(
            *example.texts, truncation="only_second", max_length=self.longest, stride=128,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip

    def inputs(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        found = []
        for example in examples:
            rows = self._rows(example)
            for number, offsets in enumerate(rows["offset_mapping"]):
                sides, first, last = rows.sequence_ids(number), 0, 0
                if example.answers:
                    text, start = example.answers[0]
                    inside = [
                        at for at, (a, b) in enumerate(offsets)
                        if sides[at] == 1 and a < start + len(text) and b > start
                    ]  # fmt: skip
                    whole = inside and offsets[inside[0]][0] <= start and offsets[inside[-1]][1] >= start + len(text)
                    first, last = (inside[0], inside[-1]) if whole else (0, 0)
                row = {
                    key: rows[key][number] for key in ("input_ids", "attention_mask", "token_type_ids") if key in rows
                }
                found.append({**row, "start_positions": first, "end_positions": last})
        return found

    def answers(self, examples: Sequence[Example], trainer: Any) -> list[Any]:
        start_NT, end_NT = self.predicted(examples, trainer)[:2]
        found, at = [], 0
        for example in examples:
            rows, best, text = self._rows(example), -np.inf, ""
            for number, offsets in enumerate(rows["offset_mapping"]):
                sides = rows.sequence_ids(number)
                for first in np.argsort(-start_NT[at])[:BEST].tolist():
                    for last in np.argsort(-end_NT[at])[:BEST].tolist():
                        legal = last < len(sides) and first < len(sides) and sides[first] == sides[last] == 1
                        if legal and first <= last < first + ANSWER and start_NT[at][first] + end_NT[at][last] > best:
                            best = start_NT[at][first] + end_NT[at][last]
                            text = example.texts[1][offsets[first][0] : offsets[last][1]]
                at += 1
            found.append(text)
        return found


def as_found(answers: Sequence[Any]) -> Any:
    if isinstance(answers[0], (int, float)):
        return np.array(answers)
    return objects([one if isinstance(one, str) else tuple(one) for one in answers])


def score(task: Task, examples: Sequence[Example], answers: Sequence[Any]) -> float:
    return float(measure(task.metrics[0], task.gold(examples), as_found(answers)) or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of transformers")
    parser.add_argument("--data", action="append", required=True, metavar="NAME=PATH", help=f"of {', '.join(PRESETS)}")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, help="of train (default: all)")
    parser.add_argument("--rate", type=float, default=5e-5)
    options = parser.parse_args()
    options.model, options.work = options.model.resolve(), options.work.resolve()  # this program runs elsewhere
    paths = {name: str(Path(path).resolve()) for name, _, path in (one.partition("=") for one in options.data)}
    if unknown := sorted(paths.keys() - PRESETS.keys()):
        raise ArgumentError(f"--data {', '.join(unknown)}: no such task; name some of {', '.join(PRESETS)}")
    tasks = {name: read(PRESETS[name], path, options.examples)[1] for name, path in paths.items()}
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / "imported").exists():
        words = ["checkpoint", "import", "--from", "hf", "--source", options.model, "--out", options.work / "imported"]
        subprocess.run(
            [sys.executable, "-P", "-m", "gpt1_ds", *map(str, words)], check=True, cwd=Path(__file__).parents[1]
        )
    found: dict[tuple[str, str, int], list[Any]] = {}
    for seed in options.seeds:
        for name, data in tasks.items():
            preset, path = PRESETS[name], paths[name]
            for side in (OURS, THEIRS):
                file = options.work / f"{name}-{side}-{seed}.json"
                if not file.exists():
                    run = options.work / "runs" / f"{name}-{seed}"
                    answers = (
                        ours(preset, run, seed, options, path) if side == OURS else theirs(data, preset, seed, options)
                    )
                    file.write_text(json.dumps(answers))
                found[name, side, seed] = json.loads(file.read_text())
            write(options.out, {other: tasks[other] for other, *_ in found}, found, {})
    rules = {}
    for name, data in tasks.items():
        file = options.work / f"{name}-rules.json"
        if not file.exists():
            file.write_text(json.dumps(simple_rules(data)))
        rules[name] = json.loads(file.read_text())
    write(options.out, tasks, found, rules)


def simple_rules(data: TaskData) -> dict[str, float]:
    """Rule -> its score, of tasks of sentences."""
    if data.task.reads_tokens or data.task.writes_text:
        return {}
    told = control_scores(data.task, data.task.controls(data.splits))
    wanted = scored(data), data.task.metrics[0]
    return {one.control: one.value for one in told if (one.split, one.metric) == wanted and one.value is not None}


def write(
    out: Path,
    tasks: dict[str, TaskData],
    found: dict[tuple[str, str, int], list[Any]],
    rules: dict[str, dict[str, float]],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"task": name, "loop": side, "seed": seed, "metric": tasks[name].task.metrics[0],
         "value": score(tasks[name].task, tasks[name].splits[scored(tasks[name])], answers)}
        for (name, side, seed), answers in found.items()
    ]  # fmt: skip
    told = [
        {"task": name, "loop": rule, "seed": "", "metric": tasks[name].task.metrics[0], "value": value}
        for name, values in rules.items()
        for rule, value in values.items()
    ]
    write_table(out / "results.csv", ["task", "loop", "seed", "metric", "value"], [*rows, *told])
    lines = [
        "| task | metric | seeds | gpt1-ds | transformers | difference | 95 % interval | best simple rule |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, data in tasks.items():
        seeds = [seed for other, side, seed in found if (other, side) == (name, THEIRS)]
        metric, gold = data.task.metrics[0], data.task.gold(data.splits[scored(data)])
        sides = [[as_found(found[name, side, seed]) for seed in seeds] for side in (OURS, THEIRS)]
        one = estimate(metric, gold, *sides)
        assert one is not None, "these scores are always defined"
        means = [100 * float(np.mean([measure(metric, gold, a) or 0 for a in answers])) for answers in sides]
        low, high = (100 * end for end in one.interval())
        shown = f"{means[0]:.1f} | {means[1]:.1f} | {100 * one.mean:+.1f} | {low:+.1f} to {high:+.1f}"
        best = max(rules.get(name, {}).items(), key=lambda rule: rule[1], default=None)
        rule = f"{100 * best[1]:.1f} ({best[0]})" if best else ""
        lines.append(f"| {name} | {metric} | {len(seeds)} | {shown} | {rule} |")
    (out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), flush=True)
    draw(out / "beside.png", rows)


def draw(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A panel for each task: a line of each seed from one loop's score to the other's."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns, rows_of_panels = min(len(tasks), PANELS), math.ceil(len(tasks) / PANELS)
    figure = Figure(figsize=(1 + 2.6 * columns, 3 * rows_of_panels), layout="constrained")
    for number, task in enumerate(tasks, 1):
        axes = figure.add_subplot(rows_of_panels, columns, number)
        mine = [row for row in rows if row["task"] == task]
        for seed in dict.fromkeys(row["seed"] for row in mine):
            values = {row["loop"]: 100 * row["value"] for row in mine if row["seed"] == seed}
            axes.plot(list(values), list(values.values()), marker="o", label=f"seed {seed}")
        axes.set(title=task, ylabel=f"{mine[0]['metric']} x 100", xlim=(-0.4, 1.4))
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    with told():
        main()
