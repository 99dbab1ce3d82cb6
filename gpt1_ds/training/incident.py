"""What is written down about a step that cannot be trusted: the ranks that saw it and the text it came from."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_USAGE, DataError, TrainingError
from gpt1_ds.common.files import write_json
from gpt1_ds.parallel import launch

if TYPE_CHECKING:
    from gpt1_ds.training.run import Run


def record(run: Run, step: int, problem: str, action: str) -> None:
    """An event with the micro-batches whose loss was not finite, by rank, and the documents of their rows (of the whole
    batch when no loss tells). All ranks call this.
    """
    bad = _bad_micro_batches(run)
    rows = [int(row) for number in bad for row in run.shape.rows()[number]]
    gathered = run.grid.gather((bad, rows))
    if run.grid.rank:
        return
    ranks = {str(rank): numbers for rank, (numbers, _) in enumerate(gathered) if numbers}
    suspects = sorted({row for _, rows in gathered for row in rows}) or range(run.config.train.global_batch)
    number = run.batch_number(step)
    documents = run.objective.sources(number, list(suspects))
    details = {"action": action, "problem": problem, "batch": number, "micro_batches_of_ranks": ranks}
    run.run_dir.add_event("spike", step=step, **details, rows=documents)
    if action != "raise":
        log.say(f"step {step}: {problem}; {action} (events.jsonl names the documents)")


def explain(run: Run, step: int, problem: str, times: int) -> str:
    """The line that ends a run. All ranks call this."""
    ranks = [rank for rank, bad in enumerate(run.grid.gather(bool(_bad_micro_batches(run)))) if bad]
    where = f" on rank {', '.join(map(str, ranks))}" if ranks else ""
    again = f" ({times} steps in a row)" if times > 1 else ""
    return (
        f"step {step}{where}: {problem}{again}; the last checkpoint is intact. {run.run_dir.events} names the "
        "documents of the batch; look at them, lower optimizer.lr, or set guard.on_spike=skip or rollback"
    )


def end_diverged(run: Run, problem: str) -> str:
    """The event and the line that end a run whose held-out loss rose. All ranks call this."""
    if run.grid.rank == 0:
        run.run_dir.add_event("diverged", step=run.step, problem=problem)
    return f"step {run.step}: {problem}; lower optimizer.lr, or warm up for longer"


def compare_replicas(run: Run) -> None:
    """Raise TrainingError, after an event, when ranks differ in what they hold in common. All ranks call this."""
    run.watch.beat("comparison of replicas")
    difference = run.replicas.compare()
    if difference is None:
        return
    if run.grid.rank == 0:
        details = {"parameter": difference.name, "what": difference.kind, "parameters": difference.parameters}
        run.run_dir.add_event("replicas differ", step=run.step, **details, ranks=difference.ranks)
    raise TrainingError(
        f"step {run.step}: {difference}; nothing of this state was saved. Run again to resume from the last "
        "checkpoint; if it happens again on the same node, its memory or its device is bad"
    )


@contextlib.contextmanager
def reading(run: Run) -> Iterator[None]:
    """What one rank alone finds wrong with the data ends the run: the others wait for it and cannot agree."""
    try:
        yield
    except DataError as error:
        if run.grid.world == 1:
            raise
        run.run_dir.add_event("bad data", step=run.step, rank=run.grid.rank, problem=str(error))
        if job := os.environ.get("SLURM_JOB_ID", ""):
            write_json(run.run_dir.outcome(job), {"code": EXIT_USAGE, "reason": str(error), "step": run.step})
        if not launch.tell(error):
            log.alarm(str(error))
        os._exit(EXIT_USAGE)


def _bad_micro_batches(run: Run) -> list[int]:
    return [number for number, loss in enumerate(run.engine.micro_losses) if not math.isfinite(float(loss))]
