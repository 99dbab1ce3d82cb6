"""The batch grows with the tokens that were read: every size, and the length of a run that is counted from them."""

from __future__ import annotations

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, world_problems
from gpt1_ds.config.batch_sizes import BatchSizes

FULL = 1 << 62


@pytest.mark.parametrize(
    ("first", "full", "tokens", "row"),
    [(16, 256, 1_000_000, 64), (16, 256, 40_000, 512), (1, 7, 1, 32), (4, 8, 12_345, 7), (32, 1536, 4_000_000, 2048)],
)
def test_sizes_are_those_that_a_count_of_tokens_gives(first: int, full: int, tokens: int, row: int) -> None:
    sizes, before, steps = BatchSizes.growing(first, full, tokens, row), 0, 0
    while before < tokens / row + 3 * full:
        steps += 1
        assert sizes.before(steps) == before
        grown = first * (1 + before * row * (full // first - 1) // tokens)
        assert sizes.size(steps) == min(full, grown)
        assert sizes.size(steps) % first == 0
        before += sizes.size(steps)
        assert sizes.position(steps) == before / full
        assert sizes.steps(before / full) == steps
        assert sizes.steps((before + 1) / full) == steps + 1
    assert sizes.size(steps) == sizes.full == full
    assert sizes.size(FULL) == full


def test_without_a_warm_up_all_are_alike() -> None:
    sizes = BatchSizes.constant(12)
    assert [sizes.size(step) for step in (1, 2, 10**9)] == [12, 12, 12]
    assert (sizes.before(1), sizes.before(4), sizes.position(7), sizes.steps(6.01)) == (0, 36, 7, 7)
    assert load().batch_sizes == BatchSizes.constant(load().train.global_batch)


def test_a_run_of_so_many_tokens_has_more_steps() -> None:
    arguments = ["train.global_batch=64", "train.batch_warmup=8", "train.batch_warmup_tokens=1M", "model.context=128"]
    config = load([], arguments)
    sizes = config.batch_sizes
    steps = sizes.steps(2_000_000 / (64 * 128))
    assert steps > 2_000_000 / (64 * 128) * 1.2
    assert sizes.before(steps) * 128 < 2_000_000 <= sizes.before(steps + 1) * 128


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.batch_warmup=8"], "train.batch_warmup=8 needs train.batch_warmup_tokens; give both"),
        (["train.batch_warmup_tokens=8M"], "train.batch_warmup_tokens=8000000 needs train.batch_warmup; give both"),
        (["train.batch_warmup=8", "train.batch_warmup_tokens=0"], "train.batch_warmup_tokens=0 must be at least 1"),
        (["train.batch_warmup=12", "train.batch_warmup_tokens=1M"], "does not divide train.global_batch=64"),
        (["train.batch_warmup=0", "train.batch_warmup_tokens=1M"], "does not divide train.global_batch=64"),
        (["train.batch_warmup=4", "train.batch_warmup_tokens=1M"], "is not a multiple of train.micro_batch=8"),
        (
            ["train.batch_warmup=8", "train.batch_warmup_tokens=1M", "task.name=cola", "task.path=x"],
            "is for pre-training",
        ),
    ],
)
def test_what_is_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([], ["train.global_batch=64", "train.micro_batch=8", *arguments])
    assert says in caught.value.problems[0]


def test_the_first_batch_has_to_split_over_the_ranks() -> None:
    config = load([], ["train.global_batch=64", "train.batch_warmup=8", "train.batch_warmup_tokens=1M"])
    assert not list(world_problems(config, 1))
    (line,) = world_problems(config, 2)
    assert line == (
        "train.batch_warmup=8 does not split into 2 data-parallel ranks x train.micro_batch=8; use a multiple of 16, "
        "or train.micro_batch=4"
    )


def test_a_smaller_micro_batch_is_a_way_out_of_a_batch_that_does_not_split() -> None:
    """A run that continues on more ranks cannot change its batch, which alone was named."""
    (line,) = world_problems(load([], ["train.global_batch=12", "train.micro_batch=12"]), 2)
    assert line.endswith("use a multiple of 24, or train.micro_batch=6")
    assert not list(world_problems(load([], ["train.global_batch=12", "train.micro_batch=6"]), 2))
    (line,) = world_problems(load([], ["train.global_batch=9", "train.micro_batch=1"]), 2)
    assert line.endswith("use a multiple of 2"), "no micro-batch splits nine"
