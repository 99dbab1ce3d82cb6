"""Proof that a dataset folder is what it was when it was built: checksums, counts, borders and token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import sha256_file
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.dataset import Dataset, TokenStream, hash_data
from gpt1_ds.data.sentences import count_sentences
from gpt1_ds.data.shards import Shard, Tokens

BLOCK_TOKENS = 1 << 22
_AGAIN = "build the dataset again in another folder"


def verify_dataset(folder: Path | str, show: Show = show_nothing) -> Dataset:
    """Reads every token of a dataset again, and returns the dataset.

    Checks sizes, sha256, counts, that every id is in the vocabulary, that each document ends with `<eod>`, and the
    tokenizer. Raises DataError naming the file and, for a bad token, its byte offset.
    """
    dataset = Dataset(folder)
    tokenizer = dataset.load_tokenizer()
    seen, shards = 0, sum(len(dataset.split(name).shards) for name in dataset.splits)
    for name in dataset.splits:
        stream = dataset.split(name)
        for number in range(len(stream.shards)):
            show(seen, name, shards)
            _verify_shard(stream, number, dataset.vocab_size, tokenizer.eod_id)
            seen += 1
        if stream.split_sentences and dict(stream.sentence_counts) != count_sentences(stream):
            raise DataError(f"{dataset.path}: {name} lists {dict(stream.sentence_counts)} as its sentences; {_AGAIN}")
        for what, total in (("tokens", stream.tokens), ("documents", stream.documents)):
            listed = sum(shard[what] for shard in stream.shards)
            if listed != total:
                raise DataError(f"{dataset.path}: {name} lists {listed} {what} in its shards, {total} in all; {_AGAIN}")
    description = dataset.description
    if hash_data(description["splits"], description["dtype"], tokenizer.fingerprint) != dataset.data_hash:
        raise DataError(f"{dataset.path}: data_hash does not fit the shards it lists; {_AGAIN}")
    return dataset


def verify_share(streams: Sequence[TokenStream], share: tuple[int, int], progress: Callable[[], None]) -> None:
    """Compares the sha256 of every n-th shard, from the k-th, with dataset.json; `share` = (k, n).

    What a run does before it trains, its ranks sharing the reading; `progress` is called after each file. Raises
    DataError naming the file.
    """
    shards = [(stream, number) for stream in streams for number in range(len(stream.shards))]
    for stream, number in shards[share[0] :: share[1]]:
        entry, shard = stream.shards[number], stream.shard(number)
        for path, digest in ((shard.bin_path, entry["bin_sha256"]), (shard.idx_path, entry["idx_sha256"])):
            _compare(path, sha256_file(path), digest)
            progress()


def files_of(streams: Sequence[TokenStream]) -> list[Path]:
    """Returns the files that `verify_share` reads."""
    names = ((stream, shard["name"]) for stream in streams for shard in stream.shards)
    return [stream.folder / f"{name}.{kind}" for stream, name in names for kind in ("bin", "idx")]


def _compare(path: Path, digest: str, expected: str) -> None:
    if digest != expected:
        raise DataError(f"{path}: its sha256 differs from the one in dataset.json; {_AGAIN}")


def _verify_shard(stream: TokenStream, number: int, vocab_size: int, eod_id: int) -> None:
    entry, shard = stream.shards[number], stream.shard(number)
    _compare(shard.bin_path, _verify_tokens(shard, vocab_size), entry["bin_sha256"])
    _compare(shard.idx_path, sha256_file(shard.idx_path), entry["idx_sha256"])
    check_index(shard)
    documents = len(shard.documents) - 1
    continued = documents - entry["documents"]  # documents that the next shard continues
    if continued not in (0, 1) or (continued and number == len(stream.shards) - 1):
        raise DataError(
            f"{shard.idx_path}: {documents} documents, but dataset.json expects {entry['documents']}; {_AGAIN}"
        )
    if (found := unended(shard, entry["documents"], eod_id)) is not None:
        document, last = found
        place = f"{shard.bin_path}: byte {last * shard.dtype.itemsize}"
        raise DataError(f"{place}: document {document} does not end with <eod>; {_AGAIN}")


def unended(shard: Shard, documents: int, eod_id: int) -> tuple[int, int] | None:
    """Returns (the first document, of so many, that does not end with `<eod>`; its last token), or None where all
    do.
    """
    for first in range(0, documents, BLOCK_TOKENS):
        last = shard.document_ends(first, min(first + BLOCK_TOKENS, documents)) - 1
        wrong = np.flatnonzero(shard.tokens[last] != eod_id)
        if len(wrong):
            return first + int(wrong[0]), int(last[wrong[0]])
    return None


def check_index(shard: Shard) -> None:
    """Raises DataError unless each sequence begins where the one before it ends, and documents where sequences do."""
    reached = 0
    for first in range(0, shard.sequences, BLOCK_TOKENS):
        starts, ends = shard.at(slice(first, first + BLOCK_TOKENS))
        if starts[0] != reached or (starts[1:] != ends[:-1]).any() or (ends < starts).any():
            raise DataError(f"{shard.idx_path}: its sequences do not follow one another; {_AGAIN}")
        reached = int(ends[-1])
    shard.check_documents()
    if reached != len(shard.tokens):
        raise DataError(f"{shard.idx_path}: ends at token {reached} of {len(shard.tokens)}; {_AGAIN}")


def _verify_tokens(shard: Shard, vocab_size: int) -> str:
    """Returns the hex sha256 of all tokens. Raises DataError for one that is not in the vocabulary."""
    digest = hashlib.sha256()
    for block in token_blocks(shard, vocab_size, f"the vocabulary of {vocab_size}; {_AGAIN}"):
        digest.update(block.data)
    return digest.hexdigest()


def token_blocks(shard: Shard, vocab_size: int, vocabulary: str) -> Iterator[Tokens]:
    """Yields all tokens, in blocks of bounded memory. Raises DataError for one that is not in the `vocabulary`, which
    says what to do, too.
    """
    start = 0
    with open(shard.bin_path, "rb") as file:
        while len(block := np.fromfile(file, shard.dtype, BLOCK_TOKENS)):
            wrong = np.flatnonzero((block < 0) | (block >= vocab_size))
            if len(wrong):
                at = (start + int(wrong[0])) * shard.dtype.itemsize
                raise DataError(f"{shard.bin_path}: byte {at}: token id {block[wrong[0]]} is not in {vocabulary}")
            yield block
            start += len(block)
