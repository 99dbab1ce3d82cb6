"""`tokenizer`: train or import one."""

from __future__ import annotations

import argparse

from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command, Group


def _train_options(parser: argparse.ArgumentParser) -> None:
    shared.texts(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")
    size = "pieces to learn (default: %(default)s)"
    parser.add_argument("--vocab-size", type=int, default=40000, metavar="N", help=size)
    shared.unwrap(parser)


def _train(options: argparse.Namespace) -> int:
    from gpt1_ds.common import progress
    from gpt1_ds.common.units import count
    from gpt1_ds.data.tokenizers.sentencepiece_train import train

    with progress.bar(unit=lambda letters: f"{count(letters)} letters") as show:
        tokenizer = train(options.input, options.out, options.vocab_size, options.unwrap, show=show)
    print(f"{options.out}: {tokenizer.vocab_size} pieces")
    return 0


def _import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--openai-gpt", action="store_true", required=True, help="the kind of the files")
    parser.add_argument("--vocab", required=True, metavar="encoder.json", help="its pieces and their numbers")
    parser.add_argument("--merges", required=True, metavar="vocab.bpe", help="its merges, in their order")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")


def _import(options: argparse.Namespace) -> int:
    from gpt1_ds.data.tokenizers.registry import import_openai

    tokenizer = import_openai(options.vocab, options.merges, options.out)
    print(f"{options.out}: {tokenizer.vocab_size} ids")
    return 0


COMMAND = Group(
    "tokenizer",
    "make a tokenizer",
    (
        Command("train", "learn a reversible SentencePiece BPE", _train, _train_options),
        Command("import", "take over GPT-1's own BPE of 2018", _import, _import_options),
    ),
)
