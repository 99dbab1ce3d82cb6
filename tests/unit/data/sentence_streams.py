"""Datasets with sentence borders, made of numbers: every token says where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpt1_ds.data.dataset import SENTENCE_COUNTS, TokenStream
from gpt1_ds.data.sentences import count_sentences
from gpt1_ds.data.spans import SpecialTokens
from gpt1_ds.data.split_writer import SplitWriter

EOD = 1
SPECIAL = SpecialTokens(cls=2, separator=3, pad=4, eod=EOD)
FIRST = 5  # id of the first token of a text
VOCABULARY = 2**31 - 1

Documents = Sequence[Sequence[int]]  # tokens of each sentence of each document


def stream_of(folder: Path, documents: Documents, shard_tokens: int = 1 << 30) -> TokenStream:
    """A training split in which the n-th token of all texts has id FIRST + n."""
    folder.mkdir(exist_ok=True, parents=True)
    writer, dtype = SplitWriter(folder, "train", np.dtype(np.int32), shard_tokens), "int32"
    place = 0
    for sentences in documents:
        tokens = np.append(np.arange(place, place + sum(sentences)) + FIRST, EOD)
        ends = np.cumsum(sentences, dtype=np.int64)
        ends = ends[:-1] if len(ends) else ends
        writer.write(tokens, np.array([len(tokens)]), np.append(ends, len(tokens)))
        place += sum(sentences)
    entry = writer.finish()
    entry[SENTENCE_COUNTS] = {"sentences": 0, "one_sentence_documents": 0, "empty_documents": 0}
    stream = TokenStream(folder, "train", entry, dtype, VOCABULARY)
    stream.sentence_counts = count_sentences(stream)
    return stream


def books(count: int, sentences: int, seed: int = 0) -> list[list[int]]:
    """Documents of about so many sentences of 1 to 60 tokens."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(sentences // 2, 2 * sentences, count)
    return [(1 + draw.gamma(1.5, 9, size).astype(int)).tolist() for size in sizes]
