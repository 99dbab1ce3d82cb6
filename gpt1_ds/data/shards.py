"""Megatron's indexed dataset: `NAME.bin` holds tokens, `NAME.idx` where sequences and documents begin.

The index is little-endian: 9 bytes of magic, int64 version, one byte of dtype code, int64 counts of sequences S and of
document borders D, then int32 [S] lengths in tokens, int64 [S] byte offsets into the .bin, int64 [D] sequence numbers
at which documents begin, and S at the end. This program writes one sequence per document, or with sentence borders one
per sentence; what does not fit a shard continues in the next, as another sequence of another document.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import weakref
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import naming, sha256_file
from gpt1_ds.data.windows import Int64s

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES: dict[np.dtype[np.integer], int] = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
BLOCK = 1 << 20  # sequences whose index entries are written at once

Tokens = NDArray[np.integer]


def token_dtype(vocab_size: int) -> np.dtype[np.integer]:
    """Returns the dtype Megatron chooses for a vocabulary."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


@dataclass(frozen=True)
class ShardSummary:
    """What a closed shard holds; digests are hex sha256, sizes are in bytes."""

    tokens: int
    sequences: int
    bin_size: int
    bin_sha256: str
    idx_size: int
    idx_sha256: str


class ShardWriter:
    """Writes `PREFIX.bin` and, when closed, `PREFIX.idx`, in memory that does not grow with the shard."""

    def __init__(self, prefix: Path, dtype: np.dtype[np.integer]) -> None:
        self.prefix, self.dtype = prefix, dtype
        self.tokens = 0
        self.sequences = 0
        self.documents = 0  # that have ended
        self._open_tokens = 0  # of the sequence that has not ended yet
        self._open_document = False
        self._hash = hashlib.sha256()
        self.bin_path, self.idx_path = _beside(prefix, ".bin"), _beside(prefix, ".idx")
        self.lengths_path, self.borders_path = _beside(prefix, ".lengths.tmp"), _beside(prefix, ".borders.tmp")
        self._bin = open(self.bin_path, "wb")  # noqa: SIM115 - lives as long as the writer
        self._lengths = open(self.lengths_path, "w+b")  # noqa: SIM115
        self._borders = open(self.borders_path, "w+b")  # noqa: SIM115

    def write(self, tokens: Tokens, ends: Int64s, document_ends: Int64s) -> None:
        """Appends tokens. `ends` are the places in `tokens`, ascending, after which a sequence ends; `document_ends`
        those of them after which a document does.
        """
        self._add_borders(self.sequences + 1 + np.searchsorted(ends, document_ends))
        if len(document_ends):
            self._open_document = len(tokens) > int(document_ends[-1])
        elif len(tokens):
            self._open_document = True
        data = np.ascontiguousarray(tokens, dtype=self.dtype)
        with naming(self.bin_path):
            self._bin.write(data.data)
        self._hash.update(data.data)
        self.tokens += len(data)
        if len(ends):
            self._add_lengths(np.diff(ends, prepend=-self._open_tokens))
            self._open_tokens = len(data) - int(ends[-1])
        else:
            self._open_tokens += len(data)

    def close(self) -> ShardSummary:
        """Writes the index and flushes both files to the disk. Tokens after the last end become a last sequence."""
        if self._open_tokens:
            self._add_lengths(np.array([self._open_tokens]))
        if self._open_document:
            self._add_borders(np.array([self.sequences]))
        with naming(self.idx_path), open(self.idx_path, "wb") as file:
            self._write_index(file)
            _flush(file)
        with naming(self.bin_path):
            _flush(self._bin)
        for made in (self._bin, self._lengths, self._borders):
            made.close()
        self.lengths_path.unlink()
        self.borders_path.unlink()
        idx_size = self.idx_path.stat().st_size
        size = self.tokens * self.dtype.itemsize
        idx_sha256 = sha256_file(self.idx_path)
        return ShardSummary(self.tokens, self.sequences, size, self._hash.hexdigest(), idx_size, idx_sha256)

    def _add_lengths(self, lengths: Int64s) -> None:
        assert lengths.max() < 2**31, f"{self.prefix}: a sequence of {lengths.max()} tokens does not fit the index"
        with naming(self.lengths_path):
            self._lengths.write(lengths.astype("<i4").tobytes())
        self.sequences += len(lengths)

    def _add_borders(self, borders: Int64s) -> None:
        with naming(self.borders_path):
            self._borders.write(borders.astype("<i8").tobytes())
        self.documents += len(borders)

    def _write_index(self, file: BinaryIO) -> None:
        file.write(HEADER.pack(MAGIC, VERSION, DTYPE_CODES[self.dtype], self.sequences, self.documents + 1))
        self._lengths.seek(0)
        shutil.copyfileobj(self._lengths, file, BLOCK)
        self._lengths.seek(0)
        offset = 0
        while block := self._lengths.read(4 * BLOCK):
            ends = offset + np.cumsum(np.frombuffer(block, "<i4").astype(np.int64) * self.dtype.itemsize)
            file.write(np.concatenate([[offset], ends[:-1]]).astype("<i8").tobytes())
            offset = int(ends[-1])
        file.write(np.zeros(1, dtype="<i8").tobytes())
        self._borders.seek(0)
        shutil.copyfileobj(self._borders, file, BLOCK)


