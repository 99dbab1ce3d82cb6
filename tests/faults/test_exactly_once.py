"""Every sequence is trained on once and in order, whatever the run goes through."""

from __future__ import annotations

import random
from pathlib import Path

from gpt1_ds.common.rundir import read_jsonl
from tools import runs

LAYOUTS: list[tuple[int, list[str]]] = [
    (1, ["train.micro_batch=8"]),
    (2, ["train.micro_batch=2"]),
    (2, ["parallel.tensor=2", "train.micro_batch=4"]),
    (2, ["parallel.pipeline=2", "train.micro_batch=2"]),
]
RESTARTS, STEPS = 6, 14


def consumed(arguments: list[str]) -> list[tuple[int, int, str]]:
    """(step, tokens so far, fingerprint of the batch: a hash of its sequences' numbers and content)"""
    lines = [line for line in read_jsonl(runs.folder(arguments).metrics) if line["kind"] == "train"]
    return [(line["step"], line["tokens"], line["batch_fingerprint"]) for line in lines]


def test_restarts_and_changing_layouts(tiny_data: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    common = [f"data.path={tiny_data}", "data.offsets=epoch", "checkpoint.every=1", "checkpoint.keep=2"]
    told = [*common, f"run.dir={tmp_path / 'restarted'}"]
    changes = sorted(draw.sample(range(1, RESTARTS), 3))
    for number, end in enumerate([*sorted(draw.sample(range(1, STEPS), RESTARTS)), STEPS]):
        ranks, layout = LAYOUTS[sum(number >= change for change in changes)]
        assert runs.pretrain([*told, *layout, f"train.steps={end}"], ranks) == 0
    whole = [*common, *LAYOUTS[0][1], f"train.steps={STEPS}", f"run.dir={tmp_path / 'whole'}"]
    assert runs.pretrain(whole, 1) == 0
    assert consumed(told) == consumed(whole)
    assert len(runs.events(runs.folder(told), "started")) == RESTARTS + 1
