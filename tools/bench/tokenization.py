"""Row 15: text to packed shards, beside the tokenizer library alone on lines that lie in memory; ids are the same.

The library alone is SentencePiece line by line, which is its fastest on one core, or for the 2018 vocabulary (`--bpe`)
ftfy, spaCy and merges remembered per token, as published. Every build starts cold. The text is `--text`, else the
embedded corpus; its documents are also built from a file of each format. For the builds that two workers share it is
repeated until starting them does not count.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_ds.common.versions import installed
from gpt1_ds.data.build import build
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.parts import utf8_bytes
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.tokenizers.openai_bpe import MERGES, VOCABULARY, OpenAIBpe, merge
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer
from gpt1_ds.data.tokenizers.sentencepiece_bpe import MODEL
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.data.units import plan_units
from tools.bench.rows import Options, Ratio, Row, ratio, take_turns

APART = True  # torch is imported by other processes
Ids = list[list[int]]
PIECES = 8000  # of the SentencePiece vocabulary
QUICK_BYTES, SLOW_BYTES, SHARED_BYTES = 100_000, 2_000_000, 60_000_000  # of text: --quick, 2018's, two workers'
UNITS = 16  # that two workers share
ALONE, BUILT = "SentencePiece alone", "data build"
TXT, LINES, PARQUET = (f"data build from {kind}" for kind in (".txt", ".jsonl", ".parquet"))
ONE, TWO = "data build of much text, 1 worker", "data build of much text, 2 workers"
PUBLISHED, OURS = "2018: spaCy, ftfy, remembered merges", "2018: data build"
Alone = Callable[[Path, list[str]], Ids]


def measure(options: Options) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = list(options.text)
        if not inputs or options.quick:
            inputs = [write(folder / "text.jsonl", first(read(inputs or ["python-docs"]), options.quick))]
        texts = read(inputs)
        size = sum(map(utf8_bytes, texts))
        train_tokenizer(inputs, folder / "tokenizer", 1000 if options.quick else PIECES)
        turns = pair(folder / "tokenizer", inputs, texts, (ALONE, sentencepiece_alone), BUILT)
        much = inputs * (1 if options.quick else max(1, -(-SHARED_BYTES // size)))
        for workers, contender in ((1, ONE), (2, TWO)):
            turns[contender] = partial(_build, folder / "tokenizer", much, size * len(much) // len(inputs), workers)
        turns |= of_formats(folder, texts, size)
        turns |= _of_2018(options, folder, texts)
        series = take_turns(turns, options.rounds)
    ratios = [
        Ratio("data build / SentencePiece alone", ratio(series, BUILT, ALONE), 0.9),
        Ratio("2 workers / 1", ratio(series, TWO, ONE), 1.8),
        Ratio("from .parquet / from .txt", ratio(series, PARQUET, TXT), 0.9),
        Ratio("from .parquet / from .jsonl", ratio(series, PARQUET, LINES)),
    ]
    if OURS in series:
        ratios += [
            Ratio("2018 data build, MB/s", series[OURS], 1.0),
            Ratio("2018 data build / as published", ratio(series, OURS, PUBLISHED)),
        ]
    configuration = {
        "text": [Path(one).name for one in options.text] or "python-docs",
        "bytes": size,
        "documents": len(texts),
        "unit": "1e6 B",
    }
    configuration |= {library: installed(library) for library in ("sentencepiece", "ftfy", "spacy")}
    note = "" if OURS in series else "the 2018 vocabulary is left out: it needs --bpe, ftfy and spaCy"
    checks = {"ids": "identical, document by document"}
    return Row(15, "text to packed shards, one core", "MB/s", series, ratios, configuration, checks, note)


def _of_2018(options: Options, folder: Path, texts: list[str]) -> dict[str, Callable[[], float]]:
    """Its two contenders, on the first documents; none where its files or libraries are missing."""
    if options.bpe is None or not (installed("ftfy") and installed("spacy")):
        return {}
    source, tokenizer = Path(options.bpe), folder / "2018"
    import_openai(source / VOCABULARY, source / MERGES, tokenizer)
    few = first(texts, options.quick, SLOW_BYTES)
    return pair(tokenizer, [write(folder / "2018.jsonl", few)], few, (PUBLISHED, spacy_alone), OURS)


def pair(
    tokenizer: Path, inputs: Sequence[str], texts: list[str], peer: tuple[str, Alone], built: str
) -> dict[str, Callable[[], float]]:
    """A library alone and our build of the same text: two contenders that must find the same ids."""
    size, found = sum(map(utf8_bytes, texts)), []

    def alone() -> float:
        began = time.perf_counter()
        found[:] = peer[1](tokenizer, texts)
        return size / (time.perf_counter() - began) / 1e6

    def ours() -> float:
        return _build(tokenizer, inputs, size, 1, found)

    return {peer[0]: alone, built: ours}


def of_formats(folder: Path, texts: list[str], size: int) -> dict[str, Callable[[], float]]:
    """Builds of the same documents from a folder of texts, JSON lines and a Parquet file."""
    import pyarrow
    import pyarrow.parquet

    (folder / "txt").mkdir()
    for number, text in enumerate(texts):
        (folder / "txt" / f"{number:08d}.txt").write_text(text, "utf-8", newline="")
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet", row_group_size=1000)
    places = {TXT: str(folder / "txt"), LINES: write(folder / "lines.jsonl", texts), PARQUET: str(folder / "a.parquet")}
    return {kind: partial(_build, folder / "tokenizer", [place], size, 1) for kind, place in places.items()}


def _build(tokenizer: Path, inputs: Sequence[str], size: int, workers: int, expected: Ids | None = None) -> float:
    """MB/s of a build from nothing of `size` bytes of text."""
    with tempfile.TemporaryDirectory() as folder:
        units: dict[str, Any] = {} if expected is not None else {"unit_bytes": max(1 << 14, size // UNITS)}
        began = time.perf_counter()
        dataset = build(inputs, tokenizer, f"{folder}/out", workers=workers, validation=0, **units)
        seconds = time.perf_counter() - began
        if expected is not None:
            check(dataset, expected)
    return size / seconds / 1e6


def first(texts: list[str], quick: bool, most: int | None = None) -> list[str]:
    """Documents from the beginning until there are `most` bytes."""
    most, kept = QUICK_BYTES if quick else most, []
    for text in texts:
        kept.append(text)
        if most and sum(map(len, kept)) >= most:
            break
    return kept


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
    return str(path)


def read(inputs: Sequence[str]) -> list[str]:
    """The documents of `inputs`, whole."""
    texts = [""]
    for unit in plan_units(find_inputs(inputs)):
        for piece in read_unit(unit, False):
            texts[-1] += piece.text
            if piece.ends_document:
                texts.append("")
    return texts[:-1]


def sentencepiece_alone(folder: Path, texts: list[str]) -> Ids:
    """SentencePiece's own encoder, line by line."""
    import sentencepiece

    encode = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL)).EncodeAsIds
    return [[number for line in re.findall(r"[^\n]*\n|[^\n]+", text) for number in encode(line)] for text in texts]


