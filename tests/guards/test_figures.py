"""What the README and the guides say was measured has a row in tools/results/figures.csv: the command that makes it
again, and the file with the rows that it sums up.
"""

import csv
import re
from pathlib import Path

import pytest

from gpt1_ds.config import load
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS
from gpt1_ds.plan.memory import memory
from gpt1_ds.scaling.tables import read_table
from gpt1_ds.tasks.controls import CONTROLS
from tools.paper_tables import COLUMNS, tables

ROOT = Path(__file__).parents[2]
VOCABULARY = 40482  # GPT-1's, with four rows for control symbols
with (ROOT / "tools/results/figures.csv").open(newline="") as file:
    FIGURES = list(csv.DictReader(file))


STUDIES = [
    ROOT / "tools/results" / study / f"{name}.md"
    for study in ("claims", "books_10m", "grid")
    for name in ("README", "DETAILS")
]
STUDIES += [
    ROOT / f"tools/results/{study}/README.md" for study in ("books_10m/two_texts", "bert_ablation", "roberta_inputs")
]
CONTROL = ("control", "control_low", "control_high")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: f"{Path(row['page']).stem}: {row['figure'][:40]}")
def test_a_figure_stands_on_its_page_and_can_be_made_again(row: dict[str, str]) -> None:
    assert words(row["figure"]) in words((ROOT / row["page"]).read_text())
    program, *arguments = row["command"].split()
    assert program in ("bash", "python", "pytest", "gpt1-ds")
    if program != "gpt1-ds":
        assert (ROOT / arguments[0]).exists(), row["command"]
    if row["table"]:
        with (ROOT / row["table"]).open(newline="") as file:
            assert sum(1 for _ in csv.reader(file)) > 1
    else:
        assert row["recorded"] or row["command"].startswith(("pytest ", "gpt1-ds plan ")), "the same at any time"


@pytest.mark.parametrize("row", [row for row in FIGURES if row["table"].endswith(("comparisons.csv", "probes.csv"))])
def test_a_figure_of_scores_is_in_its_table(row: dict[str, str]) -> None:
    with (ROOT / row["table"]).open(newline="") as file:
        cells = [cell for line in csv.reader(file) for cell in line if re.fullmatch(r"-?\d+\.\d+", cell)]
    scale = 100 if row["table"].endswith("probes.csv") else 1
    measured = {f"{scale * float(cell):.1f}" for cell in cells}
    assert set(re.findall(r"-?\d+\.\d\b", row["figure"])) <= measured


def test_every_number_that_the_readme_calls_measured_has_a_row() -> None:
    proven = (ROOT / "README.md").read_text().partition("## What is proven")[2].partition("\n## ")[0]
    measured = [line.split("|")[2] for line in proven.splitlines() if line.startswith("|")]
    figures = " ".join(row["figure"] for row in FIGURES if row["page"] == "README.md")
    for cell in measured[2:]:
        for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", cell):
            assert number in figures, f"{cell.strip()}: {number}"


def test_the_guide_shows_every_layout_as_measured() -> None:
    guide = (ROOT / "gpt1_ds/guides/concepts.md").read_text().partition("| layout | ranks |")[2]
    table = re.findall(r"^\| ([\w ]+) \| (\d) \| (\S+) \| (\S+) \| (\S+) \|$", guide, re.MULTILINE)
    with (ROOT / "tools/results/layouts.csv").open(newline="") as file:
        measured = [
            (row["layout"], row["ranks"], *(f"{float(row[name]):.1e}" for name in ("loss", "norm", "weights")))
            for row in csv.DictReader(file)
        ]
    assert table[: len(measured)] == measured
    assert words(f"layouts agree ({len(measured)} layouts") in words((ROOT / "README.md").read_text())


