"""Training of the SentencePiece BPE."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Literal

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.sentencepiece_bpe import symbols

_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_LARGE = re.compile(r"too high \(\d+\)\. Please set it to a value <= (\d+)")


def learn_sentencepiece(
    lines: Sequence[str],
    vocab_size: int,
    masks: bool = False,
    kind: Literal["bpe", "unigram"] = "bpe",
    sentinels: int = 0,
) -> bytes:
    """The serialized SentencePiece model of `vocab_size` pieces, sentinels included, which are none of its own. Raises
    DataError naming the sizes that work.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size - sentinels,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            byte_fallback=True,
            control_symbols=list(symbols(masks, sentinels).values()),
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=3,  # its C++ log would spill on the terminal
        )
    except RuntimeError as error:
        if found := _TOO_SMALL.search(str(error)):
            least = int(found[1]) + sentinels
            raise DataError(
                f"--vocab-size={vocab_size} is too small for the characters of this text; use at least {least}"
            ) from None
        if found := _TOO_LARGE.search(str(error)):
            most = int(found[1]) + sentinels
            raise DataError(
                f"--vocab-size={vocab_size} is more than this text supports; use at most {most}, or more text"
            ) from None
        raise
    return model.getvalue()
