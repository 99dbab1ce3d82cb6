"""A dataset folder as `data build` leaves it: `dataset.json`, shards of each split, and the tokenizer."""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import did_you_mean, naming, parse_json
from gpt1_ds.data.shards import DTYPE_CODES, Shard
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer

DESCRIPTION = "dataset.json"
TOKENIZER = "tokenizer"
FORMAT = 1
MOST_MEMORY = 128 << 20  # bytes that its description may take: of tens of thousands of shards
SPLITS = ("train", "validation")
SENTENCE_COUNTS = "sentences"  # in the entry of a split
COUNTED = ("sentences", "one_sentence_documents", "empty_documents")
OPEN_SHARDS = 100  # of all datasets of the process; each takes five file descriptors, of which it may have 1024
_BUILD = "make one with `gpt1-ds data build`"
_AGAIN = "build the dataset again in another folder"


class TokenStream:
    """One split as one long array of tokens, each document followed by `<eod>`, in the order of the inputs."""

    def __init__(self, folder: Path, name: str, entry: Mapping[str, Any], dtype: str, vocab_size: int) -> None:
        self.folder, self.name, self.vocab_size = folder, name, vocab_size
        self.tokens = _count(entry["tokens"])
        self.documents = _count(entry["documents"])
        self.bytes = _count(entry["bytes"])  # UTF-8 bytes of the text
        counts = entry.get(SENTENCE_COUNTS)  # only where each sentence is a sequence
        self.split_sentences = counts is not None
        self.sentence_counts = {name: _count(counts[name]) for name in COUNTED} if counts is not None else {}
        self.shards: list[dict[str, Any]] = list(entry["shards"])
        self.dtype = {str(known): known for known in DTYPE_CODES}[dtype]
        self._starts = [0]  # first token of each shard, and the count of all
        self._first_documents = [0]
        for shard in self.shards:
            _check_shard(shard)
            self._starts.append(self._starts[-1] + shard["tokens"])
            self._first_documents.append(self._first_documents[-1] + shard["documents"])
        # of a dataset that is gone no file stays open: shards in use are opened again
        weakref.finalize(self, lambda: _open.cache_clear())

    @property
    def documents_with_text(self) -> int:
        """Returns how many documents have text; all of them, where nobody has counted sentences."""
        return self.documents - self.sentence_counts.get("empty_documents", 0)

    def read(self, start: int, count: int) -> NDArray[np.integer]:
        """Returns [count] tokens from token `start` on, read-only. Raises ValueError outside the split, DataError for a
        shard that was cut short.
        """
        stop = start + count
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(f"tokens {start} to {stop} are not within the {self.tokens} of {self.folder} {self.name}")
        pieces = []
        for number in range(self._shard_at(start), len(self.shards)):
            base = self._starts[number]
            if base >= stop:
                break
            pieces.append(self.shard(number).read(max(start - base, 0), min(stop, self._starts[number + 1]) - base))
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)

    def ring(self, start: int, count: int) -> list[tuple[int, int]]:
        """Returns (start, count) of the one or two pieces of `count` tokens from `start` on, the first token following
        the last.
        """
        here = min(count, self.tokens - start)
        return [(start, here)] if here == count else [(start, here), (0, count - here)]

    def check(self, tokens: NDArray[np.integer], start: int) -> None:
        """Raises DataError naming shard and document when one of the tokens from `start` on (see `ring`) is not in the
        vocabulary: tensor-parallel ranks would train on a zero in its place.
        """
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocab_size))
        if len(wrong):
            at = (start + int(wrong[0])) % self.tokens
            number, document = self._shard_at(at), self._document_at(at)
            raise DataError(
                f"{self.shard(number).bin_path}: token id {tokens[wrong[0]]} in document {document} of {self.name} is "
                f"not in the vocabulary of {self.vocab_size}; {_AGAIN}"
            )

    def documents_of(self, start: int, count: int) -> range:
        """Returns the numbers of the documents that tokens [start, start + count) touch, counted from 0 within the
        split.
        """
        if count < 1:
            return range(0)
        return range(self._document_at(start), self._document_at(start + count - 1) + 1)

    def shard(self, number: int) -> Shard:
        """Returns the open shard; opening checks it. Raises DataError for a damaged one."""
        return _open(weakref.ref(self), number)

    def _opened(self, number: int) -> Shard:
        entry = self.shards[number]
        shard = Shard(self.folder / entry["name"])
        found = (len(shard.tokens), shard.sequences, shard.dtype)
        expected = (entry["tokens"], entry["sequences"], self.dtype)
        if found != expected:
            raise DataError(
                f"{shard.idx_path}: holds {found[0]} tokens in {found[1]} sequences of {found[2]}, but {DESCRIPTION} "
                f"expects {expected[0]} in {expected[1]} of {expected[2]}; {_AGAIN}"
            )
        return shard

    def _shard_at(self, token: int) -> int:
        return max(0, bisect_right(self._starts, token, hi=len(self.shards)) - 1)

    def _document_at(self, token: int) -> int:
        if not 0 <= token < self.tokens:
            raise ValueError(f"token {token} is not within the {self.tokens} of {self.folder} {self.name}")
        number = self._shard_at(token)
        return self._first_documents[number] + self.shard(number).document_at(token - self._starts[number])


