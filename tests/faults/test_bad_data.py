"""A dataset that is not what was built is noticed before a step consumes it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.checkpoint.folders import find_checkpoint
from gpt1_ds.common.errors import DataError
from gpt1_ds.data import staging
from gpt1_ds.data.loader import BatchShape
from gpt1_ds.data.sources import open_data
from gpt1_ds.data.tokenizers.base import read_metadata
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.launcher import launch
from tools import runs


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def put_in_a_wrong_token(path: Path) -> None:
    tokens = np.fromfile(path, np.uint16)
    tokens[len(tokens) // 2] = 60_000
    tokens.tofile(path)


def take_another_dtype(path: Path) -> None:
    np.fromfile(path, np.uint16).astype(np.int32).tofile(path)


@pytest.mark.parametrize("kind", [".bin", ".idx"])
@pytest.mark.parametrize("damage", [flip_a_bit, truncate, put_in_a_wrong_token, take_another_dtype])
def test_no_step_is_trained_on_it(damage: Callable[[Path], None], kind: str, tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    path = next(path for path in sorted(data.iterdir()) if path.suffix == kind and "train" in path.name)
    damage(path)
    arguments = [f"data.path={data}", f"run.dir={tmp_path}", "train.steps=3"]
    with pytest.raises(DataError, match=path.stem):
        runs.pretrain(arguments, 2)
    assert runs.last_step(runs.folder(arguments)) == 0


@pytest.mark.parametrize("layout", [["parallel.tensor=2"], []], ids=["tp2", "dp2"])
def test_a_token_outside_the_vocabulary_ends_an_unverified_run(
    layout: list[str], tiny_data: Path, tmp_path: Path
) -> None:
    """Under tensor parallelism no rank has a row for it, and a zero would be trained on in its place."""
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    arguments = [f"data.path={data}", f"run.dir={tmp_path}", "train.steps=8", "data.verify=false", *layout]
    training = open_data(runs.configuration(arguments)).training
    path, second_batch = data / "train-00000.bin", np.array([8])
    start = int(training.orders[0].starts(second_batch, training.context, training.streams[0].tokens)[0])
    (source,) = training.documents(2, [0], BatchShape(8, 8))
    tokens = np.fromfile(path, np.uint16)
    tokens[start] = 500  # the first that is outside, in a window that one rank alone reads
    tokens.tofile(path)
    with pytest.raises(DataError) as caught:
        runs.pretrain(arguments, 2)
    document = f"token id 500 in document {source['documents'][0]} of train"
    assert str(caught.value).startswith(f"{path}: {document} is not in the vocabulary of 500; build the dataset again")
    assert "\n" not in str(caught.value)
    assert [event["problem"] for event in runs.events(runs.folder(arguments), "bad data")][:1] == [str(caught.value)]


def test_a_shard_that_is_cut_while_it_is_read_ends_the_run_with_its_name(tiny_data: Path, tmp_path: Path) -> None:
    """The kernel would kill whoever touches a mapping behind the end of its file."""
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    path = data / "train-00000.bin"
    run = runs.Background([f"data.path={data}", f"run.dir={tmp_path}", "train.steps=100000"], 2)
    run.wait_for_step(2)
    os.truncate(path, 4096)
    run.join()
    assert isinstance(run.error, DataError)
    assert str(run.error).startswith(f"{path}: was cut to 4096 bytes while it was read")


def test_another_tokenizer_in_the_dataset_is_not_taken_for_its_own(tiny_data: Path, tmp_path: Path) -> None:
    """Not at a save, whose checkpoint would give its ids to other pieces, and not at the next start."""
    data, other = tmp_path / "data", tmp_path / "other"
    shutil.copytree(tiny_data, data)
    train_tokenizer([tiny_data.parent / "text" / "00.txt"], other, 500)
    arguments = [f"data.path={data}", f"run.dir={tmp_path}", "train.steps=100000", "checkpoint.every=0"]
    run = runs.Background(arguments, 2)
    run.wait_for_step(1)
    shutil.copytree(other, data / "tokenizer", dirs_exist_ok=True)
    run.run_dir.stop.touch()
    run.join()
    kept = read_metadata(find_checkpoint(run.run_dir.path) / "tokenizer")
    assert kept == read_metadata(tiny_data / "tokenizer") != read_metadata(other)
    with pytest.raises(DataError, match="tokenizer: not the tokenizer this dataset was built with"):
        runs.pretrain(arguments, 2)


def on_a_node_of_its_own(arguments: list[str], place: str, damaged: int) -> int:
    """Runs on every rank: a node that has copied the data to its own disk, where on one of them a bit flips."""
    from gpt1_ds.training.pretraining import pretrain

    config, rank = runs.configuration(arguments), os.environ["RANK"]
    os.environ.update({staging.VARIABLE: f"{place}/node{rank}", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    source = config.data.path[0].path
    staging.stage([source], Path(place) / f"node{rank}")
    if rank == str(damaged):
        flip_a_bit(next(staging.staged(source).glob("train-*.bin")))
    return pretrain(config)


@pytest.mark.parametrize("damaged", [0, 1])
def test_every_nodes_own_copy_is_verified(damaged: int, tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=3"]
    with pytest.raises(DataError, match=rf"node{damaged}/.*train-00000\.bin: its sha256 differs"):
        launch.launch("tests.faults.test_bad_data:on_a_node_of_its_own", (arguments, str(tmp_path), damaged), 2)
