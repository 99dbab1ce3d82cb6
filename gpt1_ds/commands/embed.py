"""`embed`: the vector of each line of a file; `search`: the lines of a file that mean nearly the same as a text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.file_checks import input_problems, output_problems
from gpt1_ds.commands.parser import Command
from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import replacing
from gpt1_ds.common.text import shown
from gpt1_ds.launcher import libraries

if TYPE_CHECKING:
    from gpt1_ds.evaluation.embed import Embedder, Float32s

KINDS = (".npy", ".jsonl")
LINES = "a file with one text on each line; of .jsonl the key text of each object is read"


def _embed_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help=LINES)
    output = "NAME.npy holds float32 [lines, width]; NAME.jsonl holds an object with text and vector on each line"
    parser.add_argument("--output", required=True, metavar="FILE", help=output)
    shared_options.pooling(parser)


def _embed(options: argparse.Namespace) -> int:
    from gpt1_ds.tasks.lines import read_texts

    UserError.raise_all(_problems(options))
    texts = read_texts(Path(options.input))
    embedder = _embedder(options)
    vectors = _vectors(embedder, texts)
    with replacing(Path(options.output).resolve()) as file:  # a link stays, with other vectors
        _write(file, texts, vectors, Path(options.output).suffix)
    print(f"{options.output}: {len(vectors):,} vectors of {vectors.shape[1]} ({embedder.pooling})")
    return 0


def _problems(options: argparse.Namespace) -> Iterator[str]:
    output = Path(options.output)
    if output.suffix not in KINDS:
        yield f"--output {output}: its name ends in neither {' nor '.join(KINDS)}; choose one of them"
    yield from output_problems("--output", options.output)
    yield from input_problems("--input", options.input, "a text", options.output)


def _write(file: BinaryIO, texts: list[str], vectors: Float32s, kind: str) -> None:
    import json

    import numpy as np

    if kind == ".npy":
        values = np.ascontiguousarray(vectors)  # np.save itself does not say that a disk is full
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)
        return
    for text, vector in zip(texts, vectors, strict=True):
        numbers = [float(str(number)) for number in vector]  # the shortest that are the same in float32
        file.write((json.dumps({"text": text, "vector": numbers}, ensure_ascii=False) + "\n").encode())


def _search_options(parser: argparse.ArgumentParser) -> None:
    shared_options.checkpoint(parser)
    parser.add_argument("--documents", required=True, metavar="FILE", help=LINES)
    parser.add_argument("--query", required=True, metavar="TEXT", help="what is looked for")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="lines that are shown (default: %(default)s)")
    shared_options.pooling(parser)


def _search(options: argparse.Namespace) -> int:
    from gpt1_ds.tasks.lines import read_texts

    if options.top < 1:
        raise UserError(f"--top {options.top} must be at least 1")
    if not options.query.strip():
        raise UserError("--query is empty; say what is looked for")
    UserError.raise_all(input_problems("--documents", options.documents, "a text"))
    texts = read_texts(Path(options.documents))
    embedder = _embedder(options)
    from gpt1_ds.evaluation.embed import nearest

    (query,) = embedder.vectors([options.query])
    for number, cosine in nearest(query, _vectors(embedder, texts), options.top):
        print(f"{cosine:.4f}  {number + 1:>6}  {shown(texts[number])}")
    return 0


def _embedder(options: argparse.Namespace) -> Embedder:
    libraries.load()
    from gpt1_ds.evaluation.embed import Embedder
    from gpt1_ds.evaluation.load import load_checkpoint

    return Embedder(load_checkpoint(options.checkpoint), options.pooling)


def _vectors(embedder: Embedder, texts: list[str]) -> Float32s:
    before = embedder.cut
    with log.bar(len(texts), unit="{:,.0f} texts".format) as show:
        vectors = embedder.vectors(texts, show)
    if embedder.cut > before:
        most = embedder.frame.most
        log.say(f"{embedder.cut - before} of {len(texts)} texts are longer than {most} tokens and cut")
    return vectors


COMMAND = Command("embed", "the vector of each line of a file, as .npy or .jsonl", _embed, _embed_options)
SEARCH = Command("search", "the lines of a file that are nearest to a text", _search, _search_options)
