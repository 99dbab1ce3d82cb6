"""How well counting predicts the held-out text of a dataset: n-gram baselines.

Counts come from the training split, the score is that of the validation split, per token and per byte. Higher orders
interpolate with the next lower one by absolute discounting (Ney, Essen, Kneser 1994); the unigram with a uniform one.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common import log
from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import write_json
from gpt1_ds.data.dataset import Dataset, TokenStream
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


def ngram_scores(folder: Path | str, orders: int = 3) -> list[NgramScore]:
    """Returns the scores of orders 1 to `orders` (at most 3). Raises DataError when a split is missing or too small."""
    dataset = Dataset(folder)
    train, held_out = _tokens(dataset.split("train")), _tokens(dataset.split("validation"))
    for split, tokens in (("training", train), ("held-out", held_out)):
        if len(tokens) < orders:
            problem = f"{len(tokens)} {split} tokens are too few for an n-gram baseline of order {orders}"
            raise DataError(f"{folder}: {problem}; use a smaller --orders, or build it of more text")
    text_bytes = int(dataset.load_tokenizer().token_bytes()[held_out].sum())
    result = []
    probability = _unigram(train, held_out, dataset.vocab_size)  # [held-out tokens]
    for order in range(1, orders + 1):
        if order > 1:
            probability = _interpolated(train, held_out, order, dataset.vocab_size, probability)
        nats = -float(np.log(probability).sum())
        loss = nats / len(held_out)
        result.append(NgramScore(order, loss, math.exp(loss), nats / max(1, text_bytes) / math.log(2)))
    return result


def write_ngram_scores(folder: Path | str, orders: int = 3) -> list[NgramScore]:
    """Writes `ngram_scores` as ngrams.json into the dataset folder, where reports of runs find them; returns them."""
    result = ngram_scores(folder, orders)
    path = Path(folder) / "ngrams.json"
    try:
        write_json(path, [asdict(score) for score in result])
    except OSError as error:
        log.say(f"{path}: not kept for reports: {error.strerror}")
    return result


def _tokens(stream: TokenStream) -> Int64s:
    return stream.read(0, min(stream.tokens, MAX_TOKENS)).astype(np.int64)


def _unigram(train: Int64s, held_out: Int64s, vocab_size: int) -> Floats:
    """Returns the probability of each held-out token. The mass that seen tokens lose by the discount is spread over
    all.
    """
    counts = np.bincount(train, minlength=vocab_size)
    seen = np.count_nonzero(counts)
    spread = DISCOUNT * seen / len(train) / vocab_size
    probability: Floats = np.maximum(counts[held_out] - DISCOUNT, 0) / len(train) + spread
    return probability


def _interpolated(train: Int64s, held_out: Int64s, order: int, vocab_size: int, lower: Floats) -> Floats:
    """Returns the probability of each held-out token w after its history h, the `order` - 1 tokens before it:

        max(count(h w) - D, 0) / count(h)  +  D * types(h) / count(h) * lower(w)

    D is the discount and types(h) the number of different tokens after h in train. `lower` stays where there is no
    history, at the beginning, or none that train has.
    """
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
    """Returns each run of `order` tokens as one number; 3 * log2(vocabulary) bits fit in 63 for up to 2 million ids."""
    keys = np.zeros(len(tokens) - order + 1, dtype=np.int64)
    for place in range(order):
        keys = keys * vocab_size + tokens[place : len(tokens) - order + 1 + place]
    return keys


def _lookup(sorted_keys: Int64s, values: Int64s, wanted: Int64s) -> Int64s:
    """Returns the value of each wanted key; 0 for a key that is not there."""
    index = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    return np.where(sorted_keys[index] == wanted, values[index], 0)
