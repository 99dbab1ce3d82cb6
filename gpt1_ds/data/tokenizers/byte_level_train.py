"""Training of a byte-level BPE like GPT-2's, by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.data.tokenizers.gpt2_bpe import ENDOFTEXT, MASK_SYMBOLS, MERGES, TASK_SYMBOLS, VOCABULARY, byte_level_ids
from gpt1_ds.data.tokenizers.tokenizer_json import BYTE_LETTERS, FEWEST, check_piece_count



def learn_byte_level(lines: Sequence[str], vocab_size: int, masks: bool = False) -> tuple[SpecialIds, dict[str, bytes]]:
    """Roles, and the files of a vocabulary of `vocab_size` ids: bytes, merged pieces, then the control symbols.

    Raises DataError naming the sizes that work.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    symbols = [ENDOFTEXT, *TASK_SYMBOLS.values(), *(MASK_SYMBOLS.values() if masks else ())]
    least = len(BYTE_LETTERS) + len(symbols)
    if vocab_size < least:
        raise DataError(f"--vocab-size={vocab_size} is too small for 256 bytes and the symbols; use at least {least}")
    letters = list(BYTE_LETTERS.values())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        lines,
        BpeTrainer(
            vocab_size=vocab_size - len(symbols), initial_alphabet=letters, min_frequency=FEWEST, show_progress=False
        ),
    )
    found: dict[str, Any] = json.loads(made.to_str())["model"]
    vocabulary = dict(sorted(found["vocab"].items(), key=lambda item: item[1]))
    check_piece_count(vocab_size, len(vocabulary) + len(symbols))
    vocabulary |= {symbol: len(vocabulary) + number for number, symbol in enumerate(symbols)}
    merges = "".join(f"{first} {second}\n" for first, second in found["merges"])
    files = {
        VOCABULARY: json.dumps(vocabulary, ensure_ascii=False).encode(),
        MERGES: f"#version: 0.2\n{merges}".encode(),
    }
    return byte_level_ids(vocabulary), files
