"""`data`: fetch, build, verify and count datasets."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpt1_ds.commands import shared_options
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common import log
from gpt1_ds.common.errors import EXIT_CONTINUE, UserError
from gpt1_ds.common.text import amount, byte_size
from gpt1_ds.tasks.hub_sets import OUT, SETS

if TYPE_CHECKING:
    from gpt1_ds.data.dataset import TokenStream

MOST_FILES = 5  # that are named one by one


def _build_options(parser: argparse.ArgumentParser) -> None:
    shared_options.texts(parser)
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="what tokenizer train or import has made")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder of the dataset")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")
    held_out = "fraction of the documents that is held out for validation (default: %(default)s)"
    parser.add_argument("--validation", type=float, default=0.01, metavar="F", help=held_out)
    shared_options.unwrap(parser)
    sentences = "also note where sentences begin, for data.text=full_sentences and data.text=pairs"
    parser.add_argument("--sentences", action="store_true", help=sentences)


def _build(options: argparse.Namespace) -> int:
    from gpt1_ds.data.build import build

    more = {"split_sentences": options.sentences, "text_key": options.text_key}
    arguments = (options.input, options.tokenizer, options.out, options.workers, options.validation, options.unwrap)
    try:
        with _ended_by_term(), log.bar(unit=byte_size) as show:
            dataset = build(*arguments, show, **more)
    except _AskedToEnd:
        log.say(f"{options.out}: asked to end; finished parts are kept")
        return EXIT_CONTINUE
    except KeyboardInterrupt:
        raise KeyboardInterrupt("finished parts are kept; run the same command again") from None
    total = sum(dataset.split(name).tokens for name in dataset.splits)
    for name in dataset.splits:
        split = dataset.split(name)
        fraction = f" ({split.tokens / total:.2%} of all tokens)" if name == "validation" else ""
        documents = amount(split.documents, "document")
        print(f"{options.out}: {name}: {split.tokens} tokens, {documents}, {split.bytes} bytes of text{fraction}")
        _say_sentences(options.out, name, split)
        if name == "validation" and split.tokens < total * options.validation / 2:
            log.say(
                f"{options.out}: --validation={options.validation} holds out whole documents, which have "
                f"{split.tokens / total:.2%} of the tokens; use a larger one, or split long documents"
            )
    return 0


class _AskedToEnd(BaseException):
    """SIGTERM came: a job's time is used up, or it is preempted."""


@contextlib.contextmanager
def _ended_by_term() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does."""

    def end(*_: object) -> None:
        raise _AskedToEnd

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _adopt_options(parser: argparse.ArgumentParser) -> None:
    pairs = "pairs of .bin and .idx files, named with an ending or without"
    parser.add_argument("--input", nargs="+", required=True, metavar="PREFIX", help=f"{pairs}, to train on")
    held_out = f"{pairs}, that are held out (default: none)"
    parser.add_argument("--validation", nargs="+", default=[], metavar="PREFIX", help=held_out)
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="the one that the pairs were made with")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new folder for the dataset")
    copies = "copy the pairs, instead of links to them (which break when they are moved)"
    parser.add_argument("--copy", action="store_true", help=copies)


def _adopt(options: argparse.Namespace) -> int:
    from gpt1_ds.data.adopt import adopt

    with log.bar(unit="{:.0f} pairs".format) as show:
        dataset = adopt(options.input, options.tokenizer, options.out, options.validation, options.copy, show)
    for name in dataset.splits:
        split = dataset.split(name)
        kept = "copied" if options.copy else "linked"
        print(f"{options.out}: {name}: {split.tokens} tokens, {amount(split.documents, 'document')}, {kept}")
        _say_sentences(options.out, name, split)
    return 0


def _say_sentences(folder: str, name: str, split: TokenStream) -> None:
    """Nothing for a dataset without sentence borders."""
    if counts := split.sentence_counts:
        print(
            f"{folder}: {name}: {counts['sentences']} sentences; {counts['one_sentence_documents']} documents have one "
            f"sentence, too few for a pair, and {counts['empty_documents']} have none"
        )
        if split.documents_with_text < 2:
            larger = ", or with a larger --validation" if name == "validation" else ""
            print(
                f"{folder}: {name}: too small for data.text=pairs: its texts come from two documents with text; "
                f"build it again of more documents{larger}"
            )


def _dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a dataset, as data build makes it")


def _verify(options: argparse.Namespace) -> int:
    from gpt1_ds.common.text import shown
    from gpt1_ds.data.verify import verify_dataset

    with log.bar(unit="{:.0f} shards".format) as show:
        dataset = verify_dataset(options.folder, show)
    for name in dataset.splits:
        split = dataset.split(name)
        print(
            f"{options.folder}: {shown(name)}: {split.tokens} tokens, {amount(split.documents, 'document')}: as built"
        )
        _say_sentences(options.folder, shown(name), split)
    return 0


def _ngrams_options(parser: argparse.ArgumentParser) -> None:
    _dataset(parser)
    orders = "the longest n-grams that are counted (default: %(default)s)"
    parser.add_argument("--orders", type=int, default=3, choices=(1, 2, 3), help=orders)


def _ngrams(options: argparse.Namespace) -> int:
    from gpt1_ds.data.ngrams import write_ngram_scores

    for score in write_ngram_scores(options.folder, options.orders):
        print(
            f"{score.order}-gram: held-out loss {score.loss:.4f} nats per token, perplexity {score.perplexity:.2f}, "
            f"{score.bits_per_byte:.4f} bits per byte"
        )
    return 0


def _fetch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets, glue/sst2 for example")
    out = "the folder that gets a folder of each set (default: %(default)s, where presets look)"
    parser.add_argument("--out", default=OUT, metavar="DIR", help=out)
    parser.add_argument("--list", action="store_true", help="the sets that there are, each with its folder and licence")


def _fetch(options: argparse.Namespace) -> int:
    from gpt1_ds.tasks.fetch import fetch, find_set

    if options.list == bool(options.names):
        raise UserError("data fetch: name the sets to fetch, or --list to see which there are")
    if options.list:
        width = max(map(len, SETS))
        for one in SETS.values():
            print(f"{one.name:{width}}  {options.out}/{one.folder}; licence: {one.licence}")
        return 0
    for name in options.names:
        find_set(name)  # before the first one is fetched
    for name in options.names:
        with log.bar(unit="{:.0f} rows".format) as show:
            done = fetch(name, options.out, show)
        files = [f"{file} {count} rows" for file, count in done.rows.items()]
        if len(files) > MOST_FILES:
            files = [f"{len(files)} files {sum(done.rows.values())} rows"]
        there = [f"{len(done.there)} files were there"] if done.there else []
        print(f"{done.folder}: {', '.join(files + there)}; licence of {name}: {done.licence}", flush=True)
    return 0


COMMAND = Group(
    "data",
    "make and check datasets",
    (
        Command(
            "fetch",
            "the data of tasks, probes and studies, from the Hugging Face hub; says each licence",
            _fetch,
            _fetch_options,
        ),
        Command(
            "build",
            "tokenize text into Megatron .bin/.idx shards; resumes after an interruption",
            _build,
            _build_options,
        ),
        Command("adopt", "use Megatron .bin/.idx pairs that are there, as they are", _adopt, _adopt_options),
        Command("verify", "checksums, counts and token range", _verify, _dataset),
        Command(
            "ngrams",
            "held-out cross-entropy of n-gram counting, to hold a model against",
            _ngrams,
            _ngrams_options,
        ),
    ),
)
