"""How fast text becomes shards on one core, next to the tokenizer library alone on lines that lie in memory.

    python tools/bench_tokenize.py --tokenizer DIR --input PATH... [--rounds 5] [--unwrap]

The two are measured in turn (A B A B ...), each round from a cold start; medians, spread and their ratio are printed.
The library alone is SentencePiece line by line, or ftfy, spaCy and remembered merges for the 2018 vocabulary. Both must
give the same ids, else the measurement ends with an error.
"""

from __future__ import annotations

import argparse
import platform
import re
import resource
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from gpt1_ds.data.build import build
from gpt1_ds.data.corpus import find_inputs, plan_units
from gpt1_ds.data.dataset import Dataset
from gpt1_ds.data.openai_bpe import MERGES, VOCABULARY, OpenAIBpe, merge
from gpt1_ds.data.parts import utf8_bytes
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.sentencepiece_bpe import MODEL
from gpt1_ds.data.tokenizer import SENTENCEPIECE, load_tokenizer, read_metadata

Ids = list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unwrap", action="store_true")
    arguments = parser.parse_args()

    is_sentencepiece = read_metadata(arguments.tokenizer).kind == SENTENCEPIECE
    alone = sentencepiece_alone if is_sentencepiece else spacy_alone
    libraries = ["numpy", "sentencepiece"] if is_sentencepiece else ["numpy", "ftfy", "spacy"]
    texts = read(arguments.input, arguments.unwrap)
    size = sum(map(utf8_bytes, texts)) / 1e6
    print(f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in libraries)}")
    print(f"{size:.1f} MB of text in {len(texts)} documents, one core")

    rates: dict[str, list[float]] = {"library alone": [], "data build": []}
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        expected = alone(arguments.tokenizer, texts)
        rates["library alone"].append(size / (time.perf_counter() - start))
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            dataset = build(
                arguments.input, arguments.tokenizer, f"{folder}/out", workers=1, validation=0, unwrap=arguments.unwrap
            )
            rates["data build"].append(size / (time.perf_counter() - start))
            check(dataset, expected)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:13s} {medians[name]:6.2f} MB/s ({min(values):.2f} to {max(values):.2f} in {len(values)} rounds)")
    print(f"ratio         {medians['data build'] / medians['library alone']:6.2f}, ids identical")
    print(
        f"peak memory   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MiB, with all texts in memory"
    )


def read(inputs: list[str], unwrap: bool) -> list[str]:
    """The documents of `inputs`, whole."""
    texts = [""]
    for unit in plan_units(find_inputs(inputs), unwrap=unwrap):
        for piece in read_unit(unit, unwrap):
            texts[-1] += piece.text
            if piece.ends_document:
                texts.append("")
    return texts[:-1]


def sentencepiece_alone(folder: Path, texts: list[str]) -> Ids:
    """SentencePiece's own encoder, line by line, which is its fastest on one core."""
    import sentencepiece

    encode = sentencepiece.SentencePieceProcessor(model_file=str(folder / MODEL)).EncodeAsIds
    return [[number for line in re.findall(r"[^\n]*\n|[^\n]+", text) for number in encode(line)] for text in texts]


def spacy_alone(folder: Path, texts: list[str]) -> Ids:
    """The published pipeline step by step, with merges remembered per token as published."""
    import ftfy
    from spacy.lang.en import English

    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, OpenAIBpe), f"{folder} holds neither {VOCABULARY} nor {MERGES}"
    split, remembered = English().tokenizer, {"\n ": [tokenizer._ids["\n</w>"]]}

    def encode(token: str) -> list[int]:
        if token not in remembered:
            remembered[token] = [tokenizer._ids.get(piece, 0) for piece in merge(token, tokenizer._ranks)]
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
    """End with an error unless the dataset holds the expected ids, document by document."""
    stream = dataset.split("train")
    for number, ids in enumerate(expected):
        start, stop = stream.document_range(number)
        if not np.array_equal(stream.read(start, stop - start - 1), ids):
            raise SystemExit(f"document {number} has other ids")


if __name__ == "__main__":
    main()
