"""One training run: its parts, and what the loop asks of them."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import retention
from gpt1_ds.checkpoint.publish import Contents
from gpt1_ds.checkpoint.replicas import Replicas
from gpt1_ds.checkpoint.store import Store
from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError, TrainingError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import to_carried_yaml, to_yaml
from gpt1_ds.parallel import masters
from gpt1_ds.parallel.engine import Engine, StepResult
from gpt1_ds.tracking.record import EvalRecord, MetricsFile, TrainRecord
from gpt1_ds.tracking.throughput import Stopwatch
from gpt1_ds.training import incident, schedule
from gpt1_ds.training.build import batch_shape
from gpt1_ds.training.device import peak_memory_gib, peak_tflops
from gpt1_ds.training.guard import NORM_NOT_FINITE, Guard
from gpt1_ds.training.objective import Objective, StepBatch
from gpt1_ds.training.profile import Profile
from gpt1_ds.training.provenance import provenance
from gpt1_ds.training.reporter import Reporter
from gpt1_ds.training.stop import Decision, Requests
from gpt1_ds.training.watch import SAVE, SET_UP, Watch

SKIPS_ALLOWED = {"guard": 5, "fp16": 30}  # bad steps in a row; fp16 searches its loss scale that way


@dataclass(frozen=True)
class Best:
    """The best evaluation so far: after `step` updates, with `score`."""

    step: int
    score: float


class Run:
    """The state of a run on this rank. `step` is the number of finished steps."""

    def __init__(
        self,
        objective: Objective,
        run_dir: RunDir,
        engine: Engine,
        reporter: Reporter,
        watch: Watch,
        requests: Requests,
    ) -> None:
        self.objective, self.config, self.steps = objective, objective.config, objective.steps
        self.run_dir, self.engine, self.reporter, self.watch = run_dir, engine, reporter, watch
        engine.progress = watch.beat
        self.grid = engine.grid
        self.store = Store(run_dir, engine, self.config)
        self.replicas = Replicas(engine)
        self.metrics = MetricsFile(run_dir.metrics)
        self.requests = requests
        self.clock = Stopwatch()
        self.shape = batch_shape(self.config, self.grid)
        self.step = self.tokens = 0
        self.evaluated = 0  # step of the last evaluation
        self.best: Best | None = None
        self.passed_over: list[int] = []  # numbers of batches that the guard went back from
        self.guard = Guard(self.config.guard, uniform=math.log(self.config.model.vocab_size or math.inf))
        self._spike: str | None = None  # why the present step's update was left out
        if self.config.guard.on_spike == "skip" and self.config.guard.z:
            engine.ask_before_update(self._veto)
        self._skipped = 0
        self._furthest = 0  # step that a rollback came back from
        self._saved_step = -1
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._ahead: tuple[int, Future[StepBatch]] | None = None
        self.peak_tflops = peak_tflops(engine.device)
        self.profile = Profile(self)

    def batch(self, step: int) -> StepBatch:
        """The batch of `step`; the next one is read meanwhile."""
        self.watch.beat("data", step)
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = (step, self._loader.submit(self._read, step))
        with incident.reading(self):
            batch = self._ahead[1].result()
        self._ahead = (step + 1, self._loader.submit(self._read, step + 1))
        return batch

    def batch_number(self, step: int) -> int:
        """The `step`-th batch of those that are not passed over."""
        number = step
        for passed in self.passed_over:
            number += passed <= number
        return number

    def _read(self, step: int) -> StepBatch:
        return self.objective.batch(self.batch_number(step), step)

    def learning_rate(self, step: int) -> float:
        return schedule.learning_rate(self.config.schedule, self.config.optimizer.lr, step, self.steps)

    def is_due(self, every: int, step: int) -> bool:
        return step == self.steps or (every > 0 and step % every == 0)

    def problem(self, result: StepResult) -> str | None:
        """Why the step cannot be trusted, as far as this rank can see."""
        problem, self._spike = self._spike or self.guard.problem(result.loss, result.grad_norm), None
        return problem

    def must_roll_back(self, step: int, result: StepResult, problem: str | None) -> bool:
        """What follows from a step that cannot be trusted: it ends the run, was left out, or calls for `roll_back`."""
        problem = problem or "another rank found a spike"
        action = self.config.guard.on_spike
        searching = self.config.train.precision == "fp16" and problem == NORM_NOT_FINITE  # for its loss scale
        self._skipped += 1
        if not searching or self._skipped > SKIPS_ALLOWED["fp16"]:
            incident.record(self, step, problem, action)
        if self._skipped > SKIPS_ALLOWED["fp16" if searching else "guard"] or (action == "raise" and not searching):
            raise TrainingError(incident.explain(self, step, problem, self._skipped))
        return action == "rollback" and not searching

    def roll_back(self, step: int) -> None:
        """Return to the newest good checkpoint and pass over the batch of `step`."""
        self.watch.beat(SET_UP)
        with self.clock.pause():
            self.finish_save()
            self.watch.beat(SET_UP)
            offending, passed, skipped = self.batch_number(step), self.passed_over, self._skipped
            self._furthest = max(self._furthest, step)
            if self.resume() is None:
                raise TrainingError(f"{self.run_dir.path}: there is no checkpoint to go back to")
            self.passed_over = sorted({*passed, *self.passed_over, offending})
            self._skipped, self._ahead = skipped, None
        self.rewind()
        if self.grid.rank == 0:
            self.run_dir.add_event("rolled back", step=step, to=self.step, passed_over=self.passed_over)
            log.say(f"back to step {self.step}; batch {offending} is passed over")

    def finish_step(self, step: int, batch: StepBatch, result: StepResult, decision: Decision) -> None:
        """Count the step, and log when it is time."""
        self.step, self.tokens = step, self.tokens + batch.tokens
        if not decision.bad:
            self.guard.accept(result.loss, result.grad_norm)
            self._skipped = 0 if step > self._furthest else self._skipped  # steps that are repeated prove nothing
        self.clock.step(batch.tokens)
        self.reporter.advance(step)
        if step == 1 or decision.stop or self.is_due(self.config.train.log_every, step):
            self._log(result, decision)
        if self.is_due(self.config.guard.compare_every, step):
            incident.compare_replicas(self)

    def _log(self, result: StepResult, decision: Decision) -> None:
        self.watch.beat("log")
        speed = self.clock.lap()
        model_tflops = speed.tokens_per_second * self.objective.flops_per_token / self.grid.world / 1e12
        record = TrainRecord(
            step=self.step,
            tokens=self.tokens,
            loss=result.loss,
            learning_rate=self.learning_rate(self.step),
            grad_norm=result.grad_norm,
            applied=result.applied,
            tokens_per_second=speed.tokens_per_second,
            step_seconds=speed.step_seconds,
            data_wait_seconds=speed.data_wait_seconds,
            model_tflops_per_rank=model_tflops,
            mfu=model_tflops / self.peak_tflops if self.peak_tflops else None,
            peak_memory_gib=peak_memory_gib(self.engine),
            batch_fingerprint=decision.fingerprint,
            loss_scale=result.loss_scale if self.config.train.precision == "fp16" else None,
        )
        if self.grid.rank == 0:
            self.metrics.add(record)
            self.reporter.train(record)

    def rewind(self) -> None:
        """Drop the metrics of steps that will be repeated. A run that was asked to stop saves before it evaluates, and
        may have been killed then: that evaluation comes now.
        """
        self.grid.on_rank_0(lambda: self.metrics.rewind(self.step, self.evaluated))
        if self.evaluated < self.step and self.objective.is_evaluation_due(self.step):
            self.evaluate()

    def evaluate(self) -> None:
        """Measure and log; where an evaluation can be better than another, save what is best so far."""
        self.watch.beat("evaluation")
        self.evaluated = self.step
        with self.clock.pause(), incident.reading(self):
            records = self.objective.evaluate(self.engine, self.step, self.tokens)
        if self.grid.rank == 0:
            for record in records:
                self.metrics.add(record)
                self.reporter.evaluation(record)
        for record in records:
            if isinstance(record, EvalRecord) and (problem := self.guard.risen(record.loss)):
                raise TrainingError(incident.end_diverged(self, problem))
        score = self.objective.score(records)
        if score is not None and (self.best is None or score > self.best.score):
            self.best = Best(self.step, score)
            self._saved_step = -1  # one of this step that is there does not know that it is the best
            self.save(background=False)
            self.grid.on_rank_0(self._name_best)

    def _name_best(self) -> None:
        if self.best is not None and self.run_dir.checkpoint(self.best.step).is_dir():
            write_atomic(self.run_dir.best, f"{self.run_dir.checkpoint(self.best.step).name}\n")

    def save(self, background: bool = True) -> None:
        """Save this step, once; in the background where configuration and memory allow."""
        self.watch.beat(SAVE)
        with self.clock.pause():
            self.finish_save()  # one at a time
            if self._saved_step != self.step:
                incident.compare_replicas(self)
                config_yaml = to_carried_yaml(self.config)
                contents = Contents(self.step, self._facts(), config_yaml, self.objective.tokenizer_folder)
                self.store.start(contents, background)
            if not background:
                self.finish_save()

    def finish_save(self) -> None:
        """Publish the save that is under way, if there is one; waits for whatever is still to be written."""
        self.watch.beat(SAVE)
        folder = self.store.finish()
        if folder is None:
            return
        self._saved_step = int(folder.name.removeprefix("step-"))
        if self.grid.rank == 0:
            retention.prune(self.run_dir, self.config.checkpoint)
            self.run_dir.add_event("saved", step=self._saved_step)
            self.reporter.saved(folder)

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of the present step was published, or read."""
        return self._saved_step == self.step

    def resume(self) -> Path | None:
        """Go on from the newest good checkpoint of the run folder; None when it holds none."""
        found = self.store.load_newest()
        if found is not None:
            self._restore(*found)
        return found[0] if found else None

    def load(self, folder: Path, weights_only: bool = False) -> None:
        """Go on from a checkpoint (or, with `weights_only`, begin with its weights)."""
        self._restore(folder, self.store.load(folder, weights_only), weights_only)

    def _restore(self, folder: Path, facts: dict[str, Any], weights_only: bool = False) -> None:
        """What the manifest says of a checkpoint that was loaded."""
        what = "tokenizer" if weights_only else "data"
        here = {"tokenizer": self.objective.tokenizer_hash, "data": self.objective.data_hash}[what]
        if facts["hashes"][what] != here:
            key = "data.path" if self.config.task is None else "task.path"
            raise ConfigError(f"{folder}: was trained with another {what} than {key} now has; set {key} back")
        if not weights_only:
            self.passed_over = list(facts.get("passed_over") or [])
            self.guard.restore(facts.get("guard") or [])
            self.step, self.tokens = int(facts["step"]), int(facts["tokens"])
            self.evaluated = int(facts.get("evaluated", self.step))
            self.best = Best(**facts["best"]) if facts.get("best") else None
            self.guard.lowest = float(facts.get("lowest_held_out", self.guard.lowest))
            self.grid.on_rank_0(self._name_best)
            self._saved_step = self.step if folder.parent == self.run_dir.checkpoints else -1

    def _facts(self) -> dict[str, Any]:
        layout, parallel = self.grid.layout, self.config.parallel
        config_hash = hashlib.sha256(to_yaml(self.config).encode()).hexdigest()
        return {
            "step": self.step,
            "tokens": self.tokens,
            "updates": masters.updates(self.engine),
            "layout": {**asdict(layout), "zero": parallel.zero, "pipelined": parallel.pipelined},
            "precision": self.config.train.precision,
            "seed": self.config.run.seed,
            "hashes": {
                **provenance(),
                "config": config_hash,
                "data": self.objective.data_hash,
                "tokenizer": self.objective.tokenizer_hash,
            },
            "loss_scaler": masters.loss_scaler(self.engine),
            "passed_over": self.passed_over,
            "evaluated": self.evaluated,
            "guard": self.guard.state(),
            **({"best": asdict(self.best)} if self.best else {}),
            "lowest_held_out": self.guard.lowest,
            **self.objective.facts(),
        }

    def _veto(self, loss: float, norm: float) -> bool:
        self._spike = self.guard.problem(loss, norm)
        return self._spike is not None
