"""Training of the SentencePiece BPE on a corpus of any size."""

from __future__ import annotations

import io
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.progress import Show, show_nothing
from gpt1_ds.data.corpus import find_inputs, plan_units
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.tokenizers.base import SENTENCEPIECE, SpecialIds, Tokenizer
from gpt1_ds.data.tokenizers.registry import publish_tokenizer
from gpt1_ds.data.tokenizers.sentencepiece_bpe import CONTROL_SYMBOLS, MODEL

SAMPLE = 1_000_000  # pieces of lines to learn from; training holds about 7 bytes of memory per byte of them
PIECE_LETTERS = 256  # longer lines are cut, at a space where there is one
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_LARGE = re.compile(r"too high \(\d+\)\. Please set it to a value <= (\d+)")


def train(
    inputs: Sequence[str | Path],
    out: Path | str,
    vocab_size: int = 40000,
    unwrap: bool = False,
    sample: int = SAMPLE,
    show: Show = show_nothing,
) -> Tokenizer:
    """Learn `vocab_size` pieces from `inputs` (as for `data build`) and publish them as the tokenizer folder `out`.

    The same inputs give the same bytes. Of a corpus with more than `sample` pieces of lines a uniform sample is used.
    Raises DataError for unusable inputs, for an `out` that is there, and for a size that the text cannot support.
    """
    lines = reservoir(_cut_lines(_read(inputs, unwrap, show)), sample)
    show(words=f"learning {vocab_size} pieces")
    model = _interruptible(lambda: learn(lines, vocab_size))
    special_ids = SpecialIds(unknown=0, **{symbol.strip("<>"): number for symbol, number in CONTROL_SYMBOLS.items()})
    return publish_tokenizer(Path(out), SENTENCEPIECE, vocab_size, special_ids, {MODEL: model})


def _read(inputs: Sequence[str | Path], unwrap: bool, show: Show) -> Iterator[str]:
    """The text of `inputs`, block by block; says how many letters have been read."""
    letters = 0
    for unit in plan_units(find_inputs(inputs)):
        for piece in read_unit(unit, unwrap):
            letters += len(piece.text)
            show(letters, "reading")
            yield piece.text


def _interruptible(work: Callable[[], bytes]) -> bytes:
    """What `work` returns, done in a thread: the main one hears Ctrl-C and SIGTERM while C++ computes."""
    result: Future[bytes] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result.result()


def _cut_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines of at most PIECE_LETTERS characters; a cut keeps the space with the word that follows it."""
    for block in blocks:
        for line in block.split("\n"):
            while len(line) > PIECE_LETTERS:
                at = line.rfind(" ", 1, PIECE_LETTERS)
                at = at if at > 0 else PIECE_LETTERS
                yield line[:at]
                line = line[at:]
            if line:
                yield line


def reservoir(items: Iterable[str], size: int) -> list[str]:
    """`size` items, each with the same chance (Vitter's algorithm R); all of them when there are no more."""
    draw = random.Random(0)
    kept: list[str] = []
    for seen, item in enumerate(items):
        if seen < size:
            kept.append(item)
        elif (at := int(draw.random() * (seen + 1))) < size:
            kept[at] = item
    return kept


def learn(lines: Sequence[str], vocab_size: int) -> bytes:
    """The serialized SentencePiece model of `vocab_size` pieces. Raises DataError naming the sizes that work."""
    import sentencepiece

    if not lines:
        raise DataError("--input holds no text to learn a vocabulary from; name files with text in them")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            control_symbols=list(CONTROL_SYMBOLS),
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=3,  # its C++ log would spill on the terminal
        )
    except RuntimeError as error:
        if found := _TOO_SMALL.search(str(error)):
            raise DataError(
                f"--vocab-size={vocab_size} is too small for the characters of this text; use at least {found[1]}"
            ) from None
        if found := _TOO_LARGE.search(str(error)):
            raise DataError(
                f"--vocab-size={vocab_size} is more than this text supports; use at most {found[1]}, or more text"
            ) from None
        raise
    return model.getvalue()
