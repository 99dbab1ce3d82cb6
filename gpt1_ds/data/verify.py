"""Proof that a dataset folder is what it was when it was built, and how well counting predicts its held-out text.

Counts come from the training split, the score is that of the validation split, per token and per byte. Higher orders
interpolate with the next lower one by absolute discounting (Ney, Essen, Kneser 1994); the unigram with a uniform one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common import log
from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import sha256_file, write_json
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.dataset import Dataset, TokenStream, hash_data
from gpt1_ds.data.sentences import count_sentences
from gpt1_ds.data.shards import Shard, Tokens
from gpt1_ds.data.windows import Int64s

DISCOUNT = 0.75
MAX_TOKENS = 50_000_000  # of either split; keeps a baseline within a minute and a few GB

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class NgramScore:
    """Cross-entropy of the held-out tokens under an n-gram model."""

    order: int
    loss: float  # nats per token
    perplexity: float  # per token
    bits_per_byte: float


def scores(folder: Path | str, orders: int = 3) -> list[NgramScore]:
    """Baselines of orders 1 .. `orders` (at most 3). Raises DataError when a split is missing or too small."""
    dataset = Dataset(folder)
    train, held_out = _tokens(dataset.split("train")), _tokens(dataset.split("validation"))
    for split, tokens in (("training", train), ("held-out", held_out)):
        if len(tokens) < orders:
            told = f"{len(tokens)} {split} tokens are too few for an n-gram baseline"
            raise DataError(f"{folder}: {told} of order {orders}; use a smaller --orders, or build it of more text")
    text_bytes = int(dataset.load_tokenizer().token_bytes()[held_out].sum())
    result = []
    probability = _unigram(train, held_out, dataset.vocab_size)
    for order in range(1, orders + 1):
        if order > 1:
            probability = _interpolated(train, held_out, order, dataset.vocab_size, probability)
        nats = -float(np.log(probability).sum())
        loss = nats / len(held_out)
        result.append(NgramScore(order, loss, math.exp(loss), nats / max(1, text_bytes) / math.log(2)))
    return result


def write_ngram_scores(folder: Path | str, orders: int = 3) -> list[NgramScore]:
    """`scores`, kept as ngrams.json beside the dataset, where reports of runs on it find them."""
    result = scores(folder, orders)
    path = Path(folder) / "ngrams.json"
    try:
        write_json(path, [asdict(score) for score in result])
    except OSError as error:
        log.say(f"{path}: not kept for reports: {error.strerror}")
    return result


def _tokens(stream: TokenStream) -> Int64s:
    return stream.read(0, min(stream.tokens, MAX_TOKENS)).astype(np.int64)


def _unigram(train: Int64s, held_out: Int64s, vocab_size: int) -> Floats:
    """Probability of each held-out token; unseen ones share the discounted mass of the seen."""
    counts = np.bincount(train, minlength=vocab_size)
    seen = np.count_nonzero(counts)
    spread = DISCOUNT * seen / len(train) / vocab_size
    probability: Floats = np.maximum(counts[held_out] - DISCOUNT, 0) / len(train) + spread
    return probability


def _interpolated(train: Int64s, held_out: Int64s, order: int, vocab_size: int, lower: Floats) -> Floats:
    """max(c(h w) - D, 0) / c(h) + D * types(h) / c(h) * lower(w); the first tokens have no history and keep `lower`."""
    grams, gram_counts = np.unique(_keys(train, order, vocab_size), return_counts=True)
    histories, first, types = np.unique(grams // vocab_size, return_index=True, return_counts=True)
    history_counts = np.add.reduceat(gram_counts, first)
    wanted = _keys(held_out, order, vocab_size)
    count = _lookup(grams, gram_counts, wanted)
    history_count = _lookup(histories, history_counts, wanted // vocab_size)
    history_types = _lookup(histories, types, wanted // vocab_size)
    known = history_count > 0
    total = np.maximum(history_count, 1)
    probability = lower.copy()
    tail = probability[order - 1 :]
    mixed = np.maximum(count - DISCOUNT, 0) / total + DISCOUNT * history_types / total * tail
    tail[known] = mixed[known]
    return probability


def _keys(tokens: Int64s, order: int, vocab_size: int) -> Int64s:
    """Each run of `order` tokens as one number; 3 * log2(vocabulary) bits fit in 63 for up to 2 million ids."""
    keys = np.zeros(len(tokens) - order + 1, dtype=np.int64)
    for place in range(order):
        keys = keys * vocab_size + tokens[place : len(tokens) - order + 1 + place]
    return keys


def _lookup(sorted_keys: Int64s, values: Int64s, wanted: Int64s) -> Int64s:
    at = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == wanted, values[at], 0)


BLOCK_TOKENS = 1 << 22
_AGAIN = "build the dataset again in another folder"


def verify_dataset(folder: Path | str, show: Show = show_nothing) -> Dataset:
    """Re-read every token of a dataset; the dataset.

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
    """Compare the sha256 of every n-th shard, from the k-th, with dataset.json; `share` = (k, n).

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
    goes_on = documents - entry["documents"]  # of a document that the next shard continues
    if goes_on not in (0, 1) or (goes_on and number == len(stream.shards) - 1):
        raise DataError(
            f"{shard.idx_path}: {documents} documents, but dataset.json expects {entry['documents']}; {_AGAIN}"
        )
    if (found := unended(shard, entry["documents"], eod_id)) is not None:
        document, last = found
        place = f"{shard.bin_path}: byte {last * shard.dtype.itemsize}"
        raise DataError(f"{place}: document {document} does not end with <eod>; {_AGAIN}")


def unended(shard: Shard, documents: int, eod_id: int) -> tuple[int, int] | None:
    """(the first of so many documents that does not end with `<eod>`, its last token), None where all do."""
    for first in range(0, documents, BLOCK_TOKENS):
        last = shard.document_ends(first, min(first + BLOCK_TOKENS, documents)) - 1
        wrong = np.flatnonzero(shard.tokens[last] != eod_id)
        if len(wrong):
            return first + int(wrong[0]), int(last[wrong[0]])
    return None


def check_index(shard: Shard) -> None:
    """Every sequence begins where the one before it ends, and documents begin where a sequence does."""
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
    """Hex sha256 of all tokens, each in the vocabulary."""
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
