"""manifest.json: what a checkpoint is made of and where it came from, enough to notice any damage.

It lists size and sha256 of every other file and carries a checksum of itself. Nothing in a checkpoint is ever
unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from gpt1_ds.common.errors import CheckpointError, DamagedError
from gpt1_ds.common.files import MOST_JSON, naming, parse_json, sha256_file, write_json

FORMAT = 1
NAME = "manifest.json"
REPLACED = ".replaced"  # ends the hidden name of an older checkpoint of the same step until the new one is in its place
LARGEST_JSON = 1 << 28  # bytes; the index of a thousand ranks is a tenth of it
_KINDS = {
    **{"step": int, "tokens": int, "updates": int, "seed": int, "precision": str, "layout": dict, "files": dict},
    **{"parameters": dict, "hashes": dict, "probe": dict, "loss_scaler": dict},
}
_OPTIONAL = {
    **{"passed_over": list, "guard": list, "evaluated": int, "best": dict, "lowest_held_out": float},
    **{"imported": str, "best_measure": str},
}
_LAYOUT = {"tensor": int, "pipeline": int, "data": int, "zero": int, "pipelined": bool}
_HASHES = ("code", "version", "data", "tokenizer")
_PRECISIONS = ("fp32", "bf16", "fp16")
LONGEST_NAME = 200  # letters of a file's
_BROKEN = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)  # the disk has lost a part of the file


class NewerFormatError(CheckpointError):
    """A checkpoint that a later version of this program wrote: nothing is wrong with it."""


def step_of(checkpoint: Path) -> int | None:
    """Returns the step that a checkpoint folder is named after, also while it is replaced; None for other names."""
    found = re.fullmatch(rf"step-(\d{{8,}})|\.step-(\d{{8,}}){re.escape(REPLACED)}", checkpoint.name)
    return int(found[1] or found[2]) if found else None


def write(folder: Path, manifest: dict[str, Any]) -> None:
    body = {"format": FORMAT, **manifest}
    write_json(folder / NAME, {**body, "checksum": checksum(body)})


def read(folder: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint folder. Raises CheckpointError for a missing, damaged or too new one."""
    path = folder / NAME
    manifest = read_json(path, "this is not a complete checkpoint")
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    if type(body.get("format")) is not int or body["format"] > FORMAT:
        raise NewerFormatError(
            f"{path}: format {body.get('format')!r:.40} is newer than this program reads ({FORMAT}); update it"
        )
    if manifest.get("checksum") != checksum(body):
        raise DamagedError(f"{path}: damaged: its checksum does not match")
    for problem in _problems(body):
        raise DamagedError(f"{path}: damaged: {problem}")
    if step_of(folder) not in (None, body["step"]):
        raise DamagedError(f"{folder}: was saved at step {body['step']}: the folder was renamed or its files swapped")
    return body


def _problems(body: dict[str, Any]) -> Iterator[str]:
    """Yields what is not as `write` was given it, so that readers may rely on the kinds of its values."""
    for key, kind in _KINDS.items():
        if type(body.get(key)) is not kind:
            yield f"{key} must be there, a {kind.__name__}"
            return
    for key, kind in _OPTIONAL.items():
        if body.get(key) is not None and type(body[key]) is not kind:
            yield f"{key} must be a {kind.__name__}"
    counts = [body[key] for key in ("step", "tokens", "updates", "seed")]
    if not all(0 <= count < 2**63 for count in [*counts, body.get("evaluated") or 0]):
        yield "step, tokens, updates or seed is out of range"
    if any(type(body["layout"].get(key)) is not kind for key, kind in _LAYOUT.items()):
        yield f"layout must have {', '.join(_LAYOUT)}"
    texts = all(isinstance(value, str) for key in ("hashes", "parameters") for value in body[key].values())
    if not texts or not body["hashes"].keys() >= set(_HASHES):
        yield f"hashes must be texts, {', '.join(_HASHES)} among them"
    if type(body["probe"].get("loss")) is not float or body["probe"].get("precision") not in _PRECISIONS:
        yield f"probe must have a loss and one of {', '.join(_PRECISIONS)}"
    yield from _state_problems(body)
    for name, facts in body["files"].items():
        kinds = (type(facts.get("bytes")), type(facts.get("sha256"))) if isinstance(facts, dict) else ()
        plain = name.isprintable() and len(name) <= LONGEST_NAME and str(PurePosixPath(name)) == name
        if kinds != (int, str) or not 0 <= facts["bytes"] < 2**63 or not plain:
            yield f"files: {name!r:.80} must be a plain path with its bytes and sha256"


def _state_problems(body: dict[str, Any]) -> Iterator[str]:
    """Yields the same of what a resumed run continues from."""
    best = body.get("best") or {"step": 0, "score": 0.0}
    numbers = [*body["loss_scaler"].values(), *best.values(), *(body.get("passed_over") or [])]
    pairs = body.get("guard") or []
    if best.keys() != {"step", "score"} or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        yield "best must have step and score, guard pairs of numbers"
    elif not all(type(number) in (int, float) for number in [*numbers, *(number for pair in pairs for number in pair)]):
        yield "loss_scaler, best, passed_over and guard must hold numbers"


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """A file that the disk cannot give back is damaged like one whose checksum is wrong."""
    try:
        yield
    except OSError as error:
        if error.errno not in _BROKEN:
            raise
        raise DamagedError(f"{path}: damaged: {error.strerror}") from None


def read_json(path: Path, if_missing: str, most: int = MOST_JSON) -> dict[str, Any]:
    """Returns a JSON object of a checkpoint. Raises CheckpointError for others, and over `most` bytes of memory."""
    try:
        with readable(path), naming(path):
            if path.exists() and not path.is_file():
                raise DamagedError(f"{path}: not a plain file")
            if path.stat().st_size > LARGEST_JSON:
                raise DamagedError(f"{path}: {path.stat().st_size} bytes is too large to be real")
            content = path.read_bytes()
        value = parse_json(content, most)
    except FileNotFoundError:
        raise DamagedError(f"{path.parent}: no {path.name}: {if_missing}") from None
    except ValueError as error:
        raise DamagedError(f"{path}: damaged: not readable as JSON ({error!s:.80})") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{path}: damaged: not a JSON object")
    return value


def file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
