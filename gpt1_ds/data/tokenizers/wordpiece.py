"""WordPiece as BERT has it: its files `vocab.txt` and `tokenizer_config.json`, its `tokenizer.json`, and its training.

Text is cleaned of control characters, Chinese characters get blanks around them, an uncased vocabulary lower-cases and
strips accents (NFD), words are split at white space and punctuation, and each word is cut greedily into the longest
pieces there are, of which all but the first begin with `##`. A word of more than 100 characters, or with a character
that has no piece, is `[UNK]`. `tokenizer train` writes the two files, as imports of earlier versions did.

The library numbers the `##` forms of characters in an order that differs from process to process, and breaks ties by
number. So training counts the characters itself, and gives them to the library in their order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers import json_sections
from gpt1_ds.data.tokenizers.base import Metadata, SpecialIds, published_lines
from gpt1_ds.data.tokenizers.library import FEWEST, check_piece_count
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson

VOCABULARY, SETTINGS = "vocab.txt", "tokenizer_config.json"
LOWER_CASE = "do_lower_case"  # the key of SETTINGS, as BERT's folders have it
SYMBOLS = {"pad": "[PAD]", "unknown": "[UNK]", "cls": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}
CONTINUES = "##"
LONGEST_WORD = 100  # characters
_AGAIN = "download it again"


def load(folder: Path, metadata: Metadata) -> TokenizerJson:
    """Returns the tokenizer of a folder with the two files."""
    path = folder / VOCABULARY
    vocabulary = read_vocabulary(path, path.read_bytes())
    if len(vocabulary) != metadata.vocab_size or wordpiece_ids(vocabulary) != metadata.special_ids:
        raise DataError(f"{path}: not the vocabulary of the metadata; copy the folder again")
    lower_case = read_settings(folder / SETTINGS, (folder / SETTINGS).read_bytes())
    return TokenizerJson(path, metadata, contents(vocabulary, lower_case))


def contents(vocabulary: Mapping[str, int], lower_case: bool) -> dict[str, Any]:
    """Returns its `tokenizer.json`."""
    symbols = {symbol: vocabulary[symbol] for symbol in SYMBOLS.values()}
    single = [("[CLS]", 0), ("A", 0), ("[SEP]", 0)]
    model = {
        "type": "WordPiece",
        "unk_token": SYMBOLS["unknown"],
        "continuing_subword_prefix": CONTINUES,
        "max_input_chars_per_word": LONGEST_WORD,
        "vocab": vocabulary,
    }
    return json_sections.whole_file(
        dict(sorted(symbols.items(), key=lambda item: item[1])),
        normalizer(lower_case),
        {"type": "BertPreTokenizer"},
        {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        model,
        json_sections.template(single, [*single, ("B", 1), ("[SEP]", 1)], symbols),
    )


def normalizer(lower_case: bool) -> dict[str, Any]:
    """Returns BERT's clean-up, which strips accents where it lower-cases."""
    cleaned = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return {**cleaned, "strip_accents": None, "lowercase": lower_case}


def wordpiece_ids(vocabulary: Mapping[str, int]) -> SpecialIds:
    """`eod` is `[SEP]`, as BERT has no other symbol that ends a text."""
    ids = {role: vocabulary[symbol] for role, symbol in SYMBOLS.items()}
    return SpecialIds(eod=ids["separator"], **ids)


def read_vocabulary(path: Path, content: bytes) -> dict[str, int]:
    """Returns piece -> id, the number of its line. Raises DataError for what is no vocabulary of BERT's kind."""
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(published_lines(path, content)):
        if not piece or piece in vocabulary:
            wrong = f"the piece {piece!a:.60} is there twice" if piece else "is empty"
            raise DataError(f"{path}: line {number + 1}: {wrong}; {_AGAIN}")
        vocabulary[piece] = number
    if missing := [symbol for symbol in SYMBOLS.values() if symbol not in vocabulary]:
        raise DataError(f"{path}: has no {', '.join(missing)}: not a vocabulary of BERT's kind; {_AGAIN}")
    return vocabulary


def read_settings(path: Path, content: bytes) -> bool:
    """Returns whether text is lower-cased. Raises DataError for what does not say so."""
    try:
        lower_case = parse_json(content)[LOWER_CASE]
    except (ValueError, KeyError, TypeError):
        lower_case = None
    if not isinstance(lower_case, bool):
        raise DataError(f"{path}: does not say {LOWER_CASE}: true or false; copy the folder again")
    return lower_case


MOST_LETTERS = 1000  # characters with pieces of their own, as in the library's recipe for BERT


def learn_wordpiece(lines: Sequence[str], vocab_size: int, cased: bool) -> tuple[SpecialIds, dict[str, bytes]]:
    """Returns the roles, and the files of a vocabulary of `vocab_size` pieces: symbols, characters, merged pieces.

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
    settings = json.dumps({LOWER_CASE: not cased})
    return wordpiece_ids(vocabulary), {VOCABULARY: pieces.encode(), SETTINGS: settings.encode()}


def alphabet(lines: Sequence[str], cased: bool) -> list[str]:
    """Returns the commonest characters of the cleaned text, at most MOST_LETTERS, in the order of their code points.

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
