"""`evaluate --sts`: how well cosines of sentence vectors agree with people's scores of pairs, for any checkpoint.

Each rank holds the whole model and takes its part of the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpt1_ds.checkpoint.restore import same_manifest
from gpt1_ds.common import log
from gpt1_ds.config import Config
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.embed import Embedder, Pooled, normalised, shared_vectors
from gpt1_ds.evaluation.load import load_checkpoint
from gpt1_ds.tasks.base import Examples
from gpt1_ds.tasks.kinds.sentences import STS, Sentences
from gpt1_ds.tasks.metrics import measure
from gpt1_ds.tasks.reading import read_scored
from gpt1_ds.tracking.entries import key_of, merge, read_entries
from gpt1_ds.tracking.wandb_run import show_evaluation


def evaluate_sts(
    config: Config,
    checkpoints: Sequence[Path],
    out: Path | None,
    pairs: str,
    pooling: Pooled | None,
    missing: bool = False,
) -> int:
    """Score `checkpoints` by the scored `pairs` (task.sts); rank 0 prints the results and merges them into `out`
    (eval.json) as task `sts`, or with another `pooling` than the checkpoint's own as `sts-words`. `missing` leaves out
    what `out` has already.
    """
    arguments = {"checkpoints": checkpoints, "pairs": pairs, "pooling": pooling, "missing": missing}
    with distributed_session(config, command="evaluate --sts", **arguments) as groups:
        splits = groups.agree(lambda: read_scored(pairs))
        there = groups.on_rank_0(lambda: read_entries(out))
        done = {key_of(entry) for entry in there} if missing else set()
        for checkpoint in checkpoints:
            same_manifest(groups, checkpoint)
            embedder = groups.agree(lambda path=checkpoint: Embedder(load_checkpoint(path), pooling))  # type: ignore[misc]
            task = STS if embedder.pooling == embedder.default else f"{STS}-{embedder.pooling}"
            for split, examples in splits.items():
                if (task, split, embedder.loaded.step) in done:
                    continue
                metrics = sts_metrics(embedder, examples, groups)
                if groups.rank:
                    continue
                shown = ", ".join(f"{name} {'not defined' if x is None else f'{x:.4f}'}" for name, x in metrics.items())
                log.say(f"{checkpoint}: {task} {split} ({embedder.pooling}): {shown}")
                if out is not None:
                    merge(out, {"task": task, "split": split, "step": embedder.loaded.step, "metrics": metrics})
        if groups.rank == 0:
            show_evaluation(config, out)
    return 0


def sts_metrics(embedder: Embedder, examples: Examples, groups: ProcessGroups) -> dict[str, float | None]:
    """Spearman's and Pearson's correlation of the cosine with the score, the same on every rank."""
    vectors = shared_vectors(embedder, (text for example in examples for text in example.texts), groups)
    pairs = ([vectors[text] for text in one.texts] for one in examples)
    first, second = (normalised(np.stack(side)) for side in zip(*pairs, strict=True))
    cosines = (first * second).sum(axis=1, dtype=np.float64)
    gold = np.array([one.score for one in examples], dtype=np.float64)
    return {metric: measure(metric, gold, cosines) for metric in Sentences.fitting_metrics}
