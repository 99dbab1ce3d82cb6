"""Tables of documents, one a row, read by pyarrow: Parquet files, and the Arrow files of saved `datasets`, in the order
that their folder says.

Both are cut where row groups (of a stream: record batches) begin, so a large file is shared by workers, and read some
rows at a time. Only the column of the text is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.remote import opened
from gpt1_ds.data.segments import Input, Segment, SourceFile

STATE, SPLITS = "state.json", "dataset_dict.json"
DEFAULT_SPLIT = "train"


def is_saved(folder: Path) -> bool:
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def find(folder: Path, text_key: str) -> Input:
    """Returns the files of a saved dataset, of several splits those of `train`. Raises DataError where there are
    none.
    """
    if not (folder / STATE).is_file():
        splits = _said(folder / SPLITS, "splits")
        if DEFAULT_SPLIT not in splits:
            raise DataError(
                f"{folder}: has no split {DEFAULT_SPLIT}; name one: {', '.join(f'{folder}/{x}' for x in splits)}"
            )
        folder = folder / DEFAULT_SPLIT
    try:
        names = [entry["filename"] for entry in _said(folder / STATE, "_data_files")]
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names a file outside its folder")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / STATE}: damaged ({error!s:.100}); save the dataset again") from None
    return Input(folder.resolve().name, tuple(arrow_file(folder / name, text_key) for name in names))


def arrow_file(path: Path, text_key: str) -> SourceFile:
    if not path.is_file():
        raise DataError(f"{path}: this file of the dataset is missing; save it again")
    status = path.stat()
    return SourceFile(str(path.resolve()), path.name, ARROW, "", status.st_size, status.st_mtime_ns, text_key)


def _said(path: Path, key: str) -> Any:
    try:
        return parse_json(path.read_bytes())[key]
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; save the dataset again") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error!s:.100}); save the dataset again") from None


PARQUET, ARROW = ".parquet", ".arrow"
ROWS = 512  # that are read at once
MOST_BYTES = 1 << 30  # of text in so many rows: a few bytes of a file can name one text many times
TEXT_BYTES = 64 << 20  # that are text in memory at once, unless one document is longer
BUFFER_BYTES = 1 << 20
_AGAIN = "make the file again"


def starts(file: SourceFile) -> list[int]:
    """Returns the byte offsets at which the parts of a table begin, ascending; only the first where they are in another
    order.
    """
    with _table(file) as table:
        if file.format == PARQUET:
            found = _group_offsets(table)
        else:
            found = [at for at, _ in _batches(table)]
    return found if found == sorted(set(found)) else found[:1]


def read_table(segment: Segment) -> Iterator[str | None]:
    """Yields the documents of a segment; None for a row without a value.

    Raises DataError naming the file for one that is damaged, lacks the column, or has something else than text in it.
    """
    with _table(segment.file) as table:
        batches = _parquet_batches(table, segment) if segment.file.format == PARQUET else _arrow_batches(table, segment)
        for batch in batches:
            column = batch.column(segment.file.text_key)
            for first in range(0, len(column), ROWS):
                for some in _affordable(segment.file, column.slice(first, ROWS)):
                    try:
                        texts = some.to_pylist()
                    except UnicodeDecodeError as error:
                        shown = f"column {segment.file.text_key!r} holds bytes that are not UTF-8 ({error.reason})"
                        raise DataError(f"{segment.file}: {shown}; {_AGAIN}") from None
                    yield from texts


def _affordable(file: SourceFile, column: Any) -> Iterator[Any]:
    """Yields slices of at most TEXT_BYTES or one row. Raises DataError for rows that expand to more than MOST_BYTES."""
    from pyarrow import compute, string, types

    if types.is_string_view(column.type):
        column = column.cast(string())
    if types.is_dictionary(column.type):
        sizes = compute.take(compute.binary_length(column.dictionary), column.indices)
    else:
        sizes = compute.binary_length(column)
    ends = np.cumsum(sizes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    if len(ends) and ends[-1] > MOST_BYTES:
        raise DataError(
            f"{file}: {len(ends)} rows of column {file.text_key!r} expand to {ends[-1]:,} bytes of text; at most "
            f"{MOST_BYTES:,} are read; write long documents as .txt files"
        )
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_BYTES, side="right")))
        yield column.slice(first, last - first)
        first = last


def _parquet_batches(table: Any, segment: Segment) -> Iterator[Any]:
    offsets = _group_offsets(table)
    whole = (segment.start, segment.stop) == (0, segment.file.size)
    groups = [number for number, at in enumerate(offsets) if whole or segment.start <= at < segment.stop]
    found: Iterator[Any] = table.iter_batches(ROWS, groups, columns=[segment.file.text_key], use_threads=False)
    return found


def _arrow_batches(table: Any, segment: Segment) -> Iterator[Any]:
    return (batch for at, batch in _batches(table) if segment.start <= at < segment.stop)


def _group_offsets(table: Any) -> list[int]:
    columns = (table.metadata.row_group(number).column(0) for number in range(table.num_row_groups))
    offsets = ((one.dictionary_page_offset, one.data_page_offset) for one in columns)
    return [min(filter(None, both), default=0) for both in offsets]  # a group without rows may have no page


def _batches(table: Any) -> Iterator[tuple[int, Any]]:
    """Yields (byte offset, record batch) of a stream in mapped memory: what is not looked at is not read."""
    source, reader = table
    while True:
        at = source.tell()
        try:
            yield at, reader.read_next_batch()
        except StopIteration:
            return


@contextmanager
def _table(file: SourceFile) -> Iterator[Any]:
    """Yields a ParquetFile, or (source, reader) of a stream, that has the column."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise DataError(f"{file}: needs pyarrow; pip install 'gpt1-ds[data]'") from None
    except ImportError as error:  # pyarrow 26 is installed beside NumPy 1.26, and refuses it here
        raise DataError(f"{file}: pyarrow cannot be imported: {error}") from None
    try:
        with opened(file) as stream:
            if file.format == ARROW:
                with pyarrow.memory_map(file.path) as source:
                    reader = pyarrow.ipc.open_stream(source)
                    _check_column(file, reader.schema)
                    yield source, reader
                return
            source = stream if file.is_remote else file.path
            metadata = pyarrow.parquet.read_metadata(source)
            _check_column(file, metadata.schema.to_arrow_schema())
            settings = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "read_dictionary": [file.text_key]}
            # a dictionary's texts stay there once, however many rows name them
            with pyarrow.parquet.ParquetFile(source, metadata=metadata, **settings) as table:
                yield table
    except pyarrow.ArrowException as error:
        raise _damaged(file, error) from None
    except OSError as error:
        if error.errno or isinstance(error, (FileNotFoundError, PermissionError)):
            raise
        raise _damaged(file, error) from None  # pyarrow says so of pages that cannot be unpacked, too


def _damaged(file: SourceFile, error: Exception) -> DataError:
    kind = "Parquet" if file.format == PARQUET else "Arrow"
    return DataError(f"{file}: damaged {kind} file ({' '.join(str(error).split())[:200]}); {_AGAIN}")


def _check_column(file: SourceFile, schema: Any) -> None:
    from pyarrow import types

    names, key = list(schema.names), file.text_key
    there = f"it has {', '.join(names) or 'none'}"
    if names.count(key) != 1:
        raise DataError(f"{file}: no column {key!r}; {there}; name the one with the text by --text-key")
    kind = schema.field(key).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    if not any(is_text(value) for is_text in (types.is_string, types.is_large_string, types.is_string_view)):
        raise DataError(f"{file}: column {key!r} is {kind}, not text; {there}; name another by --text-key")
