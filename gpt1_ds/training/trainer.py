"""The step loop: from one frozen training state to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpt1_ds.common import log
from gpt1_ds.common.errors import TrainingError
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.monitoring.profiler import Profile
from gpt1_ds.monitoring.watchdog import SET_UP
from gpt1_ds.training import schedule, spike_policy
from gpt1_ds.training.batches import Batches, StepBatch
from gpt1_ds.training.restorer import Restorer
from gpt1_ds.training.saver import Evaluator, Saver
from gpt1_ds.training.spike_policy import SpikePolicy
from gpt1_ds.training.state import DONE, HANDOVER, USER, Outcome, TrainingState
from gpt1_ds.training.step_log import StepLog
from gpt1_ds.training.stop import Decision, Requests


@dataclass
class Trainer:
    """Trains from `state` to the last of `steps`, on all ranks together. `beat` says what this rank is about to do."""

    config: Config
    steps: int
    batch_sizes: BatchSizes
    state: TrainingState
    engine: Engine
    batches: Batches
    spike_policy: SpikePolicy
    saver: Saver
    restorer: Restorer
    evaluator: Evaluator
    log: StepLog
    profile: Profile
    requests: Requests
    run_dir: RunDir
    beat: Callable[..., None]

    def train(self) -> Outcome:
        """Trains until the last step, or until a stop is agreed on. Raises TrainingError."""
        self.log.clock.lap()  # what was before does not count
        while self.state.step < self.steps:
            reason = self._step(self.state.step + 1)
            if reason is not None:
                return Outcome(reason, self.state.step)
        return Outcome(DONE, self.state.step)

    def _step(self, step: int) -> str | None:
        """Makes one step, and what is due after it. Returns why the run stops here, or None."""
        self.profile.at(step)
        self.beat("data", step)
        with self.log.clock.waiting():
            batch = self.batches.next(self.state)
        self.spike_policy.begin_step(self.state)
        if self.config.train.watch != "off":
            self.log.watch.begin(step == 1 or self._is_due(self.config.train.log_every, step))
        result = self.engine.step(batch.micro_batches, self._learning_rate(step))
        problem = self.spike_policy.problem(result)
        self.beat("agreement")
        ahead = self.evaluator.seconds if self.evaluator.is_due(step) else 0.0
        decision = self.requests.agree(batch.fingerprint, self.saver.is_written, problem is not None, ahead)
        if decision.bad and self.spike_policy.answer(step, problem):
            self.roll_back(step)
            return None
        self.finish_step(step, batch, result, decision)
        self._save_and_evaluate(decision)
        self.requests.honoured(decision)
        return decision.stop if decision.stop in (USER, HANDOVER) else None

    def finish_step(self, step: int, batch: StepBatch, result: StepResult, decision: Decision) -> None:
        """Counts the step, and logs and compares when it is time."""
        self.state = replace(self.state, step=step, tokens=self.state.tokens + batch.tokens)
        if not decision.bad:
            window = spike_policy.extended(self.config.guard, self.state.window, result.loss, result.grad_norm)
            self.state = replace(self.state, window=window)
            self.spike_policy.accept(step)
        self.log.count(step, batch.tokens, result.grad_norm)
        if step == 1 or decision.stop or self._is_due(self.config.train.log_every, step):
            self.log.train(self.state, result, self._learning_rate(step), decision.fingerprint, batch)
        if self._is_due(self.config.guard.compare_every, step):
            self.saver.compare_replicas(step)

    def _save_and_evaluate(self, decision: Decision) -> None:
        step = self.state.step
        with self.log.clock.pause():
            if decision.stop:
                self.saver.save(self.state, background=False)  # first: who asked may not wait for long
            if self.evaluator.is_due(step) and decision.stop != HANDOVER:  # the next start evaluates: see `rewind`
                self.state = self.evaluator.evaluate(self.state)
            if decision.written:
                self.saver.finish()
            if self._is_due(self.config.checkpoint.every, step) or decision.save:
                self.saver.save(self.state, background=not (decision.save or step == self.steps))

    def roll_back(self, step: int) -> None:
        """Goes back to the newest good checkpoint, and skips the batch of `step` from now on."""
        offending, skipped = self.state.batch_number(step), self.state.skipped_batches
        self.beat(SET_UP)
        with self.log.clock.pause():
            self.saver.finish()
            self.beat(SET_UP)
            found = self.restorer.newest()
            if found is None:
                raise TrainingError(f"{self.run_dir.path}: there is no checkpoint to go back to")
            state = found[1]
            skipped = tuple(sorted({*skipped, *state.skipped_batches, offending}))
            self.state = replace(state, skipped_batches=skipped)
        self.rewind()
        if self.engine.groups.rank == 0:
            self.run_dir.add_event("rolled back", step=step, to=self.state.step, passed_over=list(skipped))
            log.say(f"back to step {self.state.step}; batch {offending} is skipped")

    def rewind(self) -> None:
        """Drops the metrics of steps that will be repeated. A run that hands over saves and ends at once, because its
        job may be killed soon, and then no other would follow: the evaluation that was due comes now.
        """
        self.log.rewind(self.state)
        if self.state.evaluated < self.state.step and self.evaluator.is_due(self.state.step):
            with self.log.clock.pause():
                self.state = self.evaluator.evaluate(self.state)

    def _learning_rate(self, step: int) -> float:
        return schedule.learning_rate(
            self.config.schedule, self.config.optimizer.lr, step, self.steps, self.batch_sizes
        )

    def _is_due(self, every: int, step: int) -> bool:
        return step == self.steps or (every > 0 and step % every == 0)