def test_the_search_for_a_recipe_is_told_as_measured() -> None:
    told = (ROOT / "tools/results/recipe/README.md").read_text().partition("| stage |")[2].partition("\n\n")[0]
    with (ROOT / "tools/results/recipe/trials.csv").open(newline="") as file:
        trials = [(float(row["bits_per_byte"]), row["kept"] == "True") for row in csv.DictReader(file)]
    for best, figure in re.findall(r"(\*\*[^|;,*]*)?\b(\d\.\d{3})\b", told):
        kept = [is_kept for score, is_kept in trials if abs(score - float(figure)) < 5.1e-4]
        assert kept == [bool(best)], figure


def test_the_table_of_tasks_is_told_as_measured() -> None:
    results = ROOT / "tools/results/books_10m"
    told = (ROOT / "gpt1_ds/guides/task-results.md").read_text().partition("finetune/study/books_10m`")[2]
    measured = (results / "table.md").read_text().splitlines()
    named = ("full", "no pre-training", "frozen features", *CONTROLS)
    rows = re.findall(rf"^\| (?:{'|'.join(named)}) .*\|$", told, re.MULTILINE)
    assert len(rows) == len(named)
    assert set(rows) <= set(measured)
    faithful = (ROOT / "configs/FAITHFUL.md").read_text()
    assert tables(read_table(results / "results.csv", COLUMNS)) in faithful, "python tools/paper_tables.py RESULTS.csv"


def test_the_large_model_is_told_as_planned() -> None:
    """Every row of the guide's table, and Muon's share of a step."""
    guide = (ROOT / "gpt1_ds/guides/large-models.md").read_text()
    (command,) = re.findall(
        r"^gpt1-ds plan (.*?) --world 512 --machine h100 --search$", guide, re.MULTILINE | re.DOTALL
    )
    shape = [word for word in command.replace("\\\n", " ").split() if "=" in word]
    rows = re.findall(r"^\| \**([^|*]*\bdata \d+[^|*]*)\** \| (\d) \| (\d+)[^|]* \| (.*) \|$", guide, re.MULTILINE)
    assert len(rows) == 6
    for layout, zero, micro_batch, told in rows:
        sizes = dict(re.findall(r"(tensor|pipeline) (\d)", layout))
        keys = [f"parallel.{name}={size}" for name, size in sizes.items()]
        keys += [f"parallel.zero={zero}", f"train.micro_batch={micro_batch}", "train.compile=on"]
        config = load(["pretrain/gpt1_117m"], [*shape, *keys, f"parallel.sequence={str('sequence' in layout).lower()}"])
        costs, ranks = cost(config, 512, VOCABULARY, PRESETS["h100"]), memory(config, 512, VOCABULARY, "cuda")
        peak, host = (max(getattr(rank, name) for rank in ranks) / 2**30 for name in ("peak", "host"))
        planned = f"{costs.step:.2f} s | {100 * costs.mfu:.1f} % | {peak:.1f} GiB | {host:.1f} GiB a rank"
        assert told == f"{planned}, {8 * host:.0f} a node", layout
    muon = [
        load(["pretrain/gpt1_117m"], ["optimizer.name=muon", f"train.micro_batch={64 // world}"]) for world in (1, 8)
    ]
    alone, eight = (
        cost(config, world, VOCABULARY, PRESETS["h100"]) for config, world in zip(muon, (1, 8), strict=True)
    )
    told = words((ROOT / "gpt1_ds/guides/pretraining.md").read_text())
    shares = [f"{1000 * one.update:.0f} of {1000 * one.step:.0f} ms" for one in (alone, eight)]
    assert f"the update is {shares[0]}, on eight {shares[1]}" in told


@pytest.mark.parametrize(
    ("table", "probes"), [("probes.csv", ("blimp", "cola", "next_sentence")), ("roberta_probes.csv", ("blimp", "cola"))]
)
def test_zero_shot_scores_are_told_as_measured(table: str, probes: tuple[str, ...]) -> None:
    told = (ROOT / "tools/results/books_10m/README.md").read_text()
    with (ROOT / "tools/results/books_10m" / table).open(newline="") as file:
        last = {row["probe"]: row for row in csv.DictReader(file)}
    for probe in probes:
        points = {key: f"{100 * float(value):.1f}" for key, value in last[probe].items() if re.match(r"0\.\d", value)}
        cells = [
            f"{points[key]} ({points[low]} to {points[high]})" if low in points else points[key]
            for key, low, high in (("score", "low", "high"), ("control", "control_low", "control_high"))
        ]
        assert f"| {' | '.join(cells)} |" in told


