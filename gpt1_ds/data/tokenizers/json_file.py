"""Reads a `tokenizer.json` of others: its vocabulary and roles, the symbols around a text, and the library's tokenizer.

Only data is read: the file names algorithms of the library, and holds their tables.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers import roles
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.data.tokenizers.library import panics_as_line
from gpt1_ds.data.tokenizers.sentencepiece_model import check_charsmap

FILE = "tokenizer.json"
MAX_BYTES = 128 << 20  # of the file; those of 250,000 pieces have 20 MB
MOST_MEMORY = 2 << 30
_HIDDEN = "\0"  # before the names of control symbols, where a model would find them in a text
_AGAIN = "download it again"


def read(path: Path) -> dict[str, Any]:
    """Returns the contents of a file. Raises DataError as `checked`, and for what is too large or no JSON object."""
    if path.stat().st_size > MAX_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes is too large for a tokenizer; {_AGAIN}")
    try:
        contents = parse_json(path.read_bytes(), MOST_MEMORY)
        if not isinstance(contents, dict):
            raise TypeError("no object")
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a {FILE} ({error!s:.200}); {_AGAIN}") from None
    return checked(path, contents)


def checked(path: Path, contents: dict[str, Any]) -> dict[str, Any]:
    """Returns `contents`. Raises DataError for a map of characters that the library cannot take, and for merges that
    are left out at random.
    """
    try:
        for step in steps(contents.get("normalizer")):
            if step.get("type") == "Precompiled" and step.get("precompiled_charsmap"):
                check_charsmap(base64.b64decode(step["precompiled_charsmap"], validate=True))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a {FILE} ({error!s:.200}); {_AGAIN}") from None
    model = contents.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        raise DataError(
            f"{path}: model.dropout {model['dropout']!r:.40}: a text would have other ids each time; set it to null"
        )
    return contents


def vocabulary_of(path: Path, contents: Mapping[str, Any]) -> dict[str, int]:
    """Returns piece -> id, added tokens included. Raises DataError for other shapes."""
    try:
        vocab = contents["model"]["vocab"]
        if isinstance(vocab, list):  # of (piece, score)
            vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in contents.get("added_tokens") or ()}
        vocabulary: dict[str, int] = {**vocab, **added}
        is_sound = all(isinstance(piece, str) and type(number) is int for piece, number in vocabulary.items())
        ids = vocabulary.values()
        if not ids or not is_sound or not 0 <= min(ids) <= max(ids) < 2 * len(ids) + 1000:
            raise ValueError("ids")
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path}: its model has no vocabulary of pieces and ids; {_AGAIN}") from None
    return vocabulary


def special_token_ids(contents: Mapping[str, Any]) -> list[int]:
    """Returns the ids of added tokens that the file calls special."""
    return [token["id"] for token in contents.get("added_tokens") or () if token.get("special")]


def steps(section: Any) -> Iterator[dict[str, Any]]:
    """Yields the steps of a normalizer, pre-tokenizer or decoder: itself, or those of a sequence of them."""
    if isinstance(section, dict):
        inner = section.get("normalizers") or section.get("pretokenizers") or section.get("decoders")
        if isinstance(inner, list):
            for step in inner:
                yield from steps(step)
        else:
            yield section


def learn_roles(
    path: Path, contents: Mapping[str, Any], wanted: Mapping[str, str], said: Mapping[str, str]
) -> tuple[int, SpecialIds, str]:
    """Returns (vocabulary size, roles, a line about them) of a file. A symbol that is `wanted` for a role comes before
    the one that the files beside it have `said`. Raises DataError for a file that the library cannot read, and for a
    role whose symbol is missing, or is ordinary text.
    """
    vocabulary = vocabulary_of(path, contents)
    size = max(vocabulary.values()) + 1
    special_ids = roles.special_ids(path, vocabulary.get, wanted, said, size)
    names = {number: piece for piece, number in vocabulary.items()}
    merges = contents["model"].get("merges") or ()  # each "a b", or ["a", "b"] in newer files
    merged = {"".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges}
    for role, number in special_ids.present().items():
        if names[number] in merged:
            raise DataError(f"{path}: {names[number]!r} is text that is merged, not a symbol for --role {role}")
    backend(path, contents, special_ids)
    line = roles.shown(path, special_ids, names.__getitem__)
    if roles.FIRST_SENTINEL in vocabulary and not special_ids.sentinels:
        line += f"; its {roles.FIRST_SENTINEL} is not the last id, as the first sentinel is here: it has no sentinels"
    return size, special_ids, line


def backend(path: Path, contents: Mapping[str, Any], special_ids: SpecialIds) -> Any:
    """Returns the library's tokenizer, which finds no control symbol in a text and adds none to it. Raises DataError
    for a file that it cannot run.
    """
    import tokenizers

    with panics_as_line(f"{path}: the library tokenizers cannot read it", _AGAIN):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(_hidden(contents, special_ids)))
        tokenizer.encode_special_tokens = True
        for token in tokenizer.encode("A text.", add_special_tokens=False).ids:
            tokenizer.id_to_token(token)
    return tokenizer


def _hidden(contents: Mapping[str, Any], special_ids: SpecialIds) -> dict[str, Any]:
    """Returns the file without what it does around a text, its control symbols marked as special. Where the model would
    take their names for pieces of text, they get names that no text has.
    """
    model = dict(contents["model"])
    control = {*special_ids.present().values(), *special_token_ids(contents)}
    added = [dict(token) for token in contents.get("added_tokens") or ()]
    for token in added:
        token["special"] = token["id"] in control
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        names = {name for name, number in vocabulary_of(Path(FILE), contents).items() if number in control}
        names.discard(model.get("unk_token"))

        def hidden(piece: str) -> str:
            return _HIDDEN + piece if piece in names else piece

        vocab = model["vocab"]
        if isinstance(vocab, list):
            model["vocab"] = [[hidden(piece), score] for piece, score in vocab]
        else:
            model["vocab"] = {hidden(piece): number for piece, number in vocab.items()}
        for token in added:
            token["content"] = hidden(token["content"])
    around = {"truncation": None, "padding": None, "post_processor": None}
    return {**contents, **around, "added_tokens": added, "model": model}


def symbols_around(path: Path, contents: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that the library puts before a text and after it. Raises DataError for a file that it cannot
    read.
    """
    encoding = _encoding(path, contents)
    ids, is_symbol = encoding.ids, encoding.special_tokens_mask
    if 0 not in is_symbol:
        return tuple(ids), ()
    first, last = is_symbol.index(0), len(ids) - is_symbol[::-1].index(0)
    return tuple(ids[:first]), tuple(ids[last:])


def layout(path: Path, contents: Mapping[str, Any], pair: bool) -> list[tuple[int | str, int]]:
    """Returns how the library lays out one text, or a `pair`: the id of each symbol, or A and B for the texts, each
    with its segment. Raises DataError for a file that it cannot read.
    """
    encoding = _encoding(path, contents, "b" if pair else None)
    items: list[tuple[int | str, int]] = []
    for number, text, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
        item = (number if text is None else "AB"[text], segment)
        if text is None or item not in items[-1:]:  # a text has several tokens
            items.append(item)
    return items


def _encoding(path: Path, contents: Mapping[str, Any], second: str | None = None) -> Any:
    """Returns what the library makes of one text, or of two."""
    import tokenizers

    with panics_as_line(f"{path}: the library tokenizers cannot read it", _AGAIN):
        return tokenizers.Tokenizer.from_str(json.dumps(contents)).encode("a", second)
