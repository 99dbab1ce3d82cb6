"""What completes a checkpoint folder once its tensors are written: index, configuration, tokenizer, manifest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.state import INDEX, merge, to_json
from gpt1_ds.common.files import sync_folder, write_atomic, write_json
from gpt1_ds.data.tokenizer import METADATA, read_metadata


def complete(
    folder: Path,
    parts: Sequence[Mapping[str, Any]],
    config_yaml: str,
    tokenizer: Path,
    facts: Mapping[str, Any],
    hashes: Mapping[str, str],
) -> None:
    """Add everything but the tensors. `parts` says of each tensor file: file, bytes, sha256, and its part of the index.

    `tokenizer` is a folder; `facts` go into the manifest, `hashes` are those of the parameters.
    """
    write_json(folder / INDEX, to_json(merge([(part["file"], part["index"]) for part in parts])))
    write_atomic(folder / "config.yaml", config_yaml)
    copy_tokenizer(tokenizer, folder / "tokenizer")
    files = {part["file"]: {"bytes": part["bytes"], "sha256": part["sha256"]} for part in parts}
    others = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
    files.update({str(path.relative_to(folder)): manifest.file_facts(path) for path in others})
    manifest.write(folder, {**facts, "parameters": dict(hashes), "files": files})
    for place in (folder / "state", folder / "tokenizer", folder):
        sync_folder(place)


def copy_tokenizer(source: Path, target: Path) -> None:
    """The files that a tokenizer folder names, and nothing else that lies there; access rights are the run's own."""
    target.mkdir()
    for name in (METADATA, *read_metadata(source).files):
        shutil.copyfile(source / name, target / name)
