"""Labelled pairs of texts as what a loss of sentence vectors reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import TABLE
from gpt1_ds.tasks.base import Example
from gpt1_ds.tasks.kinds import Classification, Regression
from gpt1_ds.tasks.registry import SPECS

ENTAILED, CONTRADICTED = "entailment", "contradiction"


def check_pairs(config: TaskConfig) -> None:
    """Raise ConfigError unless the task's rows are what the loss of sentence vectors reads."""
    wanted, what = (Regression, "a score") if config.loss == "cosine" else (Classification, "a label")
    known = [one.name for one in SPECS.values() if one.task is wanted and one.text2]
    if config.name not in (*known, TABLE):
        raise ConfigError(
            f"task.name={config.name}: task.loss={config.loss} reads two texts and {what}; use {', '.join(known)}"
        )


def shaped(config: TaskConfig, labels: Sequence[str], pairs: Sequence[Example]) -> tuple[Example, ...]:
    """Training examples: of triplet a text, one that it entails and one that contradicts it; of ranking the entailed
    pairs; of other losses the pairs. Raises DataError where there is none.
    """
    wanted = {"triplet": (ENTAILED, CONTRADICTED), "ranking": (ENTAILED,)}.get(config.loss, ())
    for label in wanted:
        if label not in labels:
            raise DataError(
                f"{config.path}: task.loss={config.loss} needs the label {label}; there are {', '.join(labels)}"
            )
    found = tuple(pairs)
    if config.loss == "triplet":
        found = tuple(_triplets(pairs))
    elif config.loss == "ranking":
        found = tuple(pair for pair in pairs if pair.label == ENTAILED)
    if not found:
        raise DataError(f"{config.path}: no pair is left for task.loss={config.loss}; use more text, or another loss")
    return found


def _triplets(pairs: Sequence[Example]) -> Iterator[Example]:
    """Yields for each first text the k-th text that it entails with the k-th that contradicts it, in the order of the
    file.
    """
    of: dict[str, dict[str, list[Example]]] = {}
    for pair in pairs:
        if pair.label in (ENTAILED, CONTRADICTED):
            of.setdefault(pair.texts[0], {ENTAILED: [], CONTRADICTED: []})[str(pair.label)].append(pair)
    for known in of.values():
        for near, far in zip(known[ENTAILED], known[CONTRADICTED], strict=False):
            yield replace(near, texts=(*near.texts, far.texts[1]))


def without(pairs: Sequence[Example], judged: Sequence[Example]) -> tuple[tuple[Example, ...], int]:
    """(the pairs that share no text with those by which vectors are judged, how many others there were)."""
    texts = {text.lower() for example in judged for text in example.texts}
    kept = tuple(pair for pair in pairs if not texts & {text.lower() for text in pair.texts})
    return kept, len(pairs) - len(kept)
