"""The paper's tables 2 to 5 with a study's scores below the printed ones, in Markdown.

    python tools/paper_tables.py RESULTS.csv

RESULTS.csv is that of a fine-tuning study whose rows have the paper's names (full, no pre-training, ...). Points, means
over seeds, of the splits that chose nothing (test, else a half of dev); the study's table.md has intervals. Empty
cells: not run, or no data without an account.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpt1_ds.report import paper
from gpt1_ds.scaling.tables import CsvRow, read_table
from gpt1_ds.tasks.controls import ALL_CONTROLS
from gpt1_ds.tasks.registry import SPECS
from tools.mistakes import told

COLUMNS = ("task", "variant", "seed", "split", "metric", "value")  # of the study's results.csv that count
UNSEEN = ("test", "half")  # the first of them that there is
MNLI = "MNLI, both"  # matched and mismatched: the mean of two splits, or one file that holds both
NLI = ("MNLI-m", "MNLI-mm", MNLI, "SNLI", "SciTail", "QNLI", "RTE")
CHOICES = ("Story Cloze", "RACE-m", "RACE-h", "RACE", "Cosmos QA", "COPA")
SINGLE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP")
ABLATED = (*SINGLE, MNLI, "QNLI", "RTE")
TASKS = {title: name for name, title in paper.TITLES.items()} | dict.fromkeys(("MNLI-m", "MNLI-mm", MNLI), "mnli")
# Radford et al. 2018, tables 2 to 4: the best printed before, and its own
PRINTED: Mapping[str, Mapping[str, float]] = {
    "the best before (paper)": {
        **dict(zip((name for name in NLI if name != MNLI), (80.6, 80.1, 89.3, 83.3, 82.3, 61.7), strict=True)),
        **dict(zip(CHOICES, (77.6, 60.2, 50.3, 53.3), strict=False)),
        **dict(zip(SINGLE, (35.0, 93.2, 86.0, 81.0, 66.1), strict=True)),
    },
    "the paper's transformer": {
        **dict(zip(NLI, (82.1, 81.4, 81.8, 89.9, 88.3, 88.1, 56.0), strict=True)),
        **dict(zip(CHOICES, (86.5, 62.9, 57.4, 59.0), strict=False)),
        **dict(zip(SINGLE, (45.4, 91.3, 82.3, 82.0, 70.3), strict=True)),
    },
}


def points(rows: Sequence[CsvRow], row: str, column: str) -> str:
    """Mean over seeds, x 100; empty where there is no score."""
    task = TASKS.get(column, "")
    wanted = {"task": task, "variant": row, "metric": SPECS[task].metrics[0] if task else ""}
    here = [one for one in rows if all(one.text(name) == value for name, value in wanted.items())]
    for split in UNSEEN:
        whole, mismatched = (_by_seed(here, split + ending) for ending in ("", "_mm"))
        found = {"MNLI-m": whole if mismatched else {}, "MNLI-mm": mismatched}.get(column, whole)
        if column == MNLI and mismatched:
            found = {seed: (whole[seed] + mismatched[seed]) / 2 for seed in whole.keys() & mismatched.keys()}
        if found:
            return f"{fmean(found.values()):.1f}"
    return ""


def _by_seed(rows: Sequence[CsvRow], split: str) -> dict[str, float]:
    values = {one.text("seed"): one.number("value") for one in rows if one.text("split") == split}
    return {seed: 100 * value for seed, value in values.items() if value is not None}


def table(
    title: str, columns: Sequence[str], printed: Mapping[str, Mapping[str, float]], rows: Sequence[CsvRow]
) -> str:
    """One table: what the paper prints in italics, then the study's rows, then the controls."""
    names = list(dict.fromkeys(one.text("variant") for one in rows))
    names.sort(key=ALL_CONTROLS.__contains__)  # last
    lines = [f"**{title}**", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, numbers in printed.items():
        cells = [f"*{numbers[column]}*" if column in numbers else "" for column in columns]
        lines.append(f"| *{name}* | {' | '.join(cells)} |")
    for name in names:
        if any(cells := [points(rows, name, column) for column in columns]):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tables(rows: Sequence[CsvRow]) -> str:
    ablations = {
        f"the paper: {name}": {paper.TITLES[task]: numbers[task] for task in paper.TASKS if task != "mnli"}
        | {MNLI: numbers["mnli"]}
        for name, numbers in paper.TABLE_5.items()
    }
    parts = [
        table("Table 2: natural language inference", NLI, PRINTED, rows),
        table("Table 3: questions with choices", CHOICES, PRINTED, rows),
        table("Table 4: one text, similarity", SINGLE, PRINTED, rows),
        table("Table 5: what each part is worth", ABLATED, ablations, rows),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    with told():
        print(tables(read_table(parser.parse_args().results, COLUMNS)))