@lru_cache(OPEN_SHARDS)
def _open(stream: weakref.ref[TokenStream], number: int) -> Shard:
    holder = stream()
    assert holder is not None, "it asks"
    return holder._opened(number)


class Dataset:
    """A dataset folder, opened without reading its shards: only their presence and sizes are checked.

    Raises DataError when the folder is not a dataset, is damaged, or was made by a newer version of this program.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / DESCRIPTION
        self.tokenizer_folder = self.folder / TOKENIZER
        if not self.path.is_file():
            raise DataError(f"{self.folder}: not a dataset {_why_none(self.folder)}")
        try:
            with naming(self.path):
                self.description: dict[str, Any] = parse_json(self.path.read_bytes(), MOST_MEMORY)
            if self.description["format"] > FORMAT:
                newer = f"format {self.description['format']!r:.40}"
                raise DataError(f"{self.path}: {newer} is newer than this program; update")
            self.data_hash = str(self.description["data_hash"])
            self.vocab_size = _count(self.description["tokenizer"]["vocab_size"])
            self.tokenizer_fingerprint = str(self.description["tokenizer"]["fingerprint"])
            if not re.fullmatch(r"[\w-]{1,100}", self.data_hash, re.ASCII):
                raise ValueError("data_hash is none")
            dtype = str(self.description["dtype"])
            splits = self.description["splits"]
            if not splits.keys() <= set(SPLITS):
                raise ValueError(f"splits other than {' and '.join(SPLITS)}")
            self._streams = {
                name: TokenStream(self.folder, name, entry, dtype, self.vocab_size) for name, entry in splits.items()
            }
            self.split_sentences = all(stream.split_sentences for stream in self._streams.values())
            self.splits = list(self._streams)  # train, and validation unless the dataset was built without
            files = [
                (f"{shard['name']}.{kind}", int(shard[f"{kind}_size"]))
                for stream in self._streams.values()
                for shard in stream.shards
                for kind in ("bin", "idx")
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.path}: damaged ({type(error).__name__}: {error!s:.200}); {_AGAIN}") from None
        for name, expected in files:
            _check_size(self.folder / name, expected)

    def load_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer that gave its ids. Raises DataError where there is another one in its place."""
        found = load_tokenizer(self.tokenizer_folder)
        if found.fingerprint != self.tokenizer_fingerprint:
            way_out = f"put that one back, or {_AGAIN}"
            raise DataError(f"{self.tokenizer_folder}: not the tokenizer this dataset was built with; {way_out}")
        return found

    def split(self, name: str) -> TokenStream:
        """Raises DataError when the dataset was built without this split."""
        if name not in self._streams:
            raise DataError(f"{self.folder}: has no {name} split; build it with `--validation` above 0")
        return self._streams[name]


def description_of(
    splits: Mapping[str, Any], dtype: str, tokenizer: Tokenizer, *, key: str, options: dict[str, Any], inputs: list[Any]
) -> dict[str, Any]:
    """Returns what DESCRIPTION says of a dataset. `key` names what it was made of."""
    return {
        "format": FORMAT,
        "data_hash": hash_data(splits, dtype, tokenizer.fingerprint),
        "key": key,
        "dtype": dtype,
        "tokenizer": {name: getattr(tokenizer, name) for name in ("kind", "vocab_size", "eod_id", "fingerprint")},
        "options": options,
        "inputs": inputs,
        "splits": splits,
    }


def hash_data(splits: Mapping[str, Any], dtype: str, tokenizer_fingerprint: str) -> str:
    """Returns the hex sha256 of what a model sees of a dataset: the tokens of each split, in order, and what they
    mean.
    """
    digests = {
        name: [(shard["bin_sha256"], shard["idx_sha256"]) for shard in entry["shards"]]
        for name, entry in splits.items()
    }
    return hashlib.sha256(json.dumps([digests, dtype, tokenizer_fingerprint]).encode()).hexdigest()


def _why_none(folder: Path) -> str:
    """Returns what is missing where a dataset was looked for, in brackets, and the way out."""
    # a relative path is seen from the folder in which the run was started
    here = "" if folder.is_absolute() else f" in {Path.cwd()}"
    missing = f"{DESCRIPTION} is missing" if folder.exists() else f"there is no such folder{here}"
    if datasets := sorted(folder.glob(f"*/{DESCRIPTION}")):
        return f"({missing}); it holds datasets: {datasets[0].parent}, for example"
    meant = did_you_mean(folder, lambda other: (other / DESCRIPTION).is_file())
    return f"({missing}); {meant} Else {_BUILD}" if meant else f"({missing}); {_BUILD}"


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _check_shard(entry: Mapping[str, Any]) -> None:
    """Raises ValueError or KeyError for an entry that `data build` does not write."""
    for key in ("tokens", "documents", "sequences", "bin_size", "idx_size"):
        _count(entry[key])
    texts = (entry["name"], entry["bin_sha256"], entry["idx_sha256"])
    if not all(isinstance(text, str) and re.fullmatch(r"[\w.-]{1,200}", text) for text in texts):
        raise ValueError(f"{entry['name']!r:.80} is no shard of this folder")


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError(f"{path}: this shard of the dataset is missing; {_AGAIN}") from None
    if size != expected:
        raise DataError(f"{path}: {size} bytes, but {DESCRIPTION} expects {expected}; {_AGAIN}")