class Shard:
    """A shard on disk, mapped into memory. Opening it checks that both files fit each other.

    Raises DataError naming the file, what was expected and what was found.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.bin_path, self.idx_path = _beside(prefix, ".bin"), _beside(prefix, ".idx")
        for path in (self.bin_path, self.idx_path):
            if not path.is_file():
                raise DataError(f"{path}: missing; build the dataset again")
        self.dtype, self.sequences, borders = self._read_header()
        at = HEADER.size
        self.lengths: NDArray[np.int32] = _map(self.idx_path, np.dtype("<i4"), at, self.sequences)
        at += 4 * self.sequences
        self._offsets: Int64s = _map(self.idx_path, np.dtype("<i8"), at, self.sequences)
        self.documents: Int64s = _map(self.idx_path, np.dtype("<i8"), at + 8 * self.sequences, borders)
        """int64 [documents + 1]: the sequence at which each document begins, and the count of sequences."""
        last = int(self.at(slice(-1, None))[1][0]) * self.dtype.itemsize if self.sequences else 0
        size = self.bin_path.stat().st_size
        if size != last:
            raise DataError(f"{self.bin_path}: {size} bytes, but its index expects {last}; build the dataset again")
        self.tokens: Tokens = _map(self.bin_path, self.dtype, 0, size // self.dtype.itemsize)
        self._descriptor = os.open(self.bin_path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, first: int, last: int) -> Tokens:
        """Returns [last - first] tokens, read-only. Raises DataError when the file has become shorter: touching
        `tokens` after its end would kill the process (SIGBUS).
        """
        at, end = first * self.dtype.itemsize, last * self.dtype.itemsize
        blocks = []
        while at < end:
            blocks.append(os.pread(self._descriptor, end - at, at))  # may be less than was asked for
            at += len(blocks[-1])
            if not blocks[-1]:
                size = os.fstat(self._descriptor).st_size
                raise DataError(
                    f"{self.bin_path}: was cut to {size} bytes while it was read; restore it, or build it again"
                )
        return np.frombuffer(b"".join(blocks), self.dtype)

    def at(self, sequences: Int64s | slice) -> tuple[Int64s, Int64s]:
        """Returns int64 [sequences] each: the first token of these sequences, and the one after their last."""
        first = self._offsets[sequences] // self.dtype.itemsize
        return first, first + self.lengths[sequences]

    def document_ends(self, first: int, last: int) -> Int64s:
        """Returns int64 [last - first]: the token after the last one of each of documents first to last - 1."""
        return self.at(self.documents[first + 1 : last + 1] - 1)[1]

    def check_documents(self) -> None:
        """Raises DataError where documents do not lie one after the other in the shard."""
        borders, last = self.documents, 0
        for first in range(0, len(borders), BLOCK):
            block = borders[first : first + BLOCK]
            if block[0] < last or (np.diff(block) < 0).any():
                last = -1
                break
            last = int(block[-1])
        if last != self.sequences or borders[0] != 0:
            raise DataError(f"{self.idx_path}: its documents do not follow one another; build the dataset again")

    def sequence_at(self, token: int) -> int:
        """Returns the sequence that holds a token."""
        return bisect_right(self._offsets, token * self.dtype.itemsize) - 1

    def document_at(self, token: int) -> int:
        """Returns the document that holds a token."""
        return bisect_right(self.documents, self.sequence_at(token)) - 1

    def _read_header(self) -> tuple[np.dtype[np.integer], int, int]:
        path, size = self.idx_path, self.idx_path.stat().st_size
        with naming(path), open(path, "rb") as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise DataError(f"{path}: {size} bytes, too short for its header of {HEADER.size}; build the dataset again")
        magic, version, code, sequences, borders = HEADER.unpack(header)
        dtypes = {number: dtype for dtype, number in DTYPE_CODES.items()}
        if magic != MAGIC or version != VERSION or code not in dtypes:
            raise DataError(
                f"{path}: not an index of tokens (magic {magic!r}, version {version}, dtype code {code}); "
                "build the dataset again"
            )
        expected = HEADER.size + 12 * sequences + 8 * borders
        if size != expected:
            raise DataError(f"{path}: {size} bytes, but its header expects {expected}; build the dataset again")
        return dtypes[code], sequences, borders


def _map(path: Path, dtype: np.dtype, offset: int, count: int) -> NDArray:  # type: ignore[type-arg]
    if count == 0:  # an empty range cannot be mapped
        return np.empty(0, dtype)
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))
    return mapped.view(np.ndarray)  # slicing a memmap object itself is ten times slower


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)