def spacy_alone(folder: Path, texts: list[str]) -> Ids:
    """The published pipeline step by step, with merges remembered per token as published."""
    import ftfy
    from spacy.lang.en import English

    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, OpenAIBpe), f"{folder} holds neither {VOCABULARY} nor {MERGES}"
    split, remembered = English().tokenizer, {"\n ": [tokenizer.pieces["\n</w>"]]}

    def encode(token: str) -> list[int]:
        if token not in remembered:
            remembered[token] = [tokenizer.pieces.get(piece, 0) for piece in merge(token, tokenizer.ranks)]
        return remembered[token]

    return [
        [number for token in split(standardize(ftfy.fix_text(text))) for number in encode(token.text.lower())]
        for text in texts
    ]


def standardize(text: str) -> str:
    for old, new in (("\u2014", "-"), ("\u2013", "-"), ("\u2015", "-"), ("\u2026", "..."), ("\u00b4", "'")):
        text = text.replace(old, new)
    text = re.sub(r"(-+|~+|!+|\"+|;+|\?+|\++|,+|\)+|\(+|/+|\*+|\[+|\]+|}+|{+|\|+|_+)", r" \1 ", text)
    text = re.sub(r"\s*\n\s*", " \n ", text)
    return re.sub(r"[^\S\n]+", " ", text).strip()


def check(dataset: Dataset, expected: Ids) -> None:
    """The dataset holds the expected ids, document by document."""
    stream = dataset.split("train")
    tokens = stream.read(0, stream.tokens)
    documents = np.split(tokens, np.flatnonzero(tokens == load_tokenizer(dataset.tokenizer_folder).eod_id) + 1)
    for number, (ids, document) in enumerate(zip(expected, documents[:-1], strict=True)):
        assert np.array_equal(document[:-1], ids), f"document {number} has other ids"
