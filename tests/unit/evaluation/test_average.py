"""By which example the mean of checkpoints is probed: a run that loads it compares the loss."""

from __future__ import annotations

import numpy as np

from gpt1_ds.config import load
from gpt1_ds.evaluation.average import _objective
from gpt1_ds.objectives.source_target import TextToText

T5 = ["model.kind=encoder_decoder", "model.norm=pre", "model.vocab_size=100", "model.context=16"]


def test_answers_in_text_are_probed_by_a_source_and_its_target() -> None:
    """The two objectives of such a task share their fixed example."""
    config = load([], [*T5, "task.name=cola", "task.path=x", "task.form=text"])
    found = _objective(config, None).probe(config.model)
    wanted = TextToText.of(2, [np.array([1])], pad=0, limit=16, multiple=1).probe(config.model)
    assert len(found.inputs) == 2
    for one, other in zip((*found.inputs, *found.labels), (*wanted.inputs, *wanted.labels), strict=True):
        np.testing.assert_array_equal(one, other)
