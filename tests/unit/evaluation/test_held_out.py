"""Masks of held-out text are the same for ever: whatever the step, the run's seed and the layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt1_ds.config import load
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import Data, open_data, row_note
from gpt1_ds.objectives.pretraining import pretraining_objective
from tools.families import FAMILIES

ALONE = ["objective.next_sentence=false", "model.segments=0"]
TEXTS = {
    "windows": ["data.text=windows", *ALONE],
    "full_sentences": ["data.text=full_sentences", *ALONE],
    "pairs": [],
    "pairs without next sentence": ALONE,
    "document_sentences": ["data.text=document_sentences", *ALONE],
    "sentence_pairs": ["data.text=sentence_pairs"],
}


def masks(data: Data, config: Any, shapes: list[BatchShape], **seed: int) -> dict[int, bytes]:
    """Inputs and predicted positions of every row of held-out text by its number, over all ranks."""
    objective = pretraining_objective(config, data.tokenizer, data.data_hash, **seed)
    found = {}
    for shape in shapes:
        for rows in (rows for batch in data.held_out.batches(shape) for rows in batch):
            host = objective.batch(rows)
            for at in np.flatnonzero(rows.row_B >= 0):
                at_MB, ids_MB, weights_MB = (label[:, at] for label in host.labels[:3])
                parts = host.inputs[0][:, at], at_MB, ids_MB, weights_MB > 0
                found[int(rows.number_B[at])] = b"".join(part.tobytes() for part in parts)
    assert sorted(found) == list(range(data.held_out.rows)), "every row, once"
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_masks_depend_on_the_row_alone(text: str, sentence_data: Path) -> None:
    arguments = ["model.context=32", f"data.path={sentence_data}", *FAMILIES["bert"], *TEXTS[text]]
    config, other = (load([], [*arguments, f"run.seed={seed}"]) for seed in (1, 2))
    one, another = open_data(config), open_data(other)
    assert (row_note(config, one) is not None) == (config.data.text != "windows")
    wanted = masks(one, config, [BatchShape(8, 8)])
    for global_batch, micro_batch, ranks in ((8, 1, 1), (8, 2, 4), (32, 4, 2), (2, 1, 2)):
        shapes = [BatchShape(global_batch, micro_batch, ranks, rank) for rank in range(ranks)]
        assert masks(another, other, shapes) == wanted
    drawn_anew = masks(one, config, [BatchShape(8, 8)], seed=1)
    assert sum(drawn_anew[number] == wanted[number] for number in wanted) < len(wanted) / 5
