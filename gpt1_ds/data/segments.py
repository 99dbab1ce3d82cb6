"""What text is read from: the files of an input, and the pieces of them that one worker tokenizes in one go."""

from __future__ import annotations

from dataclasses import dataclass

from gpt1_ds.common.remote import without_secrets

TEXT_KEY = "text"  # of a JSON line, or the column of a table, that holds a document


@dataclass(frozen=True)
class SourceFile:
    """A file of an input. `name` is its own within the input; `size` is in bytes as it lies on the disk, `changed`
    the time of its last change in ns, or a number that is another one when a remote file is another one.

    `path` is a local path, or an address like `s3://bucket/file.parquet`.
    """

    path: str
    name: str
    format: str
    compression: str
    size: int
    changed: int
    text_key: str = TEXT_KEY

    @property
    def is_remote(self) -> bool:
        return "://" in self.path

    def __str__(self) -> str:
        """Returns what people are shown: without what may be secret in an address."""
        return without_secrets(self.path)


@dataclass(frozen=True)
class HubShard(SourceFile):
    """Shard `number` of the `shards` of a split on the hub, whose `format` is `hf`; `path` is the word that names the
    split, `revision` a commit there.
    """

    revision: str | None = None
    number: int = 0
    shards: int = 1


@dataclass(frozen=True)
class Input:
    """One --input. The embedded corpus has one file, whose format is `python-docs`."""

    name: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True)
class Segment:
    """Bytes [start, stop) of a file; of a table, the row groups that begin there. `previous` is the character before
    them: empty, a line end, or x for any other.
    """

    file: SourceFile
    start: int
    stop: int
    previous: str = ""


@dataclass(frozen=True)
class Unit:
    """What one worker tokenizes in one go: consecutive segments of input number `input`."""

    number: int
    input: int
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(segment.stop - segment.start for segment in self.segments)

    def __str__(self) -> str:
        others = len(self.segments) - 1
        return str(self.segments[0].file) + (f" and {others} more" if others else "")
