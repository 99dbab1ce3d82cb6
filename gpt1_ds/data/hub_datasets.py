"""Datasets on the Hugging Face hub, `hf:NAME[:CONFIG][:SPLIT]`, streamed by the library `datasets`.

The commit is looked up once, so that all workers and a resumed build read the same files; each file there is one
unit. Offline, the copy that `datasets` has prepared under HF_HOME is read. No code from the hub is run: since its
version 4 `datasets` refuses datasets that have some.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import DataError, WorldError, one_line
from gpt1_ds.common.remote import asked
from gpt1_ds.data.remote import limit_hub_clients
from gpt1_ds.data.segments import HubShard, Input
from gpt1_ds.data.tables import DEFAULT_SPLIT, arrow_file

PREFIX, FORMAT = "hf:", "hf"
PAUSES = (1.0, 4.0, 16.0)  # seconds before each further try, after those of the library
_FORM = f"{PREFIX}NAME[:CONFIG][:SPLIT]"


def find(word: str, text_key: str) -> Input:
    """Returns the shards of a split. Raises DataError for a dataset, configuration, split or column that cannot be
    read, in one line that names the way out.
    """
    name, config, split = _parts(word)
    if Path(name).is_dir():  # whose changes nothing would notice
        raise DataError(f"{word}: {name} is a folder here; give its path without {PREFIX}, or go to another folder")
    datasets = library(word)
    if datasets.config.HF_HUB_OFFLINE:
        return _prepared(datasets, word, name, config, split, text_key)
    with errors_of_hub(word):
        limit_hub_clients()
        builder = asked(lambda: datasets.load_dataset_builder(name, config), deadline.LISTING_SECONDS)
        revision = builder.hash
        stream = asked(lambda: open_stream(datasets, name, config, split, revision), deadline.LISTING_SECONDS)
        _check_column(word, stream, text_key)
    shards = int(stream.num_shards)
    files = (
        HubShard(word, f"{revision}-{number}", FORMAT, "", 0, 0, text_key, revision, number, shards)
        for number in range(shards)
    )
    return Input(word, tuple(files))


def read(shard: HubShard) -> Iterator[str | None]:
    """Returns the documents of a shard; None for a row without a value. Raises DataError and WorldError as `rows_of`
    does.
    """
    datasets = library(shard.path)

    def opened() -> Any:
        stream = open_stream(datasets, *_parts(shard.path), shard.revision)
        return stream.select_columns([shard.text_key]).shard(shard.shards, shard.number)

    return (row[shard.text_key] for row in rows_of(f"{shard}: shard {shard.number}", opened))


def rows_of(name: str, opened: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """Yields the rows of the stream that `opened` gives. What the network loses is asked for again, from where it broke
    off.

    Raises DataError for what the hub refuses, WorldError when the network stays away; both begin with `name`.
    """
    done = 0
    for pause in (*PAUSES, None):
        try:
            limit_hub_clients()
            stream = asked(opened, deadline.LISTING_SECONDS)
            left = stream.skip(done) if done else stream
            for row in deadline.each_within(deadline.LISTING_SECONDS, left):
                done += 1
                yield row
            return
        except Exception as error:
            if not of_network(error):
                raise
            why = one_line(error)
            if is_refusal(error):
                raise DataError(f"{name} cannot be read ({why}); run again") from None
            if pause is None:
                raise WorldError(
                    f"{name} broke off after {done} rows ({why}); run again: finished parts are kept"
                ) from None
            time.sleep(pause)


def _parts(word: str) -> tuple[str, str | None, str]:
    name, *rest = word.removeprefix(PREFIX).split(":")
    if not name or len(rest) > 2 or not all(rest):
        raise DataError(f"{word}: not of the form {_FORM}; SPLIT is {DEFAULT_SPLIT} where it is left out")
    if len(rest) == 1:  # a split of the usual names, else a configuration
        usual = rest[0] in (DEFAULT_SPLIT, "validation", "test")
        return (name, None, rest[0]) if usual else (name, rest[0], DEFAULT_SPLIT)
    return (name, rest[0], rest[1]) if rest else (name, None, DEFAULT_SPLIT)


def library(word: str) -> Any:
    """Returns `datasets`, which says nothing by itself. Raises DataError, which begins with `word`, where it is
    missing.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError(f"{word}: needs the library datasets; pip install 'gpt1-ds[data]'") from None
    except ImportError as error:
        raise DataError(f"{word}: the library datasets cannot be imported: {error}") from None
    datasets.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    return datasets


def open_stream(datasets: Any, name: str, config: str | None, split: str, revision: str | None) -> Any:
    """Returns a split as a stream of rows, from the files of one commit."""
    return datasets.load_dataset(name, config, split=split, streaming=True, revision=revision)


def _prepared(datasets: Any, word: str, name: str, config: str | None, split: str, text_key: str) -> Input:
    """Returns the data set from the cache alone."""
    try:
        files = datasets.load_dataset(name, config, split=split).cache_files
    except ValueError as error:
        raise DataError(f"{word}: {one_line(error)}") from None
    except OSError:  # of all kinds that say that it is not there
        raise DataError(
            f"{word}: HF_HUB_OFFLINE is set, and the dataset is not in the cache {datasets.config.HF_DATASETS_CACHE}; "
            "unset it, or load the dataset there once with `datasets`"
        ) from None
    return Input(word, tuple(arrow_file(Path(file["filename"]), text_key) for file in files))


def _check_column(word: str, stream: Any, key: str) -> None:
    features = stream.features or asked(stream._resolve_features, deadline.LISTING_SECONDS).features
    there = f"it has {', '.join(features)}"
    if key not in features:
        raise DataError(f"{word}: no column {key!r}; {there}; name the one with the text by --text-key")
    kind = getattr(features[key], "dtype", type(features[key]).__name__)
    if kind not in ("string", "large_string"):
        raise DataError(f"{word}: column {key!r} is {kind}, not text; {there}; name another by --text-key")


@contextmanager
def errors_of_hub(word: str) -> Iterator[None]:
    """What the library says in this block of a dataset that cannot be read, in one line."""
    from datasets.exceptions import DatasetNotFoundError

    try:
        yield
    except DatasetNotFoundError as error:
        way = "look at the name, or set HF_TOKEN to a token that may read it"
        raise DataError(f"{word}: {one_line(error)}; {way}") from None
    except ValueError as error:  # of a configuration or split
        raise DataError(f"{word}: {one_line(error)}") from None
    except Exception as error:
        if not of_network(error):
            raise
        raise WorldError(f"{word}: the hub does not answer ({one_line(error)}); run again later") from None


def of_network(error: BaseException) -> bool:
    """Returns whether the network, the hub or a file on the way is to blame; not all clients of HTTP raise an
    OSError.
    """
    clients = ("httpx", "httpx2", "requests", "aiohttp")
    return isinstance(error, (OSError, RuntimeError)) or type(error).__module__.partition(".")[0] in clients


def is_refusal(error: BaseException) -> bool:
    """Returns whether the hub answered, and will answer the same again; 408 and 429 ask to come later."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return isinstance(error, FileNotFoundError) or (400 <= status < 500 and status not in (408, 429))
