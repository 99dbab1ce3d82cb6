"""Datasets by name. A server on this machine stands for the hub (tests/helpers/folder_hub.py): no network is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.build import build
from gpt1_ds.data.hub_datasets import find
from tests.helpers.folder_hub import SHA, HubServer, serve
from tests.unit.data.formats import DOCUMENTS, write_jsonl, write_parquet

PARTS = ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet")
PROGRAM = """
import json, sys
from gpt1_ds.cli import main
for words in json.loads(sys.argv[1]):
    print("exit code", main(words), file=sys.stderr, flush=True)
"""
LEFT_OUT = "leaves out 1 row without text (no `text`, null, NaN or empty)"  # an empty one of DOCUMENTS
Build = Callable[..., list[tuple[int, str]]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    folder = tmp_path / "hub" / "datasets" / "org" / "books"
    folder.mkdir(parents=True)
    for name, texts in zip(PARTS, (DOCUMENTS[:90], DOCUMENTS[90:]), strict=True):
        write_parquet(folder / name, texts)
    with serve(tmp_path / "hub") as server:
        yield server


@pytest.fixture
def run(hub: HubServer, tokenizer_folder: Path, tmp_path: Path) -> Build:
    def run(*commands: str, out: str = "out", **variables: str) -> list[tuple[int, str]]:
        """(exit code, what it said) of `data build` for each input with its options, in one process."""
        rest = ["--tokenizer", str(tokenizer_folder), "--out", str(tmp_path / out), "--validation", "0.1"]
        words = [["data", "build", "--input", *command.split(), *rest] for command in commands]
        given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), **variables}
        process = [sys.executable, "-c", PROGRAM, json.dumps(words)]
        done = subprocess.run(process, env={**os.environ, **given}, capture_output=True, text=True, timeout=120)
        pieces = re.split(r"exit code (\d+)\n", done.stderr)
        return [(int(code), said.strip()) for said, code in zip(pieces[::2], pieces[1::2], strict=False)]

    return run


def one_line(done: tuple[int, str]) -> str:
    code, said = done
    assert (code, len(said.splitlines())) == (2, 1), said
    return said


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*") if path.suffix in (".bin", ".idx")}


@pytest.mark.slow
def test_a_dataset_by_name_gives_the_bytes_of_text(
    hub: HubServer, run: Build, tokenizer_folder: Path, tmp_path: Path
) -> None:
    hub.broken.append(PARTS[1])
    ((code, said),) = run("hf:org/books --workers 2")
    assert code == 0, said
    assert "Retrying" in said
    build([write_jsonl(tmp_path / "a.jsonl")], tokenizer_folder, tmp_path / "text", workers=1, validation=0.1)
    assert shards(tmp_path / "out") == shards(tmp_path / "text")
    assert not hub.broken
    assert all(SHA in line for line in hub.asked if ".parquet" in line)


@pytest.mark.slow
def test_a_resumed_build_reads_only_what_is_missing(hub: HubServer, run: Build, tmp_path: Path) -> None:
    hub.missing.add(PARTS[1])
    assert "hf:org/books: shard 1 cannot be read" in one_line(run("hf:org/books --workers 1")[0])
    hub.missing.clear()
    before = sum(PARTS[0] in line for line in hub.asked)
    assert run("hf:org/books --workers 1")[0][0] == 0
    # once more for the names of the columns, but not for its documents
    assert sum(PARTS[0] in line for line in hub.asked) - before < before
    assert shards(tmp_path / "out")


def built(done: list[tuple[int, str]]) -> bool:
    """Whether a build ended well, and said that the one row without text is left out."""
    ((code, said),) = done
    return code == 0 and said.endswith(LEFT_OUT)


@pytest.mark.slow
def test_what_cannot_be_read_is_said_in_one_line(hub: HubServer, run: Build) -> None:
    said = {
        "hf:org/nothing": "hf:org/nothing: Dataset 'org/nothing' doesn't exist",
        "hf:org/books:big": "hf:org/books:big: BuilderConfig 'big' not found. Available: ['default']",
        "hf:org/books:validation": "Bad split: validation. Available splits: ['train']",
        "hf:org/books --text-key body": "no column 'body'; it has n, text",
        "hf:org/books --text-key n": "column 'n' is int64, not text",
        "hf:a:b:c:d": "not of the form hf:NAME[:CONFIG][:SPLIT]",
    }
    with pytest.raises(DataError, match="is a folder here; give its path without hf:"):
        find(f"hf:{hub.root}", "text")
    for done, message in zip(run(*said), said.values(), strict=True):
        assert message in one_line(done)
    hub.gated.add("org/books")
    line = one_line(run("hf:org/books", HF_HOME=str(hub.root / "other"))[0])
    assert "gated dataset" in line
    assert "HF_TOKEN" in line
    ((code, said_then),) = run("hf:org/books", HF_HOME=str(hub.root / "third"), HF_TOKEN="hf_secret")
    assert code == 0, said_then


@pytest.mark.slow
def test_offline_the_cache_alone_is_read(hub: HubServer, run: Build, tmp_path: Path) -> None:
    line = one_line(run("hf:org/books", HF_HUB_OFFLINE="1")[0])
    assert "HF_HUB_OFFLINE is set, and the dataset is not in the cache" in line
    assert str(tmp_path / "cache") in line
    assert not hub.asked
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")}
    load = "import datasets; datasets.load_dataset('org/books')"
    subprocess.run([sys.executable, "-c", load], env=environment, check=True, capture_output=True)
    asked = len(hub.asked)
    ((code, told),) = run("hf:org/books", out="cached", HF_HUB_OFFLINE="1")
    assert (code, told.splitlines()) == (0, [f"{tmp_path / 'cached'}: {LEFT_OUT}"])
    assert len(hub.asked) == asked
    ((code, told),) = run("hf:org/books", out="streamed")
    assert (code, told.splitlines()) == (0, [f"{tmp_path / 'streamed'}: {LEFT_OUT}"]), "streamed or not"
    assert shards(tmp_path / "cached") == shards(tmp_path / "streamed")
