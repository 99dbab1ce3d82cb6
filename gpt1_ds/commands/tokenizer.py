"""`tokenizer`: train or import one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common import log
from gpt1_ds.common.errors import UserError

if TYPE_CHECKING:
    from gpt1_ds.data.tokenizers.base import Tokenizer

MODELS = ("bpe", "unigram", "gpt2-bpe", "wordpiece")
MODEL_HELP = (
    "bpe, unigram: reversible SentencePiece models; gpt2-bpe: the reversible byte-level BPE of GPT-2 and RoBERTa; "
    "wordpiece: BERT's, whose decoding is lossy (default: %(default)s)"
)
NEEDED = {  # kind -> the options that it needs, and those that it may have
    "openai_gpt": (("vocab", "merges"), ()),
    "gpt2": (("vocab", "merges"), ("task_symbols", "masks")),
    "wordpiece": ((), ("cased",)),
    "sentencepiece": ((), ("sentinels", "role")),
    "hf": ((), ("role",)),
}


def _train_options(parser: argparse.ArgumentParser) -> None:
    shared_options.texts(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")
    parser.add_argument("--model", choices=MODELS, default="bpe", help=MODEL_HELP)
    size = "pieces to learn (default: %(default)s)"
    parser.add_argument("--vocab-size", type=int, default=40000, metavar="N", help=size)
    masks = "add <cls> <sep> <pad> <mask>, which masked models need (wordpiece always has them)"
    parser.add_argument("--masks", action="store_true", help=masks)
    sentinels = "of bpe and unigram: add N ids for the spans that T5 predicts (default: %(default)s)"
    parser.add_argument("--sentinels", type=int, default=0, metavar="N", help=sentinels)
    parser.add_argument("--cased", action="store_true", help="of wordpiece: keep capitals and accents")
    shared_options.unwrap(parser)


def _train(options: argparse.Namespace) -> int:
    from gpt1_ds.common.text import count
    from gpt1_ds.data.tokenizers.train import train_tokenizer

    settings = {"model": options.model, "masks": options.masks, "cased": options.cased}
    settings |= {"sentinels": options.sentinels, "text_key": options.text_key}
    try:
        with log.bar(unit=lambda letters: f"{count(letters)} letters") as show:
            tokenizer = train_tokenizer(
                options.input, options.out, options.vocab_size, options.unwrap, show=show, **settings
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written; the same command begins anew") from None
    print(f"{options.out}: {tokenizer.vocab_size} pieces")
    return 0


def _import_options(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--openai-gpt", action="store_true", help="GPT-1's own BPE of 2018")
    kind.add_argument("--gpt2", action="store_true", help="GPT-2's encoder.json and vocab.bpe, or RoBERTa's")
    kind.add_argument("--wordpiece", metavar="vocab.txt", help="BERT's vocabulary (default: none)")
    kind.add_argument("--sentencepiece", metavar="FILE", help="a model file, like T5's spiece.model (default: none)")
    hf = "a Hugging Face folder with a tokenizer.json, or the name of a repository on the hub (default: none)"
    kind.add_argument("--hf", metavar="DIR_OR_NAME", help=hf)
    both = "which --openai-gpt and --gpt2 need (default: none)"
    parser.add_argument("--vocab", metavar="encoder.json", help=f"the pieces and their numbers, {both}")
    parser.add_argument("--merges", metavar="vocab.bpe", help=f"the merges, in their order, {both}")
    parser.add_argument("--cased", action="store_true", help="of --wordpiece: keep capitals and accents")
    symbols = "of --gpt2: append <start> <delimiter> <extract>, which fine-tuning as GPT-1 does needs"
    parser.add_argument("--task-symbols", action="store_true", help=symbols)
    masks = "of --gpt2: append <cls> <sep> <pad> <mask>, which masked models need"
    parser.add_argument("--masks", action="store_true", help=masks)
    sentinels = "of --sentencepiece: ids <extra_id_k> after those of the file (default: 100 for one like T5's, else 0)"
    parser.add_argument("--sentinels", type=int, metavar="N", help=sentinels)
    role = (
        "of --hf and --sentencepiece: the symbol of a role (eod, bos, sep, cls, pad, mask, unk, start, delimiter, "
        "extract), like mask='<mask>'; may be given several times (default: what the files say)"
    )
    parser.add_argument("--role", action="append", default=[], metavar="NAME=SYMBOL", help=role)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for the tokenizer")


def _import(options: argparse.Namespace) -> int:
    tokenizer, remarks = _imported(options)
    for remark in remarks:
        print(remark)
    print(f"{options.out}: {tokenizer.vocab_size} ids")
    return 0


def _imported(options: argparse.Namespace) -> tuple[Tokenizer, list[str]]:
    from gpt1_ds.data.tokenizers import imports
    from gpt1_ds.data.tokenizers.registry import import_openai

    kind = next(name for name in NEEDED if getattr(options, name) not in (None, False))
    if not getattr(options, kind):
        raise UserError(f"--{kind}: its value is empty; name a file or folder")
    _check(options, kind)
    if kind == "openai_gpt":
        return import_openai(options.vocab, options.merges, options.out), []
    if kind == "gpt2":
        return imports.import_gpt2(options.vocab, options.merges, options.out, options.task_symbols, options.masks)
    if kind == "wordpiece":
        return imports.import_wordpiece(options.wordpiece, options.out, options.cased)
    if kind == "sentencepiece":
        return imports.import_sentencepiece(options.sentencepiece, options.out, options.sentinels, options.role)
    return imports.import_hf(options.hf, options.out, options.role)


def _check(options: argparse.Namespace, kind: str) -> None:
    """Raises UserError for options that the kind lacks or does not know."""
    needed, possible = NEEDED[kind]
    flag = "--" + kind.replace("_", "-")
    for name in ("vocab", "merges", "cased", "task_symbols", "masks", "sentinels", "role"):
        option = "--" + name.replace("_", "-")
        if name in needed and getattr(options, name) is None:
            raise UserError(f"{flag} needs {option} FILE; see gpt1-ds tokenizer import --help")
        if name not in (*needed, *possible) and getattr(options, name):
            raise UserError(f"{flag} has no {option}; leave it out")


COMMAND = Group(
    "tokenizer",
    "make a tokenizer",
    (
        Command("train", "learn a BPE, unigram or WordPiece vocabulary", _train, _train_options),
        Command(
            "import", "take over a published one: GPT-1's, GPT-2's, BERT's, T5's or any other", _import, _import_options
        ),
    ),
)
