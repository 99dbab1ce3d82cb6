"""The bytes of a segment of a file, plain or decompressed, a chunk at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.remote import opened
from gpt1_ds.data.segments import Segment, SourceFile

CHUNK_BYTES = 1 << 20  # of a file, read at once
ZSTD_SLICE_BYTES = 1 << 10  # of compressed bytes at once: 1 KiB can hold 32 MiB of text
_AGAIN = "make the file again"


def chunks(segment: Segment) -> Iterator[bytes]:
    """Yields the bytes of a segment, decompressed. Raises DataError when the file changed or its compression is
    damaged.
    """
    file = segment.file
    with opened(file) as stream:
        if file.compression == ".gz":
            yield from _gzip_chunks(stream, file)
        elif file.compression == ".zst":
            yield from _zstd_chunks(stream, file)
        else:
            stream.seek(segment.start)
            left = segment.stop - segment.start
            while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk


def _gzip_chunks(stream: BinaryIO, file: SourceFile) -> Iterator[bytes]:
    with gzip.open(stream) as unpacked:
        while True:
            try:
                chunk = unpacked.read(CHUNK_BYTES)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{file}: damaged gzip file ({error}); {_AGAIN}") from None
            if not chunk:
                return
            yield chunk


def _zstd_chunks(stream: BinaryIO, file: SourceFile) -> Iterator[bytes]:
    """Yields the decompressed bytes. zstandard's own stream reader does not notice a file that was cut off, so frames
    are followed one by one.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # what `zstd --long=31` writes
    frame = None
    while data := stream.read(ZSTD_SLICE_BYTES):
        while data:
            frame = frame or decompressor.decompressobj()
            try:
                chunk = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise DataError(f"{file}: damaged zstd file ({error}); {_AGAIN}") from None
            if chunk:
                yield chunk
            data = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        raise DataError(f"{file}: damaged zstd file (it ends in the middle); {_AGAIN}")
