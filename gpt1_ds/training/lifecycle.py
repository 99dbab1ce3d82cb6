"""The life of a run on one rank: prepare the folder, build, resume, train, say how it ended."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpt1_ds.checkpoint.folders import find, steps_in
from gpt1_ds.checkpoint.publish import sweep
from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_FAILURE, ConfigError, TrainingError, UnsavedError
from gpt1_ds.common.files import write_atomic, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load_recorded, to_yaml
from gpt1_ds.parallel.grid import Grid
from gpt1_ds.training import mirrored, provenance, resume
from gpt1_ds.training.build import build_engine
from gpt1_ds.training.loop import DONE, Outcome, train
from gpt1_ds.training.objective import Objective, Open
from gpt1_ds.training.reporter import Reporter
from gpt1_ds.training.run import Run
from gpt1_ds.training.session import exit_code, joined, opened, run_folder
from gpt1_ds.training.stop import HANDOVER, Requests
from gpt1_ds.training.watch import SET_UP, Watch


def live(config: Config, open_objective: Open) -> int:
    """Train on this rank until the run is done or asked to stop; the process's exit code."""
    run_dir = run_folder(config)
    with joined(config) as grid, opened(run_dir, config, grid), Watch(run_dir, grid, config.guard) as watch:
        requests = Requests(run_dir, grid)
        objective = open_objective(config, grid, partial(watch.beat, SET_UP))
        grid.on_rank_0(lambda: _prepare(run_dir, objective.config))
        run = _build(objective, run_dir, grid, watch, requests)
        begin, reason = time.monotonic(), mirrored.FAILED
        try:
            if grid.rank == 0:
                run.reporter.begin(run.step, run.steps)
            outcome = train(run)
            run.profile.end()
            if not run.is_saved:
                raise _unsaved(run)
            if outcome.reason == DONE:
                objective.conclude(run)
            run.reporter.finish()
            code, reason = _finish(run, outcome, time.monotonic() - begin), outcome.reason
        except TrainingError as failure:
            run.finish_save()
            run.profile.end()
            _record(grid, run_dir, "failed", run.step, reason=str(failure))
            if _job() and grid.rank == 0 and not failure.passes:
                write_json(run_dir.outcome(_job()), {"code": EXIT_FAILURE, "reason": str(failure), "step": run.step})
            raise
        finally:
            run.reporter.finish()
            mirrored.close(run, reason)
        return code


def _prepare(run_dir: RunDir, config: Config) -> None:
    """Rank 0: refuse a folder of another run, note what changed, write config.yaml and env.json."""
    if config.checkpoint.resume == "never" and steps_in(run_dir.checkpoints):
        raise ConfigError(f"checkpoint.resume=never: {run_dir.path} holds checkpoints; choose another run.name")
    if run_dir.config.exists():
        changed = resume.changes(load_recorded(run_dir.config), config)
        resume.check(str(run_dir.path), changed)
        for key, (before, now) in changed.items():
            run_dir.add_event("changed", key=key, before=before, now=now)
    write_atomic(run_dir.config, to_yaml(config))
    environment = provenance.environment(config.train.compile == "on")
    if run_dir.environment.exists():
        changed = provenance.differences(json.loads(run_dir.environment.read_text()), environment)
        if changed:
            words = ", ".join(f"{key} {before} -> {now}" for key, (before, now) in changed.items())
            log.say(f"since the last segment of this run changed: {words}; results may differ in the last bits")
            run_dir.add_event("environment changed", changes=changed)
    write_json(run_dir.environment, environment)
    if _job():
        run_dir.outcome(_job()).unlink(missing_ok=True)  # a requeued job has the number of its first try


def _build(objective: Objective, run_dir: RunDir, grid: Grid, watch: Watch, requests: Requests) -> Run:
    """The run with its weights: from its newest good checkpoint, from the one it was told to, or fresh."""
    config = objective.config
    assert config.model.vocab_size is not None, "objectives fill it in"
    engine = build_engine(config, config.model.vocab_size, grid, initialise=False, head=objective.head)
    log.LOGGER.debug("%s, on %s with %d threads", grid, engine.device, torch.get_num_threads())
    reporter = Reporter(mirrored.begin(objective, run_dir, grid) if grid.rank == 0 else None)
    run = Run(objective, run_dir, engine, reporter, watch, requests)
    grid.on_rank_0(lambda: sweep(run_dir.checkpoints))
    folder, weights_only = run.resume(), False
    if folder is None:
        folder, weights_only = _beginning(run)
        if folder is None or weights_only:
            objective.initialise(run, folder)
        else:
            run.load(folder)
    if config.guard.on_spike == "rollback" and not run.is_saved:
        run.save(background=False)  # so that there is always something to go back to
    if grid.rank == 0:
        run_dir.done.unlink(missing_ok=True)
        begun = "from scratch"
        if folder is not None:
            begun = f"from the weights of {folder}" if weights_only else f"from step {run.step} of {folder.name}"
        run_dir.add_event("started", step=run.step, steps=run.steps, ranks=grid.world, job=_job())
        log.say(f"{run_dir.path}: training {run.steps} steps {begun} on {grid.world} rank{'s' * (grid.world > 1)}")
    run.rewind()
    return run


def _beginning(run: Run) -> tuple[Path | None, bool]:
    """Without a checkpoint in the run folder: (one to begin from or None, whether only its weights are taken)."""
    settings = run.config.checkpoint
    wanted = settings.init_from or (settings.resume if settings.resume not in ("auto", "never") else None)
    if wanted is None:
        return None, False
    folder = run.grid.on_rank_0(lambda: find(Path(wanted), newest=settings.init_from is None))
    run.store.verify(folder)
    return folder, settings.init_from is not None


def _unsaved(run: Run) -> TrainingError:
    why = run.store.failure
    text = f"{run.run_dir.path}: its last state could not be saved: {why}; run the same command again"
    return UnsavedError(text) if why is not None and why.passes else TrainingError(text)


def _finish(run: Run, outcome: Outcome, seconds: float) -> int:
    handover = outcome.reason == HANDOVER
    code = exit_code(handover)
    if run.grid.rank == 0:
        run_dir = run.run_dir
        if outcome.reason == DONE:
            write_json(run_dir.done, {"step": outcome.step})
        words = {DONE: "done", "user": "stopped as asked", HANDOVER: "stopped to be continued"}[outcome.reason]
        log.say(f"{run_dir.path}: {words} after step {outcome.step}")
        _record(run.grid, run_dir, "stopped", outcome.step, reason=outcome.reason, seconds=round(seconds, 3))
        if _job():
            outcome_code = 75 if handover else 0
            write_json(run_dir.outcome(_job()), {"code": outcome_code, "reason": outcome.reason, "step": outcome.step})
    return code


def _record(grid: Grid, run_dir: RunDir, event: str, step: int, **details: Any) -> None:
    if grid.rank == 0:
        run_dir.add_event(event, step=step, **details)


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "")
