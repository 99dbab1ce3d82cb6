"""Encoded examples and their batches: pure functions whose weights are those of the whole batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import TaskConfig
from gpt1_ds.config.task import Kind
from gpt1_ds.tasks.base import Layout, Task
from gpt1_ds.tasks.batches import MULTIPLE, TaskBatch, TrainBatches, batches_by_length, build_batch
from gpt1_ds.tasks.encoding import Encoded, encode, length_limit
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.kinds import KINDS
from gpt1_ds.tasks.kinds.regression import read_out, soft_targets
from tests.helpers.words import WordTokenizer


def task(kind: Kind = "classification", layout: Layout = "single", labels: tuple[str, ...] = ("no", "yes")) -> Task:
    return KINDS["choice" if layout == "choice" else kind](
        "made up", layout, labels if kind != "regression" else (), ("accuracy",)
    )


def words(count: int, seed: int = 0) -> str:
    return " ".join(f"w{number}" for number in np.random.default_rng(seed).integers(0, 50, count))


def some(count: int, kind: Kind = "classification", layout: Layout = "single", limit: int = 64) -> Encoded:
    draw = np.random.default_rng(3)
    examples = [
        Example(
            id=str(number),
            texts=tuple(
                words(int(draw.integers(1, 40)), number + k) for k in range(1 if layout in ("single", "choice") else 2)
            ),
            choices=tuple(words(int(draw.integers(1, 9)), number + k) for k in range(2)) if layout == "choice" else (),
            label=None if kind == "regression" else ("no", "yes")[number % 2],
            score=2.3 if kind == "regression" else None,
        )
        for number in range(count)
    ]
    return encode(task(kind, layout), examples, WordTokenizer(), limit)


def test_what_is_encoded() -> None:
    encoded = some(7, layout="choice")
    assert (len(encoded), encoded.sequences, encoded.lengths.shape) == (7, 2, (7, 2))
    assert encoded.lengths.sum() == len(encoded.tokens) == encoded.offsets[-1]
    assert (encoded.tokens.dtype, encoded.labels.tolist()) == (np.int32, [0, 1, 0, 1, 0, 1, 0])
    assert encoded.data_hash == some(7, layout="choice").data_hash != some(6, layout="choice").data_hash


@pytest.mark.parametrize("layout", ["single", "pair", "both", "choice"])
def test_examples_that_are_cut_are_counted(layout: Layout) -> None:
    assert some(20, layout=layout, limit=512).truncated == 0
    encoded = some(20, layout=layout, limit=16)
    assert 0 < encoded.truncated <= 20
    assert encoded.lengths.max() <= 16


def test_a_question_is_cut_off_too() -> None:
    one = Example("0", ("a b c", words(30)), ("x", "y"), "no")
    assert encode(task("choice", "choice"), [one], WordTokenizer(), 64).truncated == 1
    assert encode(task("choice", "choice"), [one], WordTokenizer(), 256).truncated == 0


def test_limits() -> None:
    assert length_limit(TaskConfig(), 512) == 512
    assert length_limit(TaskConfig(max_length=128), 512) == 128
    with pytest.raises(ConfigError, match=r"task\.max_length=600 is more than the model's context of 512"):
        length_limit(TaskConfig(max_length=600), 512)
    with pytest.raises(ConfigError, match="too short"):
        length_limit(TaskConfig(), 4)


def by_hand(batch: TaskBatch, losses: np.ndarray, lengths: np.ndarray) -> float:
    """The mean over sequences of the mean over their tokens after S."""
    means = [losses[b, c, : lengths[b, c] - 1].mean() for b in range(len(lengths)) for c in range(lengths.shape[1])]
    return float(np.mean(means))


@pytest.mark.parametrize("layout", ["single", "both", "choice"])
def test_arrays_of_a_batch(layout: Layout) -> None:
    encoded = some(9, layout=layout)
    examples = np.array([4, 0, 8])
    batch = build_batch(encoded, examples)
    B, C, T = batch.tokens.shape
    assert batch.tokens.shape[:2] == (3, encoded.sequences)
    assert T % MULTIPLE == 0
    assert 0 <= T - encoded.lengths[examples].max() < MULTIPLE
    for row, example in enumerate(examples):
        for c in range(C):
            start, stop = encoded.offsets[example * C + c : example * C + c + 2]
            assert batch.tokens[row, c, : stop - start].tolist() == encoded.tokens[start:stop].tolist()
            assert not batch.tokens[row, c, stop - start :].any()
            assert batch.tokens[row, c, batch.lengths[row, c] - 1] == 4, "the extract token"
            assert (batch.lm_weights[row, c] > 0).sum() == stop - start - 1, "D and E are predicted, padding is not"
    losses = np.random.default_rng(0).random((B, C, T - 1))
    assert (batch.lm_weights * losses).sum() == pytest.approx(
        by_hand(batch, losses, encoded.lengths[examples]), rel=1e-6
    )
    assert batch.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert batch.labels.tolist() == [0, 0, 0]


def test_soft_targets_ride_along() -> None:
    batch = build_batch(some(3, "regression", "both"), np.array([1, -1]))
    assert batch.targets is not None
    np.testing.assert_allclose(batch.targets, [[0, 0, 0.7, 0.3, 0, 0], [0] * 6], atol=1e-6)
    assert (batch.weights.tolist(), batch.labels.tolist()) == ([1, 0], [-1, -1])


def padding_share(batch: TaskBatch) -> float:
    """Share of all positions that hold no token, padding rows included."""
    return 1 - float(batch.lengths[batch.examples >= 0].sum()) / batch.tokens.size


def test_padding_rows_weigh_nothing() -> None:
    encoded = some(5, layout="choice")
    full, filled = build_batch(encoded, np.array([0, 1])), build_batch(encoded, np.array([0, 1, -1, -1]))
    assert filled.weights.tolist() == [0.5, 0.5, 0, 0]
    assert filled.examples.tolist() == [0, 1, -1, -1]
    np.testing.assert_array_equal(filled.lm_weights[:2], full.lm_weights)
    assert not filled.lm_weights[2:].any()
    assert not filled.tokens[2:].any()
    assert (filled.lengths[2:] == 1).all()
    assert padding_share(filled) > padding_share(full)


def test_an_encoders_rows_end_with_its_padding() -> None:
    encoded = replace(some(5, layout="pair"), pad=7)
    batch = build_batch(encoded, np.array([0, 1, -1]))
    for tokens_T, length in zip(batch.tokens[:2, 0], batch.lengths[:2, 0], strict=True):
        assert (tokens_T[length:] == 7).all()
    assert (batch.tokens[2] == 7).all()


def test_rows_keep_the_weights_of_the_whole_batch() -> None:
    """However a batch is cut over ranks and micro-batches, its parts sum to the whole."""
    batch = TrainBatches(some(50, layout="both"), 12, seed=1).at(2)
    for size in (1, 2, 3, 4, 6, 12):
        parts = [batch.rows(start, start + size) for start in range(0, 12, size)]
        for name in ("tokens", "lengths", "seconds", "lm_weights", "labels", "weights", "examples"):
            np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(batch, name))
    assert batch.lm_weights.sum() == pytest.approx(1)
    assert batch.weights.sum() == pytest.approx(1)


def test_an_epoch_shows_each_example_once_and_drops_the_rest() -> None:
    batches = TrainBatches(some(103), 8, seed=1)
    assert batches.per_epoch == 12, "103 // 8"
    first, second = batches.order(0), batches.order(1)
    for order in (first, second):
        assert order.shape == (12, 8)
        assert len(set(order.ravel().tolist())) == 96
    assert set(range(103)) - set(first.ravel()) != set(range(103)) - set(second.ravel()), (
        "not always the same are dropped"
    )
    np.testing.assert_array_equal(batches.at(12 + 5).examples, second[5])


def test_batches_are_a_pure_function() -> None:
    encoded = some(103)
    one, other = TrainBatches(encoded, 8, seed=1), TrainBatches(some(103), 8, seed=1)
    backwards = [other.at(k).examples for k in reversed(range(30))][::-1]
    np.testing.assert_array_equal(np.stack([one.at(k).examples for k in range(30)]), np.stack(backwards))
    assert not np.array_equal(one.order(0), TrainBatches(encoded, 8, seed=2).order(0))


def test_lengths_are_alike_within_a_batch() -> None:
    encoded = some(640)
    batches = TrainBatches(encoded, 8, seed=1)
    unsorted = [build_batch(encoded, np.arange(k, k + 8)) for k in range(0, 640, 8)]
    share = batches.padding_share()
    assert share < 0.5 * np.mean([padding_share(batch) for batch in unsorted])
    tokens = sum(int(batch.lengths.sum()) for batch in map(batches.at, range(batches.per_epoch)))
    places = sum(batch.tokens.size for batch in map(batches.at, range(batches.per_epoch)))
    assert share == pytest.approx(1 - tokens / places)
    means = encoded.lengths.max(axis=1)[batches.order(0)].mean(axis=1)
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.4, "batches come in no order of length"


def test_evaluation_covers_everything_by_length() -> None:
    encoded = some(21, layout="choice")
    batches = list(batches_by_length(encoded, 8))
    assert [len(batch.examples) for batch in batches] == [8, 8, 8]
    seen = np.concatenate([batch.examples for batch in batches])
    assert (sorted(seen[:21]), seen[21:].tolist()) == ([*range(21)], [-1, -1, -1])
    assert [float(batch.weights.sum()) for batch in batches] == pytest.approx([1, 1, 1])
    lengths = [batch.tokens.shape[2] for batch in batches]
    assert lengths == sorted(lengths, reverse=True)
    in_order = [build_batch(encoded, rows) for rows in np.append(np.arange(21), [-1, -1, -1]).reshape(3, 8)]
    assert sum(batch.tokens.size for batch in batches) < sum(batch.tokens.size for batch in in_order)


def test_unlabelled_examples_weigh_nothing() -> None:
    examples = [Example("0", ("a b",)), Example("1", ("c",), label="yes")]
    batch = build_batch(encode(task(), examples, WordTokenizer(), 16), np.arange(2))
    assert (batch.labels.tolist(), batch.weights.tolist()) == ([-1, 1], [0, 1])
    assert batch.lm_weights.sum() == pytest.approx(1)


def test_too_few_examples_for_a_batch() -> None:
    with pytest.raises(DataError, match=r"7 training examples are fewer than one batch; use train\.global_batch=7"):
        TrainBatches(some(7), 8, seed=1)


def test_lengths_stay_within_a_limit_that_is_no_multiple() -> None:
    assert build_batch(some(20, limit=13), np.arange(20)).tokens.shape[2] == 13


def test_soft_targets_and_back() -> None:
    scores = np.array([0, 0.25, 2.3, 4.999, 5])
    targets = soft_targets(scores, (0, 5))
    expected = [
        [1, 0, 0, 0, 0, 0],
        [0.75, 0.25, 0, 0, 0, 0],
        [0, 0, 0.7, 0.3, 0, 0],
        [0, 0, 0, 0, 0.001, 0.999],
        [0, 0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(targets, expected, atol=1e-6)
    np.testing.assert_allclose(read_out(targets, (0, 5)), scores, atol=1e-6)
    np.testing.assert_allclose(
        read_out(soft_targets(np.array([-1, 0.5, 1]), (-1, 1)), (-1, 1)), [-1, 0.5, 1], atol=1e-6
    )
