"""The same documents as every kind of input that `data build` takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from tests.unit.data.corpora import sentences

DOCUMENTS = ["\n".join(sentences(2 + number % 9, seed=number)) for number in range(200)]
DOCUMENTS[7], DOCUMENTS[11] = "", "\ufeffwith a mark\r\nand two lines"


def write_jsonl(path: Path, texts: Sequence[str] = DOCUMENTS, key: str = "text") -> Path:
    content = "".join(json.dumps({key: text, "n": 1}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_parquet(path: Path, texts: Sequence[str | None] = DOCUMENTS, key: str = "text", rows: int = 17) -> Path:
    table = pyarrow.table({"n": list(range(len(texts))), key: pyarrow.array(texts, pyarrow.string())})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def save_to_disk(folder: Path, texts: Sequence[str] = DOCUMENTS, key: str = "text", shards: int = 3) -> Path:
    import datasets

    datasets.Dataset.from_dict({key: list(texts)}).save_to_disk(folder, num_shards=shards)
    return folder
