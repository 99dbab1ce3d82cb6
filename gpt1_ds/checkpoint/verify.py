"""Whether the files of a checkpoint are those that its manifest lists."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint.manifest import readable
from gpt1_ds.common.errors import DamagedError
from gpt1_ds.common.files import sha256_file
from gpt1_ds.config import ModelConfig


def verify_files(
    folder: Path,
    manifest: dict[str, Any],
    share: tuple[int, int] = (0, 1),
    threads: int = 2,
    progress: Callable[[], None] | None = None,
) -> None:
    """Compares size and sha256 of the files listed, `threads` at a time; with `share` = (k, n) every n-th of them, from
    the k-th. `progress` is called after each.

    Raises CheckpointError naming the first file that is missing, changed or outside the folder.
    """
    files = sorted(manifest["files"].items())[share[0] :: share[1]]
    with ThreadPoolExecutor(threads) as pool:  # hashing lets go of the interpreter
        for _ in pool.map(lambda item: _verify_file(folder, *item), files):
            if progress is not None:
                progress()


def verify_sizes(folder: Path, manifest: dict[str, Any]) -> None:
    """Compares the sizes of the files listed, without reading them. Raises CheckpointError like `verify_files`."""
    for name, facts in sorted(manifest["files"].items()):
        _verify_size(folder, name, facts)


def _verify_file(folder: Path, name: str, facts: dict[str, Any]) -> None:
    _verify_size(folder, name, facts)
    with readable(folder / name):
        if sha256_file(folder / name) != facts["sha256"]:
            raise DamagedError(f"{folder / name}: damaged: its sha256 does not match the manifest")


def _verify_size(folder: Path, name: str, facts: dict[str, Any]) -> None:
    path = folder / name
    with readable(path):
        if not is_inside(folder, name) or not path.is_file():
            raise DamagedError(f"{path}: missing, or not a plain file of this checkpoint")
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise DamagedError(f"{path}: damaged: {size} bytes, the manifest says {facts['bytes']}")


def check_memory(folder: Path, manifest: dict[str, Any], model: ModelConfig, head: HeadSpec | None = None) -> None:
    """Raises CheckpointError for a configuration that asks for more memory than the checkpoint's files can fill."""
    if model.vocab_size is None:
        raise DamagedError(f"{folder}/config.yaml: damaged: model.vocab_size is missing")
    needed = 4 * sum(map(math.prod, architecture(model, model.vocab_size, head).shapes.values()))
    held = sum(file["bytes"] for file in manifest["files"].values())
    if held < needed:
        raise DamagedError(f"{folder}: its configuration needs {needed} bytes of weights, its files hold {held}")


def is_inside(folder: Path, name: str) -> bool:
    """Returns whether `name` is a relative path that stays in the folder, through no link."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        return False
    return not any((folder / part).is_symlink() for part in (pure, *pure.parents[:-1]))