def test_remedies_are_told_as_measured() -> None:
    results = ROOT / "tools/results/books_10m"
    told = (results / "two_texts/README.md").read_text()
    with (results / "two_texts/comparisons.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            difference, low, high = (float(row[name]) for name in ("difference", "low", "high"))
            assert f"{difference:+.1f} ({low:.1f} to {high:.1f})" in told, row
    table = (results / "two_texts/table.md").read_text()
    scores = re.findall(r"\d+\.\d ± \d+\.\d", told)
    assert len(scores) == 5
    assert all(score in table for score in scores)


@pytest.mark.parametrize("page", STUDIES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_interval_of_a_study_is_told_as_measured(page: Path) -> None:
    """A number with an interval, `1.8 (0.6 to 3.0)` or `+1.8, 0.6 to 3.0`, stands in a table of the study."""
    measured = {ends for file in page.parent.rglob("*.csv") for ends in _intervals(file)}
    for file in page.parent.rglob("table.md"):
        measured |= set(re.findall(r"\| (\d+\.\d|-\d+\.\d) \| (-?\d+\.\d) to (-?\d+\.\d) \|", file.read_text()))
    told = re.findall(r"\+?(-?\d+\.\d)(?: points)?(?: \(|, )(-?\d+\.\d) to (-?\d+\.\d)", words(page.read_text()))
    assert told
    assert set(told) <= measured


def _intervals(file: Path) -> set[tuple[str, ...]]:
    """Returns the rounded numbers of the lines that have a value and the two ends of its interval."""
    found = set()
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            scale = 100 if "score" in row else 1  # of probes, whose scores are fractions
            for names in (("difference", "low", "high"), ("last", "low", "high"), ("score", "low", "high"), CONTROL):
                if all(row.get(name) for name in names):
                    found.add(tuple(f"{scale * float(row[name]):.1f}" for name in names))
    return found


def test_claims_are_told_as_measured() -> None:
    results = ROOT / "tools/results/claims"
    told = (results / "README.md").read_text()
    details = (results / "DETAILS.md").read_text()
    measured = [
        row for file in results.glob("*/comparisons.csv") for row in csv.DictReader(file.read_text().splitlines())
    ]
    deciding = [row for row in measured if row["task"] in ("average", "per doubling")]
    assert deciding
    for row in deciding:
        difference, low, high = (float(row[name]) for name in ("difference", "low", "high"))
        ends = rf"\{difference:+.1f}(?:\D* \(|, ){low:.1f} to {high:.1f}"
        assert re.search(ends, words(told if row["expect"] else details)), row
    tables = " ".join(file.read_text() for file in results.glob("*/table.md"))
    for score in re.findall(r"\d+\.\d ± \d+\.\d", told + details):
        assert score in tables
    for file in results.glob("zeroshot/ends.csv"):
        for row in csv.DictReader(file.read_text().splitlines()):
            score, low, high = (float(row[name]) for name in ("last", "low", "high"))
            assert f"{score:.1f} ({low:.1f} to {high:.1f})" in told, row
    with (results / "zeroshot/probes.csv").open(newline="") as file:
        losses = [row for row in csv.DictReader(file) if row["probe"] == "held_out"]
    for model in ("GPT-1", "LSTM"):
        last = {row["run"]: f"{float(row['score']):.2f}" for row in losses if row["model"] == model}
        assert f"| {model} | {', '.join(last.values())} |" in told
    with (results / "rates.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert f"{float(row['held-out loss']):.2f}" in details.partition("## B.")[2].partition("\n## ")[0], row
