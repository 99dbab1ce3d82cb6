"""manifest.json: what a checkpoint is made of and where it came from, enough to notice any damage.

It lists size and sha256 of every other file and carries a checksum of itself. Nothing in a checkpoint is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import sha256_file, write_json
from gpt1_ds.config import ModelConfig
from gpt1_ds.plan.count import parameter_shapes

FORMAT = 1
NAME = "manifest.json"
LARGEST_JSON = 1 << 28  # bytes; the index of a thousand ranks is a tenth of it
_KINDS = {"step": int, "files": dict, "parameters": dict, "hashes": dict, "probe": dict}
_STEP = re.compile(r"step-(\d{8,})")


class NewerFormatError(CheckpointError):
    """A checkpoint that a later version of this program wrote: nothing is wrong with it."""


def write(folder: Path, manifest: dict[str, Any]) -> None:
    body = {"format": FORMAT, **manifest}
    write_json(folder / NAME, {**body, "checksum": _checksum(body)})


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder. Raises CheckpointError for one that is missing, damaged or too new."""
    path = folder / NAME
    manifest = read_json(path, "this is not a complete checkpoint")
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    if not isinstance(body.get("format"), int) or body["format"] > FORMAT:
        raise NewerFormatError(
            f"{path}: format {body.get('format')} is newer than this program reads ({FORMAT}); update it"
        )
    if manifest.get("checksum") != _checksum(body):
        raise CheckpointError(f"{path}: damaged: its checksum does not match")
    if any(type(body.get(key)) is not kind for key, kind in _KINDS.items()):
        raise CheckpointError(f"{path}: damaged: {', '.join(_KINDS)} must be there")
    name = _STEP.fullmatch(folder.name)
    if name and int(name[1]) != body["step"]:
        raise CheckpointError(
            f"{folder}: was saved at step {body['step']}: the folder was renamed or its files swapped"
        )
    return body


def read_json(path: Path, if_missing: str) -> dict[str, Any]:
    """A JSON object of a checkpoint. Raises CheckpointError for what is not one, or is absurdly large."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large to be real")
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: no {path.name}: {if_missing}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged: not readable as JSON") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: damaged: not a JSON object")
    return value


def verify_files(
    folder: Path,
    manifest: dict[str, Any],
    share: tuple[int, int] = (0, 1),
    threads: int = 2,
    progress: Callable[[], None] | None = None,
) -> None:
    """Compare size and sha256 of the files listed, `threads` at a time; with `share` = (k, n) every n-th of them, from
    the k-th. `progress` is called after each.

    Raises CheckpointError naming the first file that is missing, changed or outside the folder.
    """
    files = sorted(manifest["files"].items())[share[0] :: share[1]]
    with ThreadPoolExecutor(threads) as pool:  # hashing lets go of the interpreter
        for _ in pool.map(lambda item: _verify_file(folder, *item), files):
            if progress is not None:
                progress()


def _verify_file(folder: Path, name: str, facts: dict[str, Any]) -> None:
    path = folder / name
    if not is_inside(folder, name) or not path.is_file():
        raise CheckpointError(f"{path}: missing, or not a plain file of this checkpoint")
    size = path.stat().st_size
    if size != facts["bytes"]:
        raise CheckpointError(f"{path}: damaged: {size} bytes, the manifest says {facts['bytes']}")
    if sha256_file(path) != facts["sha256"]:
        raise CheckpointError(f"{path}: damaged: its sha256 does not match the manifest")


def check_size(folder: Path, manifest: dict[str, Any], model: ModelConfig, outputs: int = 0) -> None:
    """Raise CheckpointError for a configuration that asks for more memory than the checkpoint's files can fill;
    `outputs` are those of a task's head.
    """
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    needed = 4 * sum(map(math.prod, parameter_shapes(model, model.vocab_size, outputs).values()))
    held = sum(file["bytes"] for file in manifest["files"].values())
    if held < needed:
        raise CheckpointError(f"{folder}: its configuration needs {needed} bytes of weights, its files hold {held}")


def is_inside(folder: Path, name: str) -> bool:
    """Whether `name` is a relative path that stays in the folder, through no link."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        return False
    return not any((folder / part).is_symlink() for part in (pure, *pure.parents[:-1]))


def file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
