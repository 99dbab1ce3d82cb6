"""Training of a WordPiece vocabulary like BERT's, by the `tokenizers` library.

The library numbers the `##` forms of characters in an order that differs from process to process, and breaks ties by
number. So the characters are counted here, and given to it in their order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.data.tokenizers.tokenizer_json import FEWEST, check_piece_count
from gpt1_ds.data.tokenizers.wordpiece import (
    CONTINUES,
    SETTINGS,
    SYMBOLS,
    VOCABULARY,
    contents,
    settings,
    wordpiece_ids,
)

MOST_LETTERS = 1000  # characters with pieces of their own, as in the library's recipe for BERT


def learn_wordpiece(lines: Sequence[str], vocab_size: int, cased: bool = False) -> tuple[SpecialIds, dict[str, bytes]]:
    """Roles, and the files of a vocabulary of `vocab_size` pieces: symbols, characters, merged pieces.

    Raises DataError naming the sizes that work.
    """
    from tokenizers import Tokenizer
    from tokenizers.trainers import WordPieceTrainer

    letters = alphabet(lines, cased)
    first = [*SYMBOLS.values(), *letters, *(CONTINUES + letter for letter in letters)]
    if vocab_size < len(first):
        raise DataError(
            f"--vocab-size={vocab_size} is too small for the characters of this text; use at least {len(first)}"
        )
    untrained = contents({piece: number for number, piece in enumerate(first)}, not cased)
    made = Tokenizer.from_str(json.dumps({**untrained, "added_tokens": [], "post_processor": None}))
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=FEWEST,
        special_tokens=first,
        limit_alphabet=len(letters),
        continuing_subword_prefix=CONTINUES,
        show_progress=False,
    )
    made.train_from_iterator(lines, trainer)
    vocabulary = made.get_vocab(with_added_tokens=False)
    check_piece_count(vocab_size, len(vocabulary))
    pieces = "".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.__getitem__))
    return wordpiece_ids(vocabulary), {VOCABULARY: pieces.encode(), SETTINGS: settings(lower_case=not cased)}


def alphabet(lines: Sequence[str], cased: bool) -> list[str]:
    """The commonest characters of the cleaned text, at most MOST_LETTERS, in the order of their code points.

    Of those that are equally common at the limit none is taken: which ones would be arbitrary.
    """
    from tokenizers.normalizers import BertNormalizer

    normalize = BertNormalizer(lowercase=not cased).normalize_str
    raw: Counter[str] = Counter()
    for line in lines:
        raw.update(line)
    counts: Counter[str] = Counter()
    for letter, count in raw.items():
        for made in normalize(letter):
            if not made.isspace():
                counts[made] += count
    fewest = sorted(counts.values(), reverse=True)[MOST_LETTERS] if len(counts) > MOST_LETTERS else 0
    return sorted(letter for letter, count in counts.items() if count > fewest)
