"""The life of a run on one rank: prepare the folder, build, resume, train, say how it ended."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch

from gpt1_ds.architecture.count import parameters
from gpt1_ds.checkpoint.folders import remove_unfinished
from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_CONTINUE, EXIT_FAILURE, TrainingError
from gpt1_ds.common.files import read_json, write_atomic, write_json
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.common.text import amount, byte_size, duration
from gpt1_ds.config import Config, load_recorded, to_yaml
from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.build import batch_shape, build_engine
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session, with_common_micro_batch
from gpt1_ds.model import products
from gpt1_ds.model.build import compiles, naming_compilation
from gpt1_ds.monitoring import stragglers
from gpt1_ds.monitoring.profiler import Profile, window_note
from gpt1_ds.monitoring.watchdog import ENDED, SET_UP, HangWatchdog
from gpt1_ds.training import provenance, restarts, resume, trackers
from gpt1_ds.training.batches import Batches
from gpt1_ds.training.claim import run_folder
from gpt1_ds.training.mirror import Mirror
from gpt1_ds.training.restorer import Restorer
from gpt1_ds.training.run_folder import locked_run_dir
from gpt1_ds.training.saver import Evaluator, Saver
from gpt1_ds.training.schedule import warmup_note
from gpt1_ds.training.spike_policy import SpikePolicy
from gpt1_ds.training.state import DONE, HANDOVER, USER, Outcome, TrainingState
from gpt1_ds.training.step_log import StepLog
from gpt1_ds.training.stop import Requests
from gpt1_ds.training.trainer import Trainer
from gpt1_ds.training.workload import Open, Workload

STATE_BYTES = 12  # of a parameter: its fp32 master weight and two moments
Conclude = Callable[[Workload, Engine, TrainingState, RunDir], None]


def live(config: Config, open_workload: Open, conclude: Conclude | None = None) -> Outcome:
    """Trains on this rank until the run is done or asked to stop; how it ended. Raises UserError and TrainingError.

    The folder is claimed in three steps, because each knows more than the one before. `locked_run_dir` locks it and
    moves aside what the run replaces. The mirror may bring a newer checkpoint of the same run. `_prepare` compares the
    keys again, now with the vocabulary of the data, and writes config.yaml, which then goes to the mirror.
    """
    run_dir = run_folder(config)
    with (
        distributed_session(config) as groups,
        locked_run_dir(run_dir, config, groups),
        HangWatchdog(run_dir, groups, config.guard) as watchdog,
        naming_compilation(),
    ):
        config = with_common_micro_batch(config, groups)
        mirror = None
        if config.checkpoint.mirror is not None:
            mirror = Mirror(config, run_dir, groups, partial(watchdog.beat, SET_UP))
            mirror.prepare()
        requests = Requests(run_dir, groups)
        workload = open_workload(config, groups, partial(watchdog.beat, SET_UP))
        groups.on_rank_0(lambda: _prepare(run_dir, workload.config))
        if mirror is not None:
            mirror.claim()
        trainer = _build(workload, run_dir, groups, watchdog, requests, mirror)
        requests.takes = partial(time_of_a_save, trainer.saver, workload.config)
        begin, reason = time.monotonic(), trackers.FAILED
        try:
            trainer.log.begin(trainer.state.step)
            first, outcome = trainer.state.step, trainer.train()
            is_concluding = outcome.reason == DONE and conclude is not None
            takes = workload.results_take(trainer.evaluator.seconds)
            if is_concluding and outcome.step > first and requests.must_hand_over(takes):  # else no job has more time
                outcome = Outcome(HANDOVER, outcome.step)
            requests.is_over = True
            trainer.profile.end()
            if not trainer.saver.is_saved(trainer.state):
                raise trainer.saver.unsaved()
            if outcome.reason == DONE and conclude is not None:
                trainer.restorer.load_best(trainer.state)
                conclude(workload, trainer.engine, trainer.state, run_dir)
            trainer.log.finish()
            if groups.rank == 0:
                _finish(run_dir, outcome, time.monotonic() - begin)
            reason = outcome.reason
            if mirror is not None:
                mirror.finish(stays=reason != HANDOVER or not _job())
        except TrainingError as failure:
            trainer.saver.finish()
            trainer.profile.end()
            if groups.rank == 0:
                _record_failure(run_dir, failure, trainer.state.step)
            raise
        finally:
            trainer.log.finish()
            if trainer.log.sinks:
                watchdog.beat(ENDED)  # trackers may take their time
                trackers.close(trainer.log.sinks, workload.config, run_dir, trainer.state, reason)
        return outcome


def _prepare(run_dir: RunDir, config: Config) -> None:
    """Rank 0: refuse a folder of another run, note what changed, write config.yaml and env.json."""
    if run_dir.config.exists():
        changed = resume.changes(load_recorded(run_dir.config), config)
        resume.check(str(run_dir.path), changed, config.checkpoint.grows_at_resume)
        for key, (before, now) in changed.items():
            run_dir.add_event("changed", key=key, before=before, now=now)
        if any(run_dir.checkpoints.iterdir()) and (note := resume.length_note(changed)):
            log.say(note)
    if note := resume.first_note(run_dir, config):
        log.say(note)
    write_atomic(run_dir.config, to_yaml(config))
    environment = provenance.environment(compiles(config))
    if run_dir.environment.exists():
        changed = provenance.differences(read_json(run_dir.environment), environment)
        if changed:
            words = ", ".join(f"{key} {before} -> {now}" for key, (before, now) in changed.items())
            log.say(f"since the last segment of this run changed: {words}; results may differ in the last bits")
            run_dir.add_event("environment changed", changes=changed)
    write_json(run_dir.environment, environment)
    if _job():
        run_dir.outcome(_job()).unlink(missing_ok=True)  # a requeued job has the number of its first try


def _build(
    workload: Workload,
    run_dir: RunDir,
    groups: ProcessGroups,
    watchdog: HangWatchdog,
    requests: Requests,
    mirror: Mirror | None,
) -> Trainer:
    """Returns the trainer with its weights: from its newest good checkpoint, from the one its configuration names, or
    fresh.
    """
    config = workload.config
    engine = build_engine(config, groups, initialise=False, objective=workload.objective)
    beat = stragglers.watched(run_dir, groups, watchdog.beat)
    engine.progress = beat
    log.LOGGER.debug("%s, on %s with %d threads", groups, engine.device, torch.get_num_threads())
    sinks = trackers.begin(workload, run_dir, groups) if groups.rank == 0 else []
    saver = Saver(workload, run_dir, engine, mirror)
    restorer = Restorer(workload, run_dir, engine, saver)
    groups.on_rank_0(lambda: remove_unfinished(run_dir.checkpoints))
    state, beginning = restorer.first()
    if config.guard.on_spike == "rollback" and not saver.is_saved(state):
        saver.save(state, background=False)  # so that there is always something to go back to
    step_log = StepLog(workload, run_dir, engine, sinks)
    if groups.rank == 0:
        run_dir.done.unlink(missing_ok=True)
        step_log.first_step = restarts.first_step_note(run_dir)
        run_dir.add_event("started", step=state.step, steps=workload.steps, ranks=groups.world, job=_job())
        length, ranks = amount(workload.steps, "step"), amount(groups.world, "rank")
        log.say(f"{run_dir.path}: training {length} {beginning} on {ranks}")
        for note in (*_notes(workload, state.step, run_dir, engine), *step_log.watch.omissions()):
            log.say(note)
    shape_of = partial(batch_shape(config, groups).of_batch, sizes=workload.batch_sizes)
    trainer = Trainer(
        config=config,
        steps=workload.steps,
        batch_sizes=workload.batch_sizes,
        state=state,
        engine=engine,
        batches=Batches(workload.batch, run_dir, engine),
        spike_policy=SpikePolicy(config, engine, run_dir, shape_of, workload.sources),
        saver=saver,
        restorer=restorer,
        evaluator=Evaluator(workload, engine, run_dir, saver, step_log.evaluation),
        log=step_log,
        profile=Profile(config.train, workload.steps, run_dir, engine, watchdog, step_log.clock.pause, requests),
        requests=requests,
        run_dir=run_dir,
        beat=beat,
    )
    trainer.rewind()
    return trainer


def _notes(workload: Workload, done: int, run_dir: RunDir, engine: Engine) -> Iterator[str]:
    """Yields what a person may not expect of a run that has done so many steps."""
    config, steps = workload.config, workload.steps
    product = products.note(config.train.precision, engine.device)
    window = window_note(config.train, done, steps)
    yield from filter(None, (warmup_note(config.schedule, steps), product, _lack_of_space(run_dir, config), window))


def _lack_of_space(run_dir: RunDir, config: Config) -> str | None:
    """Says that a checkpoint does not fit on the disk of the run folder; None where it does."""
    free, needed = shutil.disk_usage(run_dir.path).free, _bytes_of_a_save(config)
    if free >= needed:
        return None
    return (
        f"{run_dir.path}: {byte_size(free)} are free, a checkpoint takes about {byte_size(needed)}: free some before "
        "the first save"
    )


def _bytes_of_a_save(config: Config) -> int:
    assert config.model.vocab_size is not None, "a workload fills it in"
    return STATE_BYTES * parameters(config.model, config.model.vocab_size)


def time_of_a_save(saver: Saver, config: Config) -> str:
    """Returns in brackets how long a save takes, or how much it writes where none was made yet."""
    if saver.seconds is not None:
        return f" (the last save took {duration(saver.seconds)})"
    return f" (about {byte_size(_bytes_of_a_save(config))} are written)"


def _finish(run_dir: RunDir, outcome: Outcome, seconds: float) -> None:
    """Rank 0 says and records how the run ended."""
    if outcome.reason == DONE:
        write_json(run_dir.done, {"step": outcome.step})
    words = {DONE: "done", USER: "stopped as asked", HANDOVER: "stopped to be continued"}[outcome.reason]
    log.say(f"{run_dir.path}: {words} after step {outcome.step}")
    run_dir.add_event("stopped", step=outcome.step, reason=outcome.reason, seconds=round(seconds, 3))
    if _job():
        code = EXIT_CONTINUE if outcome.reason == HANDOVER else 0
        write_json(run_dir.outcome(_job()), {"code": code, "reason": outcome.reason, "step": outcome.step})


def _record_failure(run_dir: RunDir, failure: TrainingError, step: int) -> None:
    run_dir.add_event("failed", step=step, reason=str(failure))
    if _job() and not failure.passes:
        with suppress(OSError):  # what ended the run is what is said
            write_json(run_dir.outcome(_job()), {"code": EXIT_FAILURE, "reason": str(failure), "step": step})


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID", "")
