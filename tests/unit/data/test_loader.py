"""Batches: the same whatever the layout, from the windows that the order names."""

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.config import load
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.loader import BatchShape, HeldOutData, TrainingData
from gpt1_ds.data.rows import count_windows
from gpt1_ds.data.sources import open_data


@pytest.fixture(scope="module")
def training(tiny_data: Path) -> TrainingData:
    dataset = Dataset(tiny_data)
    return TrainingData([dataset.split("train")], [dataset.data_hash], [1.0], context=32, seed=1)


def joined(training: TrainingData, step: int, micro_batch: int, data_size: int) -> tuple[np.ndarray, int]:
    parts, total = [], 0
    for rank in range(data_size):
        batch = training.batch(step, BatchShape(16, micro_batch, data_size, rank))
        parts += [(rows.row_B, rows.tokens_BT) for rows in batch.micro_batches]
        total += batch.fingerprint
    rows = np.concatenate([row for row, _ in parts])
    tokens = np.concatenate([tokens for _, tokens in parts])
    assert sorted(rows) == list(range(16))
    return tokens[np.argsort(rows)], total % 2**64


@pytest.mark.parametrize("step", [1, 2, 10**6])
def test_a_batch_is_the_same_on_every_layout(training: TrainingData, step: int) -> None:
    first = joined(training, step, 16, 1)
    for micro_batch, data_size in ((1, 1), (4, 1), (8, 2), (1, 16), (2, 4)):
        tokens, total = joined(training, step, micro_batch, data_size)
        assert np.array_equal(tokens, first[0])
        assert total == first[1]


def test_windows_are_contiguous_text_with_the_label_behind(training: TrainingData) -> None:
    tokens = training.windows(np.arange(5))
    stream = training.streams[0]
    for row, window in zip(tokens, training.orders[0].at(np.arange(5)), strict=True):
        assert np.array_equal(row, stream.read(int(window) * 32, 33))


def test_moving_windows_are_text_on_a_ring_on_every_layout(tiny_data: Path) -> None:
    dataset = Dataset(tiny_data)
    stream = dataset.split("train")
    moving = TrainingData([stream], [dataset.data_hash], [1.0], context=32, seed=1, moving=True)
    windows = moving.orders[0].windows
    text = stream.read(0, stream.tokens)
    ring = np.concatenate([text, text[:33]])
    starts = moving.orders[0].starts(np.arange(windows), 32, stream.tokens)
    assert np.array_equal(moving.windows(np.arange(windows)), np.stack([ring[at : at + 33] for at in starts]))
    around = int(np.flatnonzero(starts + 33 > stream.tokens)[0])  # the window over the end
    (row,) = moving.documents(around // 16 + 1, [around % 16], BatchShape(16, 16))
    assert {0, stream.documents - 1} <= set(row["documents"])
    first = joined(moving, 2, 16, 1)
    for micro_batch, data_size in ((4, 1), (8, 2), (1, 16)):
        tokens, total = joined(moving, 2, micro_batch, data_size)
        assert np.array_equal(tokens, first[0])
        assert total == first[1]


def test_held_out_batches_cover_every_window_once(tiny_data: Path) -> None:
    dataset = Dataset(tiny_data)
    held_out = HeldOutData(dataset.split("validation"), dataset.data_hash, 32)
    batches = list(held_out.batches(BatchShape(16, 4)))
    real = [tokens.tobytes() for batch in batches for rows in batch for tokens in rows.tokens_BT[rows.row_B >= 0]]
    windows = [held_out.stream.read(at * 32, 33).astype(np.int64).tobytes() for at in range(held_out.order.windows)]
    assert sorted(real) == sorted(windows)
    assert len(list(held_out.batches(BatchShape(16, 4), limit=2))) == held_out.count(BatchShape(16, 4), limit=2) == 2
    assert held_out.count(BatchShape(16, 4), limit=10**6) == len(batches) == held_out.count(BatchShape(16, 4))


def test_held_out_text_is_read_batch_by_batch(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus holds out as many tokens as memory has bytes."""
    dataset = Dataset(tiny_data)
    held_out = HeldOutData(dataset.split("validation"), dataset.data_hash, 32)
    asked: list[int] = []
    one = HeldOutData._batch
    monkeypatch.setattr(
        HeldOutData, "_batch", lambda data, number, shape: asked.append(number) or one(data, number, shape)
    )
    batches = held_out.batches(BatchShape(16, 4))
    assert asked == []
    for number, _ in enumerate(batches):
        assert asked == list(range(number + 1))
    assert len(asked) > 2


def test_blending_sources(tiny_data: Path) -> None:
    stream, data_hash = Dataset(tiny_data).split("train"), Dataset(tiny_data).data_hash
    both = TrainingData([stream, stream], [data_hash, data_hash + "2"], [3, 1], context=32, seed=1)
    alone = TrainingData([stream], [data_hash], [1], context=32, seed=1)
    tokens = both.windows(np.arange(40))
    heavy = alone.windows(np.arange(30))
    assert {row.tobytes() for row in heavy} <= {row.tobytes() for row in tokens}


def test_too_little_data_for_the_context(tiny_data: Path) -> None:
    with pytest.raises(DataError, match=r"too few for one window of model.context=10000000"):
        count_windows(Dataset(tiny_data).split("train"), 10**7)
    with pytest.raises(DataError, match=r"or build it again of more text, or with a larger --validation$"):
        count_windows(Dataset(tiny_data).split("validation"), 10**7)


def test_a_model_smaller_than_the_tokenizer(tiny_data: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.vocab_size=100 is smaller than the tokenizer's 500"):
        open_data(load([], [f"data.path={tiny_data}", "model.vocab_size=100"]))


def test_whole_rows_repeat_their_masks_by_window(tiny_data: Path) -> None:
    """With copies, pass p of a window has version p % copies; without, every sequence its own."""
    dataset = Dataset(tiny_data)
    arguments = ([dataset.split("train")], [dataset.data_hash], [1.0], 32, 1)
    copies, anew = (TrainingData(*arguments, whole=True, copies=count) for count in (2, 0))
    windows = copies.orders[0].used
    versions = [copies._versions(np.arange(windows) + windows * number) for number in range(4)]
    assert sorted(versions[0]) == sorted(versions[2])
    assert not {*versions[0]} & {*versions[1]}
    assert len({*versions[0]}) == windows
    assert np.array_equal(anew._versions(np.arange(5)), np.arange(5))
    first, again = (part.tokens_BS for data in (copies, anew) for part in data.batch(1, BatchShape(4, 4)).micro_batches)
    assert np.array_equal(first, again)
