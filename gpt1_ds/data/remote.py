"""Files of text on this machine or elsewhere, and whether they are still those that were found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import DataError
from gpt1_ds.common.remote import asked, file_system, reached, without_secrets
from gpt1_ds.data.segments import SourceFile

_VERSIONS = ("ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "created")  # names for one
_CHANGED = "changed while it was being read; run again"


def list_files(address: str) -> list[tuple[str, str, int, int]] | None:
    """Returns (address, path within the folder, bytes, `SourceFile.changed`) of each file below a folder by its path,
    or of one file, whose path is its name; None where there is nothing. Raises DataError where fsspec cannot go there.
    """
    with reached(address):
        system, place = file_system(address)
        if not asked(lambda: system.exists(place)):
            return None
        if asked(lambda: system.isfile(place)):
            found = [place]
            root = _without_query(place).rpartition("/")[0]
        else:
            found = asked(lambda: system.find(place), deadline.LISTING_SECONDS)
            root = place.rstrip("/")
        # more than what lists some of them
        infos = deadline.each_within(deadline.ANSWER_SECONDS, (system.info(path) for path in found))
        details = dict(zip(found, infos, strict=True))
        for path, info in details.items():
            if info["size"] is None:
                raise DataError(f"{without_secrets(path)}: the server does not say how long it is; download it first")
        return sorted(
            (
                system.unstrip_protocol(path),
                _without_query(path).removeprefix(root).lstrip("/"),
                int(info["size"]),
                _changed(info),
            )
            for path, info in details.items()
        )


def _without_query(address: str) -> str:
    """Returns a web address without its query, which may sign it; elsewhere a question mark is part of a name."""
    return address.partition("?")[0] if address.startswith(("http://", "https://")) else address


@contextmanager
def opened(file: SourceFile) -> Iterator[BinaryIO]:
    """Yields the file as a stream that can seek. Raises DataError when it is not the one that was found."""
    if not file.is_remote:
        with open(file.path, "rb") as stream:
            status = os.fstat(stream.fileno())
            _check(file, status.st_size, status.st_mtime_ns)
            yield stream
        return
    with reached(file.path):
        system, place = file_system(file.path)
        system.invalidate_cache()
        info = asked(lambda: system.info(place))
        _check(file, -1 if info["size"] is None else int(info["size"]), _changed(info))
        with asked(lambda: system.open(place, "rb")) as stream:
            yield deadline.limited(stream, deadline.ANSWER_SECONDS)


def _check(file: SourceFile, size: int, changed: int) -> None:
    if (size, changed) != (file.size, file.changed):
        raise DataError(f"{file}: {_CHANGED}")


def _changed(info: dict[str, Any]) -> int:
    """Returns a number made of what this file system says of a version; 0 where it says nothing."""
    said = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return int(hashlib.sha256(said.encode()).hexdigest()[:15], 16) if said else 0


def limit_hub_clients() -> None:
    """Gives each answer of the Hugging Face hub a limit, for libraries that ask it many times: its client has none."""
    from huggingface_hub.utils import get_session

    get_session().timeout = deadline.SILENCE_SECONDS
