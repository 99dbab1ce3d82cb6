"""Batches are read and sent ahead of their steps, in the run's order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpt1_ds.training.batches import Batches, StepBatch
from gpt1_ds.training.state import TrainingState


def test_a_step_gets_what_was_sent_for_it() -> None:
    sent: list[Any] = []

    def send(micro_batches: list[Any]) -> Any:
        sent.append(micro_batches)
        return lambda: [f"{batch} on the device" for batch in micro_batches]

    def read(number: int, step: int) -> StepBatch:
        return StepBatch([f"batch {number} of step {step}"], number, 10)  # type: ignore[list-item]

    engine = SimpleNamespace(send=send, groups=SimpleNamespace(world=1, rank=0))
    batches = Batches(read, None, engine)  # type: ignore[arg-type]
    for step in (1, 2):
        batch = batches.next(TrainingState(step=step - 1))
        assert batch.micro_batches == [f"batch {step} of step {step} on the device"]
        assert (batch.fingerprint, batch.tokens) == (step, 10)
    again = batches.next(TrainingState(step=0, skipped_batches=(1,)))
    assert again.micro_batches == ["batch 2 of step 1 on the device"], "after a rollback another one is read"
    assert sent[:2] == [["batch 1 of step 1"], ["batch 2 of step 2"]]
