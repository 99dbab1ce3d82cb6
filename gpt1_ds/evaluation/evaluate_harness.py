"""`evaluate --lm-eval`: tasks of lm-evaluation-harness on checkpoints, results merged into eval.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.checkpoint.restore import same_manifest
from gpt1_ds.common import log, progress
from gpt1_ds.config import Config
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.continuations import Continuations
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.tracking.entries import Entry, merge, read_entries
from gpt1_ds.tracking.wandb_run import show_evaluation


def evaluate_harness(
    config: Config,
    checkpoints: Sequence[Path],
    out: Path | None,
    tasks: Sequence[str],
    limit: int | None,
    missing: bool,
) -> int:
    """Score `checkpoints`; rank 0 prints the results and merges them into `out` (eval.json), one by one.

    `missing` leaves out the checkpoints whose results, of as many examples, are in `out` already.
    """
    from gpt1_ds.interop import harness

    arguments = {"checkpoints": checkpoints, "tasks": tasks, "limit": limit, "missing": missing}
    with distributed_session(config, command="evaluate --lm-eval", **arguments) as groups:
        there = groups.on_rank_0(lambda: read_entries(out))  # what is no eval.json is refused before work is done
        done = {(e["task"], e["step"]): e["metrics"].get("examples") for e in there} if missing else {}
        asked = groups.agree(lambda: harness.load_tasks(tasks))
        wanted = asked.examples(limit)
        groups.compare({f"{name}'s examples": count for name, count in wanted.items()})
        for checkpoint in checkpoints:
            step = int(same_manifest(groups, checkpoint)["step"])
            if all(done.get((harness.PREFIX + name, step)) == count for name, count in wanted.items()):
                continue
            scorer = groups.agree(lambda path=checkpoint: Continuations(load_checkpoint(path), groups))  # type: ignore[misc]
            with progress.bar(watched=groups.rank == 0) as show:
                show(words=", ".join(tasks))
                found = harness.run(scorer, asked, limit)
            for entry in found:
                groups.on_rank_0(lambda path=checkpoint, one={**entry, "step": step}: _tell(path, out, one))  # type: ignore[misc]
        if groups.rank == 0:
            show_evaluation(config, out)
    return 0


def _tell(checkpoint: Path, out: Path | None, entry: Entry) -> None:
    shown = ", ".join(f"{key} {value:.4g}" for key, value in entry["metrics"].items())
    log.say(f"{checkpoint}: {entry['task']} {entry['split']}: {shown}")
    if out is not None:
        merge(out, entry)
