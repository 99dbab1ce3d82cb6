"""Training examples of sentence vectors, made of labelled or scored pairs: what each loss (task.loss) reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import TABLE
from gpt1_ds.tasks.example import Example, Examples
from gpt1_ds.tasks.kinds import Classification, Regression
from gpt1_ds.tasks.registry import SPECS

ENTAILED, CONTRADICTED = "entailment", "contradiction"


def check_pairs(config: TaskConfig) -> None:
    """Raises ConfigError unless the task's rows are pairs with what the loss learns from: a score or a label."""
    kind, what = (Regression, "a score") if config.loss == "cosine" else (Classification, "a label")
    known = [spec.name for spec in SPECS.values() if spec.task is kind and spec.text2]
    if config.name not in (*known, TABLE):
        raise ConfigError(
            f"task.name={config.name}: task.loss={config.loss} reads two texts and {what}; use {', '.join(known)}"
        )


def examples_for_loss(config: TaskConfig, labels: Sequence[str], pairs: Sequence[Example]) -> Examples:
    """Returns training examples of task.loss. An example of `triplet` is a text, one that it entails and one that
    contradicts it; `ranking` takes the entailed pairs, other losses all pairs. Raises DataError where there is none.
    """
    needed = {"triplet": (ENTAILED, CONTRADICTED), "ranking": (ENTAILED,)}.get(config.loss, ())
    for label in needed:
        if label not in labels:
            raise DataError(
                f"{config.path}: task.loss={config.loss} needs the label {label}; there are {', '.join(labels)}"
            )
    examples = tuple(pairs)
    if config.loss == "triplet":
        examples = tuple(_triplets(pairs))
    elif config.loss == "ranking":
        examples = tuple(pair for pair in pairs if pair.label == ENTAILED)
    if not examples:
        raise DataError(f"{config.path}: no pair is left for task.loss={config.loss}; use more text, or another loss")
    return examples


def _triplets(pairs: Sequence[Example]) -> Iterator[Example]:
    """Yields for each first text the k-th text that it entails with the k-th that contradicts it, in the order of the
    file.
    """
    pairs_of_text: dict[str, dict[str, list[Example]]] = {}  # first text -> label -> its pairs
    for pair in pairs:
        if pair.label in (ENTAILED, CONTRADICTED):
            by_label = pairs_of_text.setdefault(pair.texts[0], {ENTAILED: [], CONTRADICTED: []})
            by_label[pair.label].append(pair)
    for by_label in pairs_of_text.values():
        for entailed, contradicted in zip(by_label[ENTAILED], by_label[CONTRADICTED], strict=False):
            yield replace(entailed, texts=(*entailed.texts, contradicted.texts[1]))


def without_scored_texts(pairs: Sequence[Example], scored: Sequence[Example]) -> tuple[Examples, int]:
    """Returns (the pairs without a text of the scored pairs, which evaluate the vectors; how many pairs were left
    out).
    """
    scored_texts = {text.lower() for example in scored for text in example.texts}
    unseen = tuple(pair for pair in pairs if not scored_texts & {text.lower() for text in pair.texts})
    return unseen, len(pairs) - len(unseen)
