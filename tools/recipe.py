"""Which recipe teaches a small GPT-1 the most for its FLOPs? A search of a fixed length, one stage after another.

    python tools/recipe.py FOLDER_OF_NOVELS OUT [--flops 4.4e13] [--ranks 2]

Every trial trains with the same FLOPs, so that a larger model sees less text, and is scored by bits per byte
of the whole held-out text, whatever its tokenizer. A stage keeps its best trial for those that follow.
Writes OUT/ngrams.csv, what counting words makes of the same text, then trials.csv and trials.png after each trial.
About two hours on two cores; the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.architecture.count import parameters, training_flops_per_token
from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.config import Config, load
from gpt1_ds.scaling.tables import write_table
from tools.mistakes import told

PRESET = "pretrain/books_cpu"
VOCABULARIES = (8000, 4000, 16000)  # the first until the stage of vocabularies
BASE = {
    "train.precision": "fp32",
    "train.eval_every": 0,
    "train.eval_batches": 1,
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
}
RATES = {4: (4e-4, 8e-4, 1.6e-3), 8: (4e-4, 8e-4, 1.6e-3)}  # of each batch
Trial = dict[str, Any]
# The last stage has larger models, which see less text: they are compared with one another alone.
STAGES: dict[str, list[Trial]] = {
    "batch and rate": [
        {"train.global_batch": batch, "optimizer.lr": rate} for batch, rates in RATES.items() for rate in rates
    ],
    "optimizer": [{"optimizer.name": "muon", "optimizer.lr": rate} for rate in (8e-4, 1.6e-3, 3.2e-3)],
    "vocabulary": [{"data.path": f"data/{size}"} for size in VOCABULARIES[1:]],
    "context": [{"model.context": 128}],
    "dropout": [{f"model.{where}_dropout": 0.1 for where in ("residual", "embedding", "attention")}],
    "weight decay": [{"optimizer.weight_decay": 0.1}],
    "shape of 10 M parameters": [
        {"model.layers": layers, "model.width": width, "model.heads": width // 32}
        for layers, width in ((4, 384), (6, 320), (10, 256))
    ],
}


@dataclass
class Search:
    out: Path
    flops: float
    ranks: int
    kept: Trial = field(default_factory=lambda: {"data.path": f"data/{VOCABULARIES[0]}"})
    best: float = float("inf")
    rows: list[dict[str, Any]] = field(default_factory=list)
    ngrams: list[dict[str, Any]] = field(default_factory=list)

    def count(self) -> None:
        """The held-out loss of n-grams, counted in all of the training text, which is more than a trial sees."""
        dataset = f"data/{VOCABULARIES[0]}"
        self.call("data", "ngrams", dataset)
        scores = json.loads((self.out / dataset / "ngrams.json").read_text())
        self.ngrams = [{"order": score["order"], "bits_per_byte": round(score["bits_per_byte"], 4)} for score in scores]
        write_table(self.out / "ngrams.csv", self.ngrams[0], self.ngrams)

    def stage(self, name: str, trials: list[Trial]) -> None:
        scores = [(self.trial(name, trial), trial) for trial in trials]
        place, (lowest, chosen) = min(enumerate(scores), key=lambda one: one[1][0])
        if lowest < self.best or "shape" in name:  # larger models are compared with one another: they see less text
            self.best = lowest
            self.kept |= chosen
            self.rows[place - len(trials)]["kept"] = True
            self.write()

    def trial(self, stage: str, changes: Trial) -> float:
        """Bits per byte of the held-out text after training with the FLOPs of every trial."""
        settings = BASE | self.kept | changes
        rows = settings.get("train.global_batch", 8) // self.ranks
        settings["train.micro_batch"] = min(4, rows)  # a batch of 4 is 2 rows for each of two ranks
        name = "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in (self.kept | changes).items())
        keys = [f"{key}={value}" for key, value in settings.items()] + [f"run.name={name.replace('/', '-')}"]
        config = load([PRESET], keys)
        tokens = self.tokens(config)
        run = self.out / "runs" / config.run.name
        if not (run / "eval.json").exists():
            self.call("pretrain", "-c", PRESET, *keys, f"train.tokens={tokens}", "--nproc", str(self.ranks))
            self.call("evaluate", "--checkpoint", str(run.relative_to(self.out)), "--nproc", str(self.ranks))
        steps = [row for row in read_jsonl(run / "metrics.jsonl") if row["kind"] == "train"]
        (held_out,) = json.loads((run / "eval.json").read_text())
        score = float(held_out["metrics"]["bits_per_byte"])
        self.rows.append(
            {
                "stage": stage,
                **{key: config_value(config, key) for stage in STAGES.values() for trial in stage for key in trial},
                "parameters": parameters(config.model, vocabulary(self.out, config)),
                "tokens": steps[-1]["tokens"],
                "tokens_per_second": round(sum(row["tokens_per_second"] for row in steps[1:]) / len(steps[1:])),
                "bits_per_byte": round(score, 4),
                "kept": False,
            }
        )
        self.write()
        return score

    def write(self) -> None:
        write_table(self.out / "trials.csv", self.rows[0], self.rows)
        draw(self.rows, self.ngrams, self.out / "trials.png")

    def tokens(self, config: Config) -> int:
        """As many whole batches as the FLOPs allow."""
        batch = config.train.global_batch * config.model.context
        return round(self.flops / training_flops_per_token(config, vocabulary(self.out, config)) / batch) * batch

    def call(self, *words: str) -> None:
        print("$ gpt1-ds", *words, flush=True)
        subprocess.run([sys.executable, "-P", "-m", "gpt1_ds", *words], cwd=self.out, check=True)


def draw(rows: list[dict[str, Any]], ngrams: list[dict[str, Any]], path: Path) -> None:
    """Every trial, stage by stage, beside what it changes, and counted words as lines; lower is better."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(7, 0.6 + 0.3 * len(rows)))).subplots()
    for place, row in enumerate(reversed(rows)):
        score, color = row["bits_per_byte"], f"C{[*STAGES].index(row['stage'])}"
        axes.plot(score, place, "o", color=color, markersize=9 if row["kept"] else 5)
        axes.annotate(f"{score:.3f}", (score, place), (8, 0), textcoords="offset points", va="center", fontsize=8)
    for one, style in zip(ngrams, (":", "--", "-"), strict=True):
        name = f"counted {one['order']}-grams {one['bits_per_byte']:.3f}"
        axes.axvline(one["bits_per_byte"], color="0.45", ls=style, lw=1.2, label=name)
    axes.legend(loc="lower right", bbox_to_anchor=(0.9, 0.05), fontsize=8)
    labels = [f"{row['stage']}: {changed(row)}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.set_xlabel("bits per byte of held-out text (lower is better; large: kept for what follows)")
    axes.margins(x=0.15)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def changed(row: dict[str, Any]) -> str:
    """What a trial's stage is about."""
    keys = dict.fromkeys(key for trial in STAGES[row["stage"]] for key in trial)
    names = {
        "data.path": "dataset",
        "model.residual_dropout": "dropout",
        "model.embedding_dropout": "",
        "model.attention_dropout": "",
    }
    shown = {names.get(key, key.rpartition(".")[2]): row[key] for key in keys}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if name)


def config_value(config: Config, key: str) -> Any:
    section, name = key.split(".")
    value = getattr(getattr(config, section), name)
    return value[0].path if key == "data.path" else value


def vocabulary(out: Path, config: Config) -> int:
    description = json.loads((out / config.data.path[0].path / "dataset.json").read_text())
    return int(description["tokenizer"]["vocab_size"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--flops", type=float, default=4.4e13, help="of each trial; 2 M tokens of the preset")
    parser.add_argument("--ranks", type=int, default=2)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    search = Search(words.out.resolve(), words.flops, words.ranks)
    books = str(words.books.resolve())
    for size in VOCABULARIES:
        if not (search.out / f"tok/{size}").exists():
            search.call(
                "tokenizer", "train", "--input", books, "--out", f"tok/{size}", "--vocab-size", str(size), "--unwrap"
            )
        make = ("--input", books, "--tokenizer", f"tok/{size}", "--out", f"data/{size}", "--unwrap")
        search.call("data", "build", *make, "--validation", "0.02")
    search.count()
    for name, trials in STAGES.items():
        search.stage(name, trials)
        print(f"{name}: {search.best:.4f} bits per byte with {search.kept}", flush=True)


if __name__ == "__main__":
    with told():
        main()
