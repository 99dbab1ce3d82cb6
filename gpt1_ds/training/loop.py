"""The step loop."""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.training.run import Run
from gpt1_ds.training.stop import HANDOVER, USER

DONE = "done"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `done`, `user` (STOP file) or `handover` (saved, to be continued), after `step` steps."""

    reason: str
    step: int


def train(run: Run) -> Outcome:
    """Train from the step the run stands at to its last, or until a stop is agreed on."""
    run.clock.lap()  # what was before does not count
    while run.step < run.steps:
        step = run.step + 1
        run.profile.at(step)
        with run.clock.waiting():
            batch = run.batch(step)
        result = run.engine.step(batch.micro_batches, run.learning_rate(step))
        problem = run.problem(result)
        run.watch.beat("agreement")
        decision = run.requests.agree(batch.fingerprint, run.store.is_written, problem is not None)
        if decision.bad and run.must_roll_back(step, result, problem):
            run.roll_back(step)
            continue
        run.finish_step(step, batch, result, decision)
        if decision.stop:
            run.save(background=False)  # first: who asked may not wait for long
        if run.objective.is_evaluation_due(step):
            run.evaluate()
        if decision.written:
            run.finish_save()
        if run.is_due(run.config.checkpoint.every, step) or decision.save:
            run.save(background=not (decision.save or step == run.steps))
        run.requests.honoured(decision)
        if decision.stop in (USER, HANDOVER):
            return Outcome(decision.stop, step)
    return Outcome(DONE, run.step)
