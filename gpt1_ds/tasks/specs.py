"""What the files of a task look like: a Spec. registry.py has those of the known tasks.

Names of columns and files are alternatives, tried in this order: GLUE's TSV, the authors' own release, the names that
the `datasets` library and common copies use, what `data fetch` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpt1_ds.tasks.base import Task
from gpt1_ds.tasks.hub_sets import SPLITS
from gpt1_ds.tasks.kinds import (
    Classification,
)
from gpt1_ds.tasks.superglue import Unfolding

Names = tuple[str, ...]


def files_of_splits(**splits: str) -> dict[str, tuple[Names, ...]]:
    """Returns the alternatives of each split. `a+b|c` means the files a and b, or else c; the last alternative is the
    file of JSON lines that `data fetch` writes.
    """
    files = {}
    for split, text in splits.items():
        alternatives = [tuple(alternative.split("+")) for alternative in text.split("|")]
        files[split] = tuple(dict.fromkeys((*alternatives, (f"{split}.jsonl",))))
    return files


def files_of_each_split(alternatives: str) -> dict[str, tuple[Names, ...]]:
    """Returns the same files for every split, whose name stands in the place of {0}."""
    return files_of_splits(**{split: alternatives.format(split) for split in ("train", "dev", "test")})


GLUE = files_of_each_split("{0}.tsv")
SUPERGLUE = files_of_splits(train="train.jsonl", dev="val.jsonl", test="test.jsonl")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A task before its files are read."""

    name: str
    task: type[Task] = Classification
    metrics: Names = ("accuracy",)
    text: tuple[Names, ...] = (("sentence1",), ("premise",), ("text_a",))  # alternatives; several: joined by a space
    text2: Names = ("sentence2", "hypothesis", "text_b")  # alternatives; none: a single text
    label: Names = ("label", "gold_label")
    choices: tuple[Names, ...] = ()  # alternatives; one name: a column that holds a list
    begin: Names = ()  # the column of what every choice begins with
    id: Names = ("index", "id", "pairID", "idx")
    group: Names = ()
    source_is_choices: bool = False  # what stays together when dev is held out: equal choices, not equal first texts
    labels: Names = ()  # none: found in the training files
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of the labels
    no_label: Names = ("-", "-1")  # annotators did not agree; nothing is known
    phrases: Mapping[str, str] = field(default_factory=dict)  # what a value of the second text's column stands for
    headerless: tuple[Names, ...] = ()  # columns of files whose first row is data
    files: Mapping[str, tuple[Names, ...]] = field(default_factory=lambda: GLUE)  # split -> alternatives
    hub: Mapping[str, str] = field(default_factory=lambda: SPLITS)
    has_gaps: bool = False  # official files lack one of two texts in places; it is read as empty
    held_out: tuple[int, int] | None = None  # (examples, seed) of train that are dev where dev has no file
    dev_ids: Names = ()  # a file that lists which rows of train are dev, and the columns of train that it has
    submission: Mapping[str, str] = field(default_factory=dict)  # split -> GLUE's file name
    unfold: Unfolding | None = None  # of files whose records hold several rows
