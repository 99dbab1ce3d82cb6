"""BLiMP's phenomena of runs beside what others print, in points (x 100)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt1_ds.report.runs import RunStory

PHENOMENA = {
    "anaphor_agreement": "anaphor agr.",
    "argument_structure": "arg. structure",
    "binding": "binding",
    "control_raising": "control, raising",
    "determiner_noun_agreement": "det.-noun agr.",
    "ellipsis": "ellipsis",
    "filler_gap_dependency": "filler-gap",
    "irregular_forms": "irregular forms",
    "island_effects": "island effects",
    "npi_licensing": "NPI licensing",
    "quantifiers": "quantifiers",
    "subject_verb_agreement": "subj.-verb agr.",
}
# The baselines of BabyLM 2023, strict-small: trained on 10 million words (README of babylm/evaluation-pipeline-2023)
BABYLM: Mapping[str, tuple[float, ...]] = {
    "OPT-125m": (63.8, 70.6, 67.1, 66.5, 78.5, 62.0, 63.8, 67.5, 48.6, 46.7, 59.6, 56.9),
    "RoBERTa-base": (81.5, 67.1, 67.3, 67.9, 90.8, 76.4, 63.5, 87.4, 39.9, 55.9, 70.5, 65.4),
    "T5-base": (68.9, 63.8, 60.4, 60.9, 72.2, 34.4, 48.2, 77.6, 45.6, 47.8, 61.2, 65.0),
}
# Warstadt et al. 2020, table 3 as corrected in the data's repository: the mean over the 67 paradigms
BLIMP: Mapping[str, float] = {
    "5-gram": 61.2,
    "LSTM": 69.8,
    "Transformer-XL": 69.6,
    "GPT-2 large": 81.5,
    "people": 88.6,
}
NOTE = (
    "A pair is right where the good sentence is the likelier one; the mean is that of the 12 phenomena, with its 95 % "
    "interval. Rows in italics are printed: models of 125 to 220 million parameters on BabyLM's 10 million words "
    "(2023), and by Warstadt et al. (2020) models of other sizes on other text, as the mean over 67 paradigms."
)


@dataclass(frozen=True)
class Line:
    name: str
    mean: str
    phenomena: list[str]  # in the order of PHENOMENA; empty text where none is known
    printed: bool = False  # by others


def lines(stories: Sequence[RunStory]) -> list[Line]:
    """Returns the last checkpoint of each run that was asked, its control, chance, and what others print; none of no
    run.
    """
    found = [line for story in stories for line in _of_run(story)]
    if not found:
        return []
    others = [Line(f"{name}, BabyLM", f"{sum(row) / len(row):.1f}", _texts(row), True) for name, row in BABYLM.items()]
    others += [Line(f"{name}, BLiMP's paper", f"{mean:.1f}", _nothing(), True) for name, mean in BLIMP.items()]
    return [*found, Line("chance", "50.0", ["50.0"] * len(PHENOMENA)), *others]


def _of_run(story: RunStory) -> list[Line]:
    record: Mapping[str, Any] = story.probes.get("blimp", [{}])[-1]
    if not record.keys() >= PHENOMENA.keys():
        return []
    name = f"{story.name}, step {record['step']:,}"
    line = Line(name, _mean(record, "accuracy"), _texts([100 * record[key] for key in PHENOMENA]))
    control = [Line("its control", _mean(record, "control", "control_"), _nothing())] if "control" in record else []
    return [line, *control]


def _mean(record: Mapping[str, Any], key: str, of: str = "") -> str:
    """Returns the mean with its interval; an older program wrote none for controls."""
    ends = [100 * record[end] for end in (f"{of}low", f"{of}high") if end in record]
    return f"{100 * record[key]:.1f}" + (" ({:.1f} to {:.1f})".format(*ends) if ends else "")


def _texts(points: Sequence[float]) -> list[str]:
    return [f"{value:.1f}" for value in points]


def _nothing() -> list[str]:
    return [""] * len(PHENOMENA)
