"""manifest.json: what a checkpoint is made of and where it came from, enough to notice any damage.

It lists size and sha256 of every other file and carries a checksum of itself. Nothing in a checkpoint is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import Any

from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import sha256_file, write_json

FORMAT = 1
NAME = "manifest.json"


def write(folder: Path, manifest: dict[str, Any]) -> None:
    body = {"format": FORMAT, **manifest}
    write_json(folder / NAME, {**body, "checksum": _checksum(body)})


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder. Raises CheckpointError for one that is missing, damaged or too new."""
    path = folder / NAME
    try:
        manifest = json.loads(path.read_text())
        body = {key: value for key, value in manifest.items() if key != "checksum"}
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no {NAME}: this is not a complete checkpoint") from None
    except (ValueError, AttributeError, UnicodeDecodeError):
        raise CheckpointError(f"{path}: damaged: not readable as JSON") from None
    if not isinstance(body.get("format"), int) or body["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: format {body.get('format')} is newer than this program reads ({FORMAT}); update it"
        )
    if manifest.get("checksum") != _checksum(body):
        raise CheckpointError(f"{path}: damaged: its checksum does not match")
    return body


def verify_files(folder: Path, manifest: dict[str, Any], share: tuple[int, int] = (0, 1)) -> None:
    """Compare size and sha256 of the files listed; with `share` = (k, n) every n-th of them, from the k-th.

    Raises CheckpointError naming the first file that is missing, changed or outside the folder.
    """
    files = sorted(manifest["files"].items())
    for name, facts in files[share[0] :: share[1]]:
        path = folder / name
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or path.is_symlink() or not path.is_file():
            raise CheckpointError(f"{path}: missing, or not a plain file of this checkpoint")
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise CheckpointError(f"{path}: damaged: {size} bytes, the manifest says {facts['bytes']}")
        if sha256_file(path) != facts["sha256"]:
            raise CheckpointError(f"{path}: damaged: its sha256 does not match the manifest")


def file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
