"""Checkpoints of format 1 are read for ever: this one was written on TP2 x PP2 by the first version that had it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.launcher import launch
from tools.resume_matrix import _not_restored

FOLDER = Path(__file__).parent / "format-1" / "step-00000003"


@pytest.mark.parametrize(("ranks", "words"), [(1, []), (2, ["parallel.zero=3"]), (2, ["parallel.pipeline=2"])])
def test_it_still_resumes(ranks: int, words: list[str]) -> None:
    arguments = ([*words, "train.global_batch=4", "train.micro_batch=1"],)
    for facts, wrong in launch.run("tests.golden.test_format_1:load_it", arguments, ranks):
        assert not wrong
        assert (facts["format"], facts["step"], facts["updates"], facts["precision"]) == (1, 3, 3, "fp32")


def load_it(words: list[str]):  # type: ignore[no-untyped-def]
    """Runs on every rank. Loading itself compares parameter hashes and the probe's loss."""
    import torch.distributed as dist

    from gpt1_ds.checkpoint.restore import restore, verify_checkpoint
    from gpt1_ds.config import load
    from gpt1_ds.engine.build import build_engine
    from gpt1_ds.engine.process_groups import ProcessGroups, connect

    layout = ["parallel.tensor=1", "parallel.pipeline=1", "parallel.zero=1"]
    config = load([str(FOLDER / "config.yaml")], [*layout, *words])
    connect(60)
    engine = build_engine(config, ProcessGroups(config))
    verify_checkpoint(engine, FOLDER)
    restore(engine, config, FOLDER)
    wrong = _not_restored(engine, config, FOLDER)
    dist.destroy_process_group()
    return manifest.read(FOLDER), wrong


def test_it_can_be_sampled_from() -> None:
    from gpt1_ds.evaluation.generate import generate
    from gpt1_ds.evaluation.load import load_checkpoint
    from gpt1_ds.evaluation.sampling import Sampling

    loaded = load_checkpoint(FOLDER)
    assert loaded.step == 3
    assert isinstance(generate(loaded, "The", Sampling(5, 0.0, 0, 1.0, 0)), str)
