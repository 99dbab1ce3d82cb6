"""Writes the sections of a `tokenizer.json`, the file of the library `tokenizers`, from a vocabulary and its symbols.

The library encodes a text in four steps, each a section: `normalizer` changes characters, `pre_tokenizer` cuts the text
into words, `model` makes ids of each word, and `post_processor` puts symbols around the text. `decoder` leads back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
Placed = Sequence[tuple[str, int]]  # symbols, and texts by the names A and B, each with its segment


def _letters_of_bytes() -> dict[int, str]:
    """Returns byte -> the visible character that GPT-2 writes for it (`bytes_to_unicode` of its encoder.py)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(others)}


BYTE_LETTERS = _letters_of_bytes()


def whole_file(
    special: Mapping[str, int], normalizer: Any, pre_tokenizer: Any, decoder: Any, model: Any, around: Any = None
) -> dict[str, Any]:
    """Returns the contents of the file. `special` maps each control symbol to its id, `around` is the template of a
    text.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": symbol, **FLAGS} for symbol, number in special.items()],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": around,
        "decoder": decoder,
        "model": model,
    }


def bpe_model(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    """Returns the model of a byte-pair encoding; `settings` are those that differ from the library's defaults."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": vocabulary,
        "merges": merges,
    }


def byte_level(add_prefix_space: bool) -> dict[str, Any]:
    """Returns GPT-2's pre-tokenizer, which cuts a text into words and writes their bytes as letters; also its
    decoder.
    """
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": True}


def template(single: Placed, pair: Placed, symbols: Mapping[str, int]) -> dict[str, Any]:
    """Returns the post-processor that puts symbols around one text, A, and around two, A and B. `single` and `pair`
    give each symbol and text its segment: BERT's pair is [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)]
    """

    def part(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": segment}}

    used = {name for name, _ in pair if name in symbols}
    return {
        "type": "TemplateProcessing",
        "single": [part(*item) for item in single],
        "pair": [part(*item) for item in pair],
        "special_tokens": {name: {"id": name, "ids": [symbols[name]], "tokens": [name]} for name in sorted(used)},
    }


def eod_template(symbols: Mapping[str, int], eod: int) -> dict[str, Any]:
    """Returns the template that ends every text with the end of a document."""
    end = next(symbol for symbol, number in symbols.items() if number == eod)
    return template([("A", 0), (end, 0)], [("A", 0), (end, 0), ("B", 0), (end, 0)], symbols)
