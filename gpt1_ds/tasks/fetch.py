"""The data of tasks, probes and studies, from where it is published into the folders that presets read.

A file appears whole or not at all, and what is there is left: the same command continues. `source.json` beside the
files says which commit they are from; a later call reads the same one. No code from the hub is run.
"""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError, UserError, WorldError, one_line
from gpt1_ds.common.files import read_json, replacing, write_atomic, write_json
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.common.text import shown
from gpt1_ds.data.hub_datasets import errors_of_hub, is_refusal, library, open_stream, rows_of
from gpt1_ds.tasks.hub_sets import EVERY, SETS, DataSet, HandSet, HubSet, WebSet
from gpt1_ds.tasks.hub_tables import classes_of, with_names

TIMEOUT = 30.0  # seconds that a server may say nothing
LARGEST = 16 << 20  # bytes of a file of a WebSet
SOURCE = "source.json"
EACH = 1000  # rows between two steps of the bar


@dataclass(frozen=True)
class Fetched:
    """`rows` counts those of each file that is new; `there` names the files that were left."""

    name: str
    folder: Path
    licence: str
    rows: Mapping[str, int]
    there: tuple[str, ...]


def find_set(name: str) -> DataSet:
    """Raises UserError for a name that is not in the list, with those that are like it."""
    if name in SETS:
        return SETS[name]
    like = [known for known in SETS if known.rpartition("/")[2] == name] or get_close_matches(name, SETS, 3)
    meant = f"did you mean {' or '.join(like)}?" if like else "gpt1-ds data fetch --list names them"
    raise UserError(f"data fetch {shown(name)}: there is no such set; {meant}")


def fetch(name: str, out: str | Path, show: Show = show_nothing) -> Fetched:
    """Writes the files of a set that are not there yet below `out`.

    Raises UserError for an unknown set, DataError for one that must be had by hand or whose folder holds files of
    another origin, WorldError where the network or the hub does not answer; one line, which says where files go.
    """
    one = find_set(name)
    folder = Path(out) / one.folder
    if isinstance(one, HandSet):
        raise DataError(f"{name}: {one.way} into {folder}")
    others = [file.name for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
    if others and SOURCE not in others:
        raise DataError(
            f"{name}: {folder} holds {shown(min(others))}, which data fetch did not write; use it as it is, or choose "
            "another folder with --out"
        )
    if isinstance(one, HubSet):
        return _from_hub(one, folder, show)
    assert isinstance(one, WebSet)
    return _from_web(one, folder)


def _from_web(one: WebSet, folder: Path) -> Fetched:
    rows: dict[str, int] = {}
    there = tuple(file for file in one.files if (folder / file).exists())
    for file, (address, sha256) in one.files.items():
        if file in there:
            continue
        content = _download(one.name, folder / file, address)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DataError(f"{one.name}: {address} is not the file that is known (sha256); put it into {folder}")
        _begin(one, folder, {"files": {name: address for name, (address, _) in one.files.items()}})
        write_atomic(folder / file, content)
        rows[file] = content.count(b"\n")
    return Fetched(one.name, folder, one.licence, rows, there)


def _download(name: str, place: Path, address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            content: bytes = answer.read(LARGEST)
        return content
    except (OSError, ValueError) as error:
        raise WorldError(
            f"{name}: {address} does not answer ({one_line(error)}); run again with a network, or put it at {place}"
        ) from None


def _from_hub(one: HubSet, folder: Path, show: Show) -> Fetched:
    datasets = library(one.name)
    known = read_json(folder / SOURCE, {})
    commit = known.get("revision") or _commit(datasets, one, folder)
    configs = known.get("configs") or _configs(datasets, one, commit)
    files: dict[str, list[tuple[str, str]]] = {}  # name -> (configuration, split) of its rows
    for config in configs:
        for stem, split in one.splits.items():
            files.setdefault(f"{stem.format(config=config)}.jsonl", []).append((config, split))
    there = tuple(file for file in files if (folder / file).exists())
    rows: dict[str, int] = {}
    for file, parts in files.items():
        if file in there:
            continue
        _begin(one, folder, {"hub": one.hub, "revision": commit, "configs": configs})
        show(words=f"{one.name} {file}")
        with replacing(folder / file) as written:
            rows[file] = 0
            for row in _rows(datasets, one, commit, parts):
                written.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                rows[file] += 1
                if rows[file] % EACH == 0:
                    show(sum(rows.values()))
    return Fetched(one.name, folder, one.licence, rows, there)


def _begin(one: DataSet, folder: Path, source: Mapping[str, Any]) -> None:
    """Says before the first file where all of them are from, so that a folder with a part of them is known as ours."""
    if not (folder / SOURCE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SOURCE, {"name": one.name, "licence": one.licence, **source})


def _commit(datasets: Any, one: HubSet, folder: Path) -> str:
    """Returns the commit whose files are read. This call comes first, because it gives up soon where there is no
    network.
    """
    from huggingface_hub import HfApi

    files = ", ".join(f"{stem.format(config='*')}.jsonl" for stem in one.splits)
    by_hand = f"put {files} into {folder}"
    if datasets.config.HF_HUB_OFFLINE:
        raise WorldError(f"{one.name}: HF_HUB_OFFLINE is set; unset it where there is a network, or {by_hand}")
    try:
        commit = HfApi().dataset_info(one.hub, revision=one.revision, timeout=TIMEOUT).sha
    except Exception as error:  # of all kinds, by the version of the library
        if is_refusal(error):
            raise DataError(
                f"{one.name}: the hub refuses {one.hub} ({one_line(error, 120)}); set HF_TOKEN to a token that may "
                f"read it, or {by_hand}"
            ) from None
        raise WorldError(
            f"{one.name}: the hub does not answer ({one_line(error, 120)}); run again with a network, or {by_hand}"
        ) from None
    return str(commit)


def _configs(datasets: Any, one: HubSet, commit: str) -> list[str]:
    if EVERY not in one.configs:
        return list(one.configs)
    with errors_of_hub(one.name):
        return sorted(datasets.get_dataset_config_names(one.hub, revision=commit))


def _rows(datasets: Any, one: HubSet, commit: str, parts: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file: classes by their names, -1, for unknown, as it is."""
    for config, split in parts:

        def opened(config: str = config, split: str = split) -> Any:
            return open_stream(datasets, one.hub, config, split, commit)

        with errors_of_hub(one.name):
            classes = classes_of(opened().features or {})
        more = {"group": config} if len(parts) > 1 else {}
        for row in rows_of(f"{one.name}: {config} {split}", opened):
            values = with_names(row, classes)
            yield {**{one.columns.get(column, column): value for column, value in values.items()}, **more}
