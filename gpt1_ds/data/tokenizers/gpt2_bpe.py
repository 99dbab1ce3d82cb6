"""Byte-level BPE as GPT-2 and RoBERTa have it: `vocab.json` and `merges.txt`, its `tokenizer.json`, and its training.

Text is bytes, each written as a visible character, so nothing is unknown and decode(encode(t)) == t for every text.
`tokenizer train` writes the two files, as imports of earlier versions did. `vocab.json` may hold the control symbols or
not: a role whose id it lacks is named `<role>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import json_sections
from gpt1_ds.data.tokenizers.base import MASK_SYMBOLS, Metadata, SpecialIds, published_json, published_lines
from gpt1_ds.data.tokenizers.json_sections import BYTE_LETTERS
from gpt1_ds.data.tokenizers.library import FEWEST, check_piece_count
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson

VOCABULARY, MERGES = "vocab.json", "merges.txt"
ENDOFTEXT = "<|endoftext|>"
TASK_SYMBOLS = {"start": "<start>", "delimiter": "<delimiter>", "extract": "<extract>"}
OWN_SYMBOLS = {"eod": ENDOFTEXT, **TASK_SYMBOLS, **MASK_SYMBOLS}
ROBERTA_SYMBOLS = {
    "unknown": "<unk>",
    "eod": "</s>",
    "cls": "<s>",
    "separator": "</s>",
    "pad": "<pad>",
    "mask": "<mask>",
}
_LETTERS = frozenset(BYTE_LETTERS.values())
_AGAIN = "download it again"


def load(folder: Path, metadata: Metadata) -> TokenizerJson:
    """Returns the tokenizer of a folder with the two files."""
    path = folder / VOCABULARY
    vocabulary = read_vocabulary(path, path.read_bytes())
    merges = read_merges(folder / MERGES, (folder / MERGES).read_bytes(), vocabulary)
    appended = set(metadata.special_ids.present().values()) - set(vocabulary.values())
    if len(vocabulary) + len(appended) != metadata.vocab_size:
        raise DataError(f"{path}: has {len(vocabulary)} ids, not {metadata.vocab_size}; copy the folder again")
    return TokenizerJson(path, metadata, contents(vocabulary, merges, metadata.special_ids))


def contents(vocabulary: Mapping[str, int], merges: list[tuple[str, str]], special_ids: SpecialIds) -> dict[str, Any]:
    """Returns its `tokenizer.json`. With `cls`, a text or a pair of texts gets RoBERTa's symbols."""
    names, roles = {number: piece for piece, number in vocabulary.items()}, special_ids.present()
    symbols = {names.get(number, OWN_SYMBOLS.get(role, f"<{role}>")): number for role, number in roles.items()}
    around = None
    if special_ids.cls is not None:
        symbol_of = {number: symbol for symbol, number in symbols.items()}
        first, second = (symbol_of[special_ids.require(role, "the layout")] for role in ("cls", "separator"))
        single = [(first, 0), ("A", 0), (second, 0)]
        around = json_sections.template(single, [*single, (second, 0), ("B", 0), (second, 0)], symbols)
    return json_sections.whole_file(
        dict(sorted(symbols.items(), key=lambda item: item[1])),
        None,
        json_sections.byte_level(add_prefix_space=False),
        json_sections.byte_level(add_prefix_space=True),
        json_sections.bpe_model(vocabulary, merges),
        around,
    )


def byte_level_ids(vocabulary: Mapping[str, int]) -> SpecialIds:
    """Returns the roles whose symbols a vocabulary holds: RoBERTa's, else those of GPT-2 and of this program."""
    is_roberta = vocabulary.keys() >= set(ROBERTA_SYMBOLS.values())  # of fairseq, whose ids begin with its symbols
    symbols = ROBERTA_SYMBOLS if is_roberta else OWN_SYMBOLS
    return SpecialIds(**{role: vocabulary[symbol] for role, symbol in symbols.items() if symbol in vocabulary})


def read_vocabulary(path: Path, content: bytes) -> dict[str, int]:
    """Returns piece -> id. Raises DataError for what is no byte-level vocabulary."""
    vocabulary: dict[str, int] = published_json(path, content)
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if not ids or not all(type(number) is int for number in ids) or sorted(ids) != list(range(len(ids))):
        raise DataError(f"{path}: not a vocabulary with the ids 0, 1, 2, ...; {_AGAIN}")
    if missing := [byte for byte, letter in BYTE_LETTERS.items() if letter not in vocabulary]:
        raise DataError(f"{path}: has no id for the byte {missing[0]}; {_AGAIN}, or import it as what it is")
    wrong = next((piece for piece in vocabulary if not piece or not set(piece) <= _LETTERS), None)
    if wrong is not None:
        raise DataError(f"{path}: the piece {wrong!a:.60} is not written in GPT-2's letters for bytes; {_AGAIN}")
    return vocabulary


def read_merges(path: Path, content: bytes, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns the pairs in the order of their rank. Raises DataError for those that do not fit the vocabulary."""
    lines = published_lines(path, content)
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges: list[tuple[str, str]] = []
    for rank, line in enumerate(lines):
        first, _, second = line.partition(" ")
        if first not in vocabulary or second not in vocabulary or first + second not in vocabulary:
            raise DataError(f"{path}: merge {rank} ({line!a:.60}) does not fit the vocabulary; {_AGAIN}")
        merges.append((first, second))
    return merges


def learn_byte_level(lines: Sequence[str], vocab_size: int, masks: bool) -> tuple[SpecialIds, dict[str, bytes]]:
    """Returns the roles, and the files of a vocabulary of `vocab_size` ids: bytes, merged pieces, then the control
    symbols.

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
