"""Turning the files that ranks have written into a checkpoint: one process, one rename."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.fingerprint import total_hashes
from gpt1_ds.checkpoint.retention import REPLACED
from gpt1_ds.checkpoint.state import INDEX, Index, merge, to_json
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import sync_folder, write_atomic, write_json
from gpt1_ds.data.tokenizers.base import copy_tokenizer


@dataclass(frozen=True)
class Contents:
    """What goes into a checkpoint besides the tensors: `facts` for the manifest, the resolved config, the tokenizer."""

    step: int
    facts: dict[str, Any]
    config_yaml: str
    tokenizer: Path


@dataclass(frozen=True)
class Part:
    """What one rank has written: a file of `bytes` and `sha256` (empty name: nothing to write), and its part of every
    parameter's hash.
    """

    file: str = ""
    bytes: int = 0
    sha256: str = ""
    index: Index = field(default_factory=dict)
    hashes: dict[str, int] = field(default_factory=dict)


def complete(temporary: Path, contents: Contents, parts: list[Part]) -> None:
    """Add to a folder with every rank's file what makes it a checkpoint, and flush it to disk."""
    written = [part for part in parts if part.file]
    for part in written:
        path = temporary / part.file
        if not path.is_file() or path.stat().st_size != part.bytes:
            raise CheckpointError(
                f"{path}: not seen here as it was written: is run.dir on a disk that all nodes share?"
            )
    write_json(temporary / INDEX, to_json(merge([(part.file, part.index) for part in written])))
    write_atomic(temporary / "config.yaml", contents.config_yaml)
    copy_tokenizer(contents.tokenizer, temporary / "tokenizer")
    files = {part.file: {"bytes": part.bytes, "sha256": part.sha256} for part in written}
    others = [path for path in sorted(temporary.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
    files.update({str(path.relative_to(temporary)): manifest.file_facts(path) for path in others})
    hashes = total_hashes(part.hashes for part in parts)
    manifest.write(temporary, {**contents.facts, "parameters": hashes, "files": files})
    for folder in (temporary / "state", temporary / "tokenizer", temporary):
        sync_folder(folder)


def commit(temporary: Path, final: Path, latest: Path) -> None:
    """Put a completed folder in its place and let `latest` name it."""
    replaced = final.with_name(f".{final.name}{REPLACED}")
    if final.exists():
        os.rename(final, replaced)
    os.rename(temporary, final)
    sync_folder(final.parent)
    with contextlib.suppress(OSError):  # it is published; who starts next mends `latest`
        write_atomic(latest, final.name + "\n")
    shutil.rmtree(replaced, ignore_errors=True)
