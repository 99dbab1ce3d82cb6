"""Turning the files that ranks have written into a published checkpoint: one process, one rename."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.state import INDEX, Index, merge
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import sync_folder, write_atomic, write_json
from gpt1_ds.data.tokenizers.base import copy_tokenizer

REPLACED = ".replaced"  # after the name of an older checkpoint of the same step while it makes room


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


def total_hashes(parts: Iterable[dict[str, int]]) -> dict[str, str]:
    """The ranks' parts of the parameters' hashes, added."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return {name: f"{sums[name] % 2**64:016x}" for name in sorted(sums)}


def complete(temporary: Path, contents: Contents, parts: list[Part]) -> None:
    """Add to a folder with every rank's file what makes it a checkpoint, and flush it to disk."""
    written = [part for part in parts if part.file]
    for part in written:
        path = temporary / part.file
        if not path.is_file() or path.stat().st_size != part.bytes:
            raise CheckpointError(
                f"{path}: not seen here as it was written: is run.dir on a disk that all nodes share?"
            )
    index = merge([(part.file, part.index) for part in written])
    write_json(temporary / INDEX, {name: asdict(stored) for name, stored in index.items()})
    write_atomic(temporary / "config.yaml", contents.config_yaml)
    copy_tokenizer(contents.tokenizer, temporary / "tokenizer")
    files = {part.file: {"bytes": part.bytes, "sha256": part.sha256} for part in written}
    others = [path for path in sorted(temporary.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
    files.update({str(path.relative_to(temporary)): manifest.file_facts(path) for path in others})
    hashes = total_hashes(part.hashes for part in parts)
    manifest.write(temporary, {**contents.facts, "parameters": hashes, "files": files})
    for folder in (temporary / "state", temporary / "tokenizer", temporary):
        sync_folder(folder)


def publish(temporary: Path, final: Path, latest: Path) -> None:
    """Put a completed folder in its place and let `latest` name it."""
    replaced = final.with_name(f".{final.name}{REPLACED}")
    if final.exists():
        os.rename(final, replaced)
    os.rename(temporary, final)
    sync_folder(final.parent)
    with contextlib.suppress(OSError):  # it is published; who starts next mends `latest`
        write_atomic(latest, final.name + "\n")
    shutil.rmtree(replaced, ignore_errors=True)


def sweep(checkpoints: Path) -> None:
    """Remove what killed saves left behind. Only the holder of the run's lock may call this."""
    for leftover in checkpoints.glob(".step-*"):
        final = leftover.with_name(leftover.name.removeprefix(".").removesuffix(REPLACED))
        if leftover.name.endswith(REPLACED) and not final.exists():  # killed between the two renames
            os.rename(leftover, final)
        else:
            shutil.rmtree(leftover, ignore_errors=True)
