import math
from itertools import pairwise

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config.objective import RowLengths
from gpt1_ds.config.sections import DataConfig, ScheduleConfig, TrainConfig
from gpt1_ds.training.schedule import learning_rate, total_steps, warmup_note

ROW = RowLengths(text=8, stacks=(8,), predicted=8)


def rates(steps: int, **settings: object) -> list[float]:
    schedule = ScheduleConfig(**settings)  # type: ignore[arg-type]
    return [learning_rate(schedule, 1.0, step, steps) for step in range(1, steps + 1)]


def test_the_papers_schedule() -> None:
    found = rates(10_000, kind="cosine", warmup_steps=2000)
    assert found[0] == 1 / 2000
    assert found[999] == 0.5
    assert found[1999] == 1.0
    assert found[5999] == pytest.approx(0.5, abs=1e-3)
    assert all(a < b for a, b in pairwise(found[:2000]))
    assert all(a > b for a, b in pairwise(found[1999:]))


def test_other_shapes() -> None:
    assert rates(9, kind="linear", warmup_steps=0, final_fraction=0.5)[-1] == pytest.approx(0.55)
    assert rates(9, kind="linear", warmup_steps=5)[5:] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    wsd = rates(95, kind="wsd", warmup_steps=10, decay_fraction=0.2)
    assert set(wsd[9:76]) == {1.0}
    assert wsd[85] == 0.5
    assert wsd[-1] == 1 / 20
    assert set(rates(10, kind="constant", warmup_steps=0)) == {1.0}
    found = rates(400, kind="rsqrt", warmup_steps=25)
    assert (found[24], found[99], found[-1]) == (1.0, 0.5, 0.25)
    assert found == rates(900, kind="rsqrt", warmup_steps=25)[:400], "whatever the length of the run"
    assert rates(400, kind="rsqrt", warmup_steps=25, final_fraction=0.5)[-1] == 0.5
    assert rates(1000)[19] == 1.0, "2 % of warm-up unless said otherwise"
    assert rates(5, warmup_steps=100)[-1] == 1.0, "a warm-up longer than the run ends with it"


@pytest.mark.parametrize("kind", ["cosine", "linear", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_the_last_update_is_not_at_rate_0(kind: str, steps: int) -> None:
    """The shape ends one update later: what the last one would have had is the step from it to 0."""
    found = rates(steps, kind=kind, warmup_steps=0)
    assert all(a >= b > 0 for a, b in pairwise([1.0, *found]))
    schedule = ScheduleConfig(kind=kind, warmup_steps=0)  # type: ignore[arg-type]
    assert learning_rate(schedule, 1.0, steps + 1, steps) == 0.0


def test_a_kind_without_a_shape_is_not_constant() -> None:
    schedule = ScheduleConfig(kind="exponential", warmup_steps=0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="exponential"):
        learning_rate(schedule, 1.0, 5, 10)


def test_a_warm_up_that_is_cut_is_said() -> None:
    note = warmup_note(ScheduleConfig(warmup_steps=100), 40)
    assert (
        note == "schedule.warmup_steps=100 is more than the 40 steps of the run: the learning rate rises until the end"
    )
    assert warmup_note(ScheduleConfig(warmup_steps=40), 40) is None
    assert warmup_note(ScheduleConfig(), 40) is None


def test_a_warm_up_that_reaches_into_the_decay_is_said() -> None:
    note = warmup_note(ScheduleConfig(kind="wsd", warmup_steps=90, decay_fraction=0.2), 100)
    assert note is not None
    assert note.startswith("schedule.warmup_steps=90 reaches into the decay of the last 20 steps: ")
    assert warmup_note(ScheduleConfig(kind="wsd", warmup_steps=80, decay_fraction=0.2), 100) is None


def test_length_in_steps_tokens_and_epochs() -> None:
    def steps(**train: object) -> int:
        return total_steps(TrainConfig(global_batch=4, **train), DataConfig(), ROW, 1000)  # type: ignore[arg-type]

    fed = RowLengths(text=8, stacks=(6, 4), predicted=4)  # of an encoder-decoder: tokens are what it is fed with
    assert total_steps(TrainConfig(global_batch=4, tokens=65), DataConfig(), fed, 1000) == 2
    assert total_steps(TrainConfig(global_batch=4, epochs=2.0), DataConfig(), fed, 1000) == 63
    assert (steps(steps=7), steps(tokens=65), steps(epochs=2.0), steps()) == (7, 3, 63, math.ceil(1000 / 32))
    once = TrainConfig(global_batch=4, epochs=1.0)
    assert total_steps(once, DataConfig(epochs_limit=1.0), ROW, 1000) == 32, "its last step ends in the next epoch"
    sources = [("wide", 250), ("narrow", 50)]  # sequences of the run until each has been read once
    with pytest.raises(
        ConfigError, match=r"limit=1.0: 32 steps pass 2.56 times over narrow, for its weight; train sho"
    ):
        total_steps(once, DataConfig(epochs_limit=1.0), ROW, 1000, sources)
    assert total_steps(once, DataConfig(epochs_limit=2.56), ROW, 1000, sources) == 32
    with pytest.raises(ConfigError, match=r"data.epochs_limit=1.5: 63 steps pass 2.02 times"):
        total_steps(TrainConfig(global_batch=4, epochs=2.0), DataConfig(epochs_limit=1.5), ROW, 1000)
