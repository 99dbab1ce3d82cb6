"""`train.micro_batch=auto` is a number that runs, and the largest that fits."""

from __future__ import annotations

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, to_yaml, world_problems
from gpt1_ds.config.sections import AUTO
from gpt1_ds.plan.memory import peak
from gpt1_ds.plan.planning import MOST, with_micro_batch

GIB = 2**30


def chosen(world: int, *words: str, device: str = "cuda", gib: float = 78) -> int:
    config = load(["pretrain/gpt1_117m"], words)
    assert config.train.micro_batch == AUTO
    found = with_micro_batch(config, world, device, int(gib * GIB))
    assert list(world_problems(found, world)) == []
    return found.train.micro_batch


@pytest.mark.parametrize(("world", "expected"), [(1, 64), (8, 8), (16, 4), (64, 1)])
def test_every_number_of_gpus_runs_the_preset(world: int, expected: int) -> None:
    assert chosen(world) == expected


def test_it_is_the_largest_that_fits() -> None:
    size = chosen(1, gib=10)
    assert 1 < size < 64
    config = load(["pretrain/gpt1_117m"])
    for micro_batch, fits in ((size, True), (2 * size, False)):
        other = load(["pretrain/gpt1_117m"], [f"train.micro_batch={micro_batch}"])
        assert (peak(other, 1, config.model.vocab_size or 0, "cuda").peak <= 10 * GIB) is fits


def test_pipelines_keep_enough_micro_batches_and_cpus_small_ones() -> None:
    assert chosen(2, "parallel.pipeline=2") == 8  # 8 of them for 2 stages
    assert chosen(1, device="cpu") == MOST["cpu"]


def test_what_fits_nowhere_is_tried_one_by_one() -> None:
    assert chosen(1, gib=0.1) == 1


@pytest.mark.parametrize(
    ("world", "device", "gib", "expected"),
    [(1, "cuda", 78, 64), (1, "cpu", 78, 16), (1, "cuda", 0.1, 16), (4, "cuda", 78, 16)],
)
def test_compared_examples_share_a_micro_batch(world: int, device: str, gib: float, expected: int) -> None:
    words = ["task.loss=ranking", "train.global_batch=64"]
    config = load(["finetune/sentences"], words)
    found = with_micro_batch(config, world, device, int(gib * GIB))
    assert (found.train.micro_batch, list(world_problems(found, world))) == (expected, [])
    (problem,) = world_problems(with_micro_batch(config, 8, device, int(gib * GIB)), 8)
    assert problem.startswith("train.global_batch=64 does not split into 8 data-parallel ranks x train.micro_batch=16")


def test_a_number_stays() -> None:
    config = load(["pretrain/gpt1_117m"], ["train.micro_batch=2"])
    assert with_micro_batch(config, 1, "cuda", 78 * GIB) is config


def test_it_is_written_and_read_back() -> None:
    assert load([], ["train.micro_batch=auto"]).train.micro_batch == AUTO
    assert f"micro_batch: {AUTO}" in to_yaml(load([], ["train.micro_batch=auto"]))
    with pytest.raises(ConfigError, match="micro_batch"):
        load([], ["train.micro_batch=most"])


def test_what_no_micro_batch_repairs_is_named() -> None:
    config = load(["pretrain/gpt1_117m"])
    found = with_micro_batch(config, 48, "cuda", 78 * GIB)
    assert "does not split into 48 data-parallel ranks" in next(world_problems(found, 48))
