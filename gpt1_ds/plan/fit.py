"""`train.micro_batch=auto`: as many sequences at a time as a rank has memory for."""

from __future__ import annotations

from dataclasses import replace

from gpt1_ds.config import Config
from gpt1_ds.config.sections import AUTO
from gpt1_ds.plan.memory import peak
from gpt1_ds.plan.report import ASSUMED_VOCABULARY
from gpt1_ds.plan.search import divisors

MOST = {"cuda": 64, "cpu": 8}  # sequences; more of them make no step faster
IN_FLIGHT = 4  # micro-batches of a step for each pipeline stage, so that its ranks seldom wait


def with_micro_batch(config: Config, world: int, device: str, limit: int) -> Config:
    """`config` for `world` ranks, each of which may use `limit` bytes of a `device`, "cuda" or "cpu". A number that is
    given stays, and so does what no micro-batch can repair: validation names it. Examples that are compared with one
    another (task.group) share a micro-batch.
    """
    if config.train.micro_batch != AUTO:
        return config
    data_ranks = max(1, world // (config.parallel.tensor * config.parallel.pipeline))
    rows = max(1, config.train.global_batch // data_ranks)  # of a data rank, for a step
    stages = config.parallel.pipeline
    most = min(MOST[device], rows if stages == 1 else max(1, rows // (IN_FLIGHT * stages)))
    group = _group(config)
    sizes = [group * size for size in divisors(max(1, rows // group)) if group * size <= max(most, group)]
    vocabulary = config.model.vocab_size or ASSUMED_VOCABULARY
    for size in reversed(sizes):
        found = replace(config, train=replace(config.train, micro_batch=size))
        if size == group or config.model.kind == "lstm" or peak(found, world, vocabulary, device).peak <= limit:
            break
    return found


def _group(config: Config) -> int:
    """Examples that no micro-batch may part."""
    task = config.task
    return task.group if task is not None and task.makes_vectors and task.loss == "ranking" else 1
