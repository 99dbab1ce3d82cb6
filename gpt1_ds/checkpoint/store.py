"""Checkpoints in an object store: `s3://BUCKET/FOLDER`, `gs://`, `file:///FOLDER` and what else fsspec knows.

A store cannot rename, so the manifest goes up last and goes away first: a checkpoint that has one there is whole. What
is written is read back, and what comes back is held against the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common import deadline
from gpt1_ds.common.errors import CheckpointError, ConfigError, DamagedError, WorldError
from gpt1_ds.common.files import sha256_file, sync_folder
from gpt1_ds.common.remote import asked, file_system, reached, without_secrets

BLOCK = 16 << 20  # bytes that are read at a time


class Store:
    """A folder at an address. Its methods raise DataError for what a person has to fix, WorldError for what passes."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        options = {"auto_mkdir": True} if address.startswith("file://") else {}
        with reached(address):
            self._system, place = file_system(self.address, **options)
        self._root = place.rstrip("/")

    def __str__(self) -> str:
        return without_secrets(self.address)

    def below(self, name: str) -> Store:
        return Store(f"{self.address}/{name}")

    def names(self) -> list[str]:
        """Returns the paths below this folder of all files there; none where the folder is not there."""
        with reached(self.address):
            self._system.invalidate_cache()
            found = asked(lambda: self._system.find(self._root), deadline.LISTING_SECONDS)
        return sorted(path.removeprefix(self._root).lstrip("/") for path in found)

    def read(self, name: str) -> bytes:
        with reached(f"{self.address}/{name}"):
            content: bytes = asked(lambda: self._system.cat_file(self._place(name)))
        return content

    def write(self, name: str, content: bytes) -> None:
        with reached(f"{self.address}/{name}", access="write"):
            asked(lambda: self._system.pipe_file(self._place(name), content))

    def put(self, path: Path, name: str, sha256: str) -> None:
        """Writes a local file, and reads it back. Raises WorldError for other bytes than those of `sha256`."""
        size = path.stat().st_size
        with reached(f"{self.address}/{name}", access="write"):
            asked(lambda: self._system.put_file(str(path), self._place(name)), deadline.upload_seconds(size))
        if self._sha256(name) != sha256:
            raise WorldError(f"{self}/{name}: is not what was written; run again, and look at the store if it stays so")

    def get(self, name: str, path: Path, size: int) -> None:
        """Writes a file of `size` bytes of the store to `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with reached(f"{self.address}/{name}"):
            asked(lambda: self._system.get_file(self._place(name), str(path)), deadline.upload_seconds(size))

    def delete(self, names: Iterable[str]) -> None:
        """Deletes these files, in this order. One that is not there is deleted already."""
        for name in names:
            with reached(f"{self.address}/{name}", access="write"), contextlib.suppress(FileNotFoundError):
                asked(partial(self._system.rm_file, self._place(name)))

    def delete_folders(self) -> None:
        """Deletes what is left of this folder where its files are deleted: an object store has no folders."""
        with reached(self.address, access="write"), contextlib.suppress(FileNotFoundError):
            self._system.invalidate_cache()
            if asked(lambda: self._system.isdir(self._root)):
                asked(partial(self._system.rm, self._root, recursive=True))

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with (
            reached(f"{self.address}/{name}"),
            asked(lambda: self._system.open(self._place(name), "rb", block_size=BLOCK)) as stream,
        ):
            limited = deadline.limited(stream, deadline.ANSWER_SECONDS)
            while block := limited.read(BLOCK):
                digest.update(block)
        return digest.hexdigest()


def check_apart(place: str, folder: Path, key: str) -> None:
    """Raises ConfigError, which names the `key`, for an address that is the run folder itself, lies in it or around it:
    a copy would overwrite what it is made of. It asks no server, whose files are in no folder of this machine.
    """
    if not place.startswith(("file://", "local://")):
        return
    there, here = Path(file_system(place)[1]).resolve(), folder.resolve()
    if there == here or there in here.parents or here in there.parents:
        raise ConfigError(f"{key}: {place} and the run folder {folder} are one, or one is in the other; choose another")


def whole(names: Iterable[str]) -> list[str]:
    """Returns the names of whole checkpoints among the files of a run in a store, oldest first. Those of a run whose
    name begins with this one's, as `a/b` does with `a`, are not its own.
    """
    paths = [Path(name) for name in names]
    found = [path.parent for path in paths if path.name == manifest.NAME and path.parts[:-2] == ("checkpoints",)]
    steps = {step: path.name for path in found if (step := manifest.step_of(path)) is not None}
    return [steps[step] for step in sorted(steps)]


def copy(folder: Path, store: Store) -> bool:
    """Writes a checkpoint to `store`, its own folder there. False where this very one is there with all its files."""
    names, last = store.names(), folder / manifest.NAME
    digest, facts = sha256_file(last), manifest.read(folder)
    if {manifest.NAME, *facts["files"]} <= set(names) and store.read(manifest.NAME) == last.read_bytes():
        return False
    store.delete([manifest.NAME, *(name for name in names if name != manifest.NAME and name not in facts["files"])])
    for name, file in facts["files"].items():
        store.put(folder / name, name, file["sha256"])
    store.put(last, manifest.NAME, digest)
    return True


def fetch(store: Store, folder: Path) -> None:
    """Brings the checkpoint that `store` is back into an empty folder, verified. Raises DamagedError for a damaged one,
    and DataError where the store lets nobody read it, which damages nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / manifest.NAME).write_bytes(store.read(manifest.NAME))
    facts, there = manifest.read(folder), set(store.names())
    for name, file in facts["files"].items():
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise CheckpointError(f"{store}: names a file outside the folder: {name!r:.80}; refused")
        if name not in there:
            raise DamagedError(f"{store}: damaged: {name}, which its manifest lists, is missing")
        store.get(name, folder / name, file["bytes"])
    try:
        verify_files(folder, facts)
    except DamagedError as error:  # the folder is a temporary one
        raise DamagedError(*(problem.replace(str(folder), str(store)) for problem in error.problems)) from None
    for below in {(folder / name).parent for name in facts["files"]} | {folder}:
        sync_folder(below)


def remove(store: Store) -> None:
    """Deletes a checkpoint; one that a kill leaves half deleted has no manifest."""
    store.delete(sorted(store.names(), key=lambda name: name != manifest.NAME))
    store.delete_folders()
