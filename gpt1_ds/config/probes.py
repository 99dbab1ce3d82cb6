"""What a pre-trained model is asked without being trained for it: zero-shot probes, the paper's (Figure 2, right) and
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """A probe's score in figures: (score - chance) / (best - chance), so 0 is guessing and 1 is `best`."""

    metric: str  # the score that is drawn
    best: float
    source: str  # where `best` is from


_TABLE_3 = "GPT-1 fine-tuned, table 3 of the paper"
_TABLE_4 = "GPT-1 fine-tuned, table 4 of the paper"
_ALL = "every question right"
# The paper divides by the state of the art of 2018 and does not print it; these are its own results where it has some.
SCALES = {
    "cola": Scale("matthews", 0.454, _TABLE_4),
    "sst2": Scale("accuracy", 0.913, _TABLE_4),
    "race": Scale("accuracy", 0.590, _TABLE_3),
    "story_cloze": Scale("accuracy", 0.865, _TABLE_3),
    "cosmosqa": Scale("accuracy", 1.0, _ALL),
    "copa": Scale("accuracy", 1.0, _ALL),
    "wsc273": Scale("accuracy", 1.0, _ALL),
    "pdp": Scale("accuracy", 1.0, _ALL),
    "dprd": Scale("accuracy", 1.0, _ALL),
    "blimp": Scale("accuracy", 0.886, "people, Warstadt et al. 2020"),
    "lambada": Scale("accuracy", 1.0, _ALL),
    "next_sentence": Scale("accuracy", 1.0, _ALL),
}
PREFIX = "zero-shot/"  # of a probe's name as a task of eval.json


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    name: str = ""  # cola, sst2, race, story_cloze, cosmosqa, copa, wsc273, pdp, dprd, blimp, lambada, next_sentence
    path: str = ""  # folder of the official files, or one file; of next_sentence books, .txt
    limit: int | None = None  # ask this many questions only, the same ones of every checkpoint; null: all
    train_limit: int | None = None  # fit CoLA's threshold on this many training sentences; null: all
    template: str = ""  # ask any task in these words; {text}, {text2}: the example's; an answer follows; empty: none
    answers: list[str] = field(default_factory=list)  # of a template: what may follow, one for each class, in order
    title: str = ""  # its name in results; empty: the name, with a template NAME-template

    @property
    def shown(self) -> str:
        return self.title or (f"{self.name}-template" if self.template else self.name)


def problems(probes: Sequence[ProbeConfig]) -> Iterator[str]:
    """One line per problem of the whole list."""
    names = [probe.shown for probe in probes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"probes: {name} is there {names.count(name)} times; keep one of it, or give each a title"
    for probe in probes:
        if probe.template or probe.answers:
            yield from _template_problems(probe)
        elif probe.name not in SCALES:
            yield f"probes: name={probe.name} is no zero-shot probe; choose {', '.join(SCALES)}"
        if not probe.path:
            yield f"probes: {probe.name} has no path; name the folder that holds its files"
        for key in ("limit", "train_limit"):
            value = getattr(probe, key)
            if value is not None and value < 1:
                yield f"probes: {key}={value} of {probe.name} must be at least 1; leave it out to use all"


def _template_problems(probe: ProbeConfig) -> Iterator[str]:
    if "{text}" not in probe.template:
        yield f"probes: template={probe.template!r:.60} of {probe.name} has no {{text}}; write it where the text stands"
    if len(set(probe.answers)) < max(2, len(probe.answers)):
        yield f"probes: answers={probe.answers} of {probe.name} must be two or more different ones, one for each class"
