"""Which symbols of other people's tokenizers stand for which role: what is asked for by name, what their files say, and
names that are usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import SpecialIds, published_json

NAMES = {  # as people call a role -> the role
    **{role: role for role in ("eod", "unknown", "cls", "separator", "pad", "mask", "start", "delimiter", "extract")},
    **{"eos": "eod", "unk": "unknown", "sep": "separator", "bos": "start"},
}
SAYING = ("special_tokens_map.json", "tokenizer_config.json")  # files beside a tokenizer.json; the last one wins
USUAL = {
    "eod": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<eod>", "[EOS]", "[SEP]"),
    "unknown": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<cls>"),
    "separator": ("[SEP]", "<sep>"),
    "pad": ("<pad>", "[PAD]", "<|padding|>", "<|pad|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    **{role: (f"<{role}>",) for role in ("start", "delimiter", "extract")},
}
_NEVER = {  # role -> those whose symbol it is not unless it is asked for: what stands between documents, or begins an
    # encoder's input, is not GPT-1's start, and files of byte-level vocabularies name it as unknown, which they lack
    "unknown": ("eod",),
    "start": ("eod", "cls"),
}
FIRST_SENTINEL = "<extra_id_0>"
MOST_BYTES = 16 << 20


def asked(words: Sequence[str]) -> dict[str, str]:
    """Returns role -> symbol of `--role NAME=SYMBOL` arguments. Raises DataError for an unknown name, or a role named
    twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, symbol = word.partition("=")
        if not equals or not symbol or name not in NAMES:
            raise DataError(f"--role {word}: must be NAME=SYMBOL, NAME being one of {', '.join(NAMES)}")
        if NAMES[name] in found:
            raise DataError(f"--role {word}: this role is {found[NAMES[name]]!r} already; name it once")
        found[NAMES[name]] = symbol
    return found


def said(folder: Path) -> dict[str, str]:
    """Returns role -> symbol, by the files beside a tokenizer.json."""
    found: dict[str, str] = {}
    for name in SAYING:
        if not (folder / name).is_file():
            continue
        values = published_json(folder / name, (folder / name).read_bytes(), MOST_BYTES)
        for key, role in NAMES.items():
            value: Any = values.get(f"{key}_token") if isinstance(values, dict) else None
            symbol = value.get("content") if isinstance(value, dict) else value
            if isinstance(symbol, str) and symbol:
                found[role] = symbol
    return found


def special_ids(
    path: Path, id_of: Callable[[str], int | None], wanted: Mapping[str, str], files: Mapping[str, str], size: int
) -> SpecialIds:
    """Returns the roles of a tokenizer of `size` ids, `wanted` before those that its `files` say, before usual names.

    Raises DataError for a wanted symbol that has no id, and where nothing ends a document.
    """
    found: dict[str, int] = {}
    for role in USUAL:
        symbols = [wanted[role]] if role in wanted else [*filter(None, [files.get(role)]), *USUAL[role]]
        others = () if role in wanted else [found.get(other) for other in _NEVER.get(role, ())]
        ids = [number for symbol in symbols if (number := id_of(symbol)) is not None and number not in others]
        if ids:
            found[role] = ids[0]
        elif role in wanted:
            raise DataError(f"{path}: has no symbol {wanted[role]!r} for --role {role}; name one that it has")
    if "eod" not in found:
        raise DataError(f"{path}: no symbol is known to end a document; name one by --role eod=SYMBOL")
    sentinels = 0
    while id_of(f"<extra_id_{sentinels}>") == size - 1 - sentinels:
        sentinels += 1
    return SpecialIds(**found, sentinels=sentinels or None)


def shown(path: Path, special: SpecialIds, symbol_of: Callable[[int], str]) -> str:
    """Returns one line that says what was found."""
    roles = ", ".join(f"{role} {symbol_of(number)}" for role, number in special.present().items())
    return f"{path.name}: {roles}" + (f", {special.sentinels} sentinels" if special.sentinels else "")
