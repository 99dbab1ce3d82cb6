"""Training of a tokenizer on a corpus of any size: a uniform sample of its lines is what each kind learns from."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.log import Show, show_nothing
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit, say_left_out
from gpt1_ds.data.segments import TEXT_KEY
from gpt1_ds.data.tokenizers import gpt2_bpe, sentencepiece_bpe, wordpiece
from gpt1_ds.data.tokenizers.base import GPT2, SENTENCEPIECE, UNIGRAM, WORDPIECE, SpecialIds, Tokenizer
from gpt1_ds.data.tokenizers.registry import check_free, publish_tokenizer
from gpt1_ds.data.units import plan_units

Model: TypeAlias = Literal["bpe", "unigram", "gpt2-bpe", "wordpiece"]
SAMPLE = 1_000_000  # pieces of lines to learn from; training holds about 7 bytes of memory per byte of them
PIECE_LETTERS = 256  # longer lines are cut, at a space where there is one
Learned: TypeAlias = tuple[str, SpecialIds, dict[str, bytes]]  # kind, roles, files
Result = TypeVar("Result")


def train_tokenizer(
    inputs: Sequence[str | Path],
    out: Path | str,
    vocab_size: int = 40000,
    unwrap: bool = False,
    sample: int = SAMPLE,
    show: Show = show_nothing,
    *,
    model: Model = "bpe",
    masks: bool = False,
    cased: bool = False,
    sentinels: int = 0,
    text_key: str = TEXT_KEY,
) -> Tokenizer:
    """Learns `vocab_size` pieces from `inputs` (as for `data build`) and publishes them as the tokenizer folder `out`.

    `model` is a reversible SentencePiece BPE or unigram model, GPT-2's byte-level BPE, or BERT's WordPiece (`cased`:
    capitals and accents are kept). `masks` adds the symbols of masked models, which WordPiece always has, `sentinels`
    that many ids for the spans that T5 predicts. The same inputs give the same bytes. Of a corpus with more than
    `sample` pieces of lines a uniform sample is used. Raises DataError for unusable inputs, for an `out` that is there,
    and for a size that the text cannot support.
    """
    if cased and model != WORDPIECE:
        raise DataError(f"--cased is for --model wordpiece; --model {model} always keeps capitals: leave it out")
    if sentinels and model not in ("bpe", "unigram"):
        raise DataError(f"--sentinels {sentinels} is for --model unigram or bpe; leave it out with --model {model}")
    if vocab_size < 1:
        raise DataError(f"--vocab-size={vocab_size} must be at least 1; 8000 suits a shelf of books")
    if not 0 <= sentinels < vocab_size:
        raise DataError(f"--sentinels {sentinels} must be at least 0 and less than --vocab-size {vocab_size}")
    check_free(Path(out))  # before what takes minutes
    lines = reservoir(_cut_lines(_read(inputs, unwrap, show, text_key)), sample)
    if not lines:
        raise DataError("--input holds no text to learn a vocabulary from; name files with text in them")
    show(words=f"learning {vocab_size} pieces")
    kind, special_ids, files = _interruptible(lambda: _learn(lines, vocab_size, model, masks, cased, sentinels))
    return publish_tokenizer(Path(out), kind, vocab_size, special_ids, files)


def _learn(lines: Sequence[str], vocab_size: int, model: Model, masks: bool, cased: bool, sentinels: int) -> Learned:
    if model == "gpt2-bpe":
        return (GPT2, *gpt2_bpe.learn_byte_level(lines, vocab_size, masks))
    if model == "wordpiece":
        return (WORDPIECE, *wordpiece.learn_wordpiece(lines, vocab_size, cased))
    files = {sentencepiece_bpe.MODEL: sentencepiece_bpe.learn_sentencepiece(lines, vocab_size, masks, model, sentinels)}
    kind = UNIGRAM if model == "unigram" else SENTENCEPIECE
    return kind, sentencepiece_bpe.special_ids(masks, sentinels), files


def _read(inputs: Sequence[str | Path], unwrap: bool, show: Show, text_key: str) -> Iterator[str]:
    """Yields the text of `inputs`, block by block; says how many letters have been read, and how many rows have no
    text.
    """
    letters, missing = 0, list[None]()
    for unit in plan_units(find_inputs(inputs, text_key)):
        for piece in read_unit(unit, unwrap, lambda: missing.append(None)):
            letters += len(piece.text)
            show(letters, "reading")
            yield piece.text
    say_left_out("--input", len(missing), text_key)


def _interruptible(work: Callable[[], Result]) -> Result:
    """Returns what `work` returns. It runs in a thread, so that the main one receives Ctrl-C and SIGTERM while C++
    computes.
    """
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result.result()


def _cut_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yields the lines of at most PIECE_LETTERS characters; a cut keeps the space with the word that follows it."""
    for block in blocks:
        for line in block.split("\n"):
            start = 0  # a line without its beginning would be copied at each cut
            while len(line) - start > PIECE_LETTERS:
                at = line.rfind(" ", start + 1, start + PIECE_LETTERS)
                at = at if at > 0 else start + PIECE_LETTERS
                yield line[start:at]
                start = at
            if line:
                yield line[start:]


def reservoir(items: Iterable[str], size: int) -> list[str]:
    """Returns `size` items, each with the same chance (Vitter's algorithm R); all of them when there are no more."""
    draw = random.Random(0)
    kept: list[str] = []
    for seen, item in enumerate(items):
        if seen < size:
            kept.append(item)
        elif (at := int(draw.random() * (seen + 1))) < size:
            kept[at] = item
    return kept
