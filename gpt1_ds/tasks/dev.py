"""Chooses the examples of a split: dev that no file gives, dev in two, a few of many."""

from __future__ import annotations

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.data.windows import key_of, permute
from gpt1_ds.tasks.example import Examples

HALF = "half"  # the split of dev's examples that choose nothing


def hold_out(config: TaskConfig, official: tuple[int, int] | None, examples: Examples) -> tuple[Examples, Examples]:
    """Returns (train, dev), both in the order of the file; examples with an equal source stay on one side.
    `official` is how many the authors held out, and their seed.

    What is held out depends on the examples alone, never on the run's seed.
    """
    if official and not config.dev_fraction and len(examples) > official[0]:
        count, seed = official  # as scikit-learn's train_test_split draws it
        held = set(np.random.RandomState(seed).permutation(len(examples))[:count].tolist())
    elif config.dev_fraction:
        sources = [example.source or example.texts[0] for example in examples]
        groups: dict[str, list[int]] = {}
        for number, source in enumerate(sources):
            groups.setdefault(source, []).append(number)
        members, held = list(groups.values()), set()
        for group in permute(np.arange(len(members)), len(members), key_of("dev", len(examples), *sources)):
            if len(held) >= config.dev_fraction * len(examples):
                break
            held.update(members[group])
    else:
        raise DataError(f"{config.path}: has no dev file; name one with task.dev, or hold out task.dev_fraction=0.1")
    train = tuple(example for number, example in enumerate(examples) if number not in held)
    if not train or not held:
        raise DataError(
            f"{config.path}: {len(examples)} examples are too few for task.dev_fraction={config.dev_fraction}"
        )
    return train, tuple(examples[number] for number in sorted(held))


def halved(config: TaskConfig, examples: Examples) -> tuple[Examples, Examples]:
    """Returns (the half that chooses, the half that is reported), by a hash of each source: other examples move none of
    them.

    Raises DataError where one half would be empty.
    """
    chooses = [key_of("half", example.source or example.texts[0]) % 2 == 0 for example in examples]
    if len(set(chooses)) < 2:
        raise DataError(f"{config.path} dev: {len(examples)} examples are too few for task.halves=true; leave it out")
    first, second = (
        tuple(e for e, one in zip(examples, chooses, strict=True) if one is side) for side in (True, False)
    )
    return first, second


def capped(examples: Examples, cap: int | None) -> Examples:
    """`cap` of the examples, in their order and always the same ones; None: all."""
    if cap is None or cap >= len(examples):
        return examples
    key = key_of("cap", len(examples), *(example.texts[0] for example in examples))
    kept = permute(np.arange(cap), len(examples), key)
    return tuple(examples[number] for number in sorted(kept.tolist()))
