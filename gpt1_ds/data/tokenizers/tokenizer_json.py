"""Every tokenizer that the `tokenizers` library runs, from its `tokenizer.json`: the same ids for every text.

Only data is read: the file names algorithms of the library, and holds their tables. The names of control symbols in a
text are ordinary text, as with every kind here; other added tokens are found in a text as the library finds them.
Where the way to split a text is that of GPT-2, BERT or T5, words are encoded once and remembered (`word_cutting.py`).

Decoding is the library's. Only a byte-level vocabulary gives every text back: elsewhere layout is lost, and what a
normaliser changes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.common.files import parse_json
from gpt1_ds.data.tokenizers import roles
from gpt1_ds.data.tokenizers.base import SPACE, Metadata, SpecialIds, WholeDocumentTokenizer
from gpt1_ds.data.tokenizers.sentencepiece_model import check_charsmap
from gpt1_ds.data.tokenizers.word_cutting import words_of

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
Placed = Sequence[tuple[str, int]]  # symbols, and texts by the names A and B, each with its segment


def _letters_of_bytes() -> dict[int, str]:
    """Byte -> the character that stands for it (`bytes_to_unicode` of GPT-2's encoder.py)."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(others)}


BYTE_LETTERS = _letters_of_bytes()


def whole(
    special: Mapping[str, int], normalizer: Any, pre_tokenizer: Any, decoder: Any, model: Any, around: Any = None
) -> dict[str, Any]:
    """The file's contents. `special` maps each control symbol to its id, `around` is the template of a text."""
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


def bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    """A byte-pair encoding; `settings` are those that differ from the library's own."""
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
    """GPT-2's way to cut a text into words and to write their bytes; as a decoder the way back."""
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": True}


def template(single: Placed, pair: Placed, symbols: Mapping[str, int]) -> dict[str, Any]:
    """The symbols around one text, A, and around two, A and B; each with its segment."""

    def part(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": segment}}

    used = {name for name, _ in pair if name in symbols}
    return {
        "type": "TemplateProcessing",
        "single": [part(*item) for item in single],
        "pair": [part(*item) for item in pair],
        "special_tokens": {name: {"id": name, "ids": [symbols[name]], "tokens": [name]} for name in sorted(used)},
    }


def ended(symbols: Mapping[str, int], eod: int) -> dict[str, Any]:
    """The template of tokenizers that end every text with the end of a document."""
    end = next(symbol for symbol, number in symbols.items() if number == eod)
    return template([("A", 0), (end, 0)], [("A", 0), (end, 0), ("B", 0), (end, 0)], symbols)


_STDERR = 2
_ONE_AT_A_TIME = threading.Lock()  # the standard error belongs to the whole process


@contextmanager
def as_line(what: str, way_out: str) -> Iterator[None]:
    """Raises DataError, `what` and `way_out` around the first words of it, for whatever the library raises in here."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, DataError):
        raise
    except BaseException as error:
        raise DataError(f"{what} ({' '.join(str(error).split())[:200]}); {way_out}") from None


@contextmanager
def quiet_as_line(what: str, way_out: str) -> Iterator[None]:
    """The same for what may panic. What is written to the standard error meanwhile comes after it, unless it fails."""
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as held:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        kept = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            with as_line(what, way_out):
                yield
        except DataError:
            held.truncate(0)
            raise
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            if held.seek(0, os.SEEK_END):
                held.seek(0)
                os.write(_STDERR, held.read())


FILE = "tokenizer.json"
MAX_BYTES = 128 << 20  # of the file; those of 250,000 pieces have 20 MB
MOST_MEMORY = 2 << 30
_MOST_NAMED = 4  # special tokens
_BYTE_OF = {letter: byte for byte, letter in BYTE_LETTERS.items()}
_HIDDEN = "\0"  # before the names of control symbols, where a model would find them in a text
_AGAIN = "download it again"


def load(folder: Path, metadata: Metadata) -> TokenizerJson:
    """The tokenizer of a folder with the file."""
    return TokenizerJson(folder / FILE, metadata, read(folder / FILE))


class TokenizerJson(WholeDocumentTokenizer):
    """`contents` are those of a `tokenizer.json`; `path` is the file that they come from, for messages."""

    def __init__(self, path: Path, metadata: Metadata, contents: dict[str, Any]) -> None:
        super().__init__(metadata)
        self.path, self.contents = path, contents
        vocabulary = vocabulary_of(path, contents)
        if max(vocabulary.values()) + 1 != self.vocab_size:
            raise DataError(f"{path}: not the ids of the metadata; copy the folder again")
        self._control = np.zeros(self.vocab_size, dtype=np.bool_)
        self._control[[*self.special_ids.present().values(), *_special(contents)]] = True
        self._control[self.first_sentinel :] = True
        self.names = {number: piece for piece, number in vocabulary.items()}
        self.symbols = {piece: number for piece, number in vocabulary.items() if self._control[number]}
        decoders = list(_parts(contents.get("decoder")))
        self._decoders = {part.get("type") for part in decoders}
        self._prefix = next((part["prefix"] for part in decoders if part.get("type") == "WordPiece"), None)
        self._suffix = next((part["suffix"] for part in decoders if part.get("type") == "BPEDecoder"), None)
        self.pieces = self._texts()
        self.backend = backend(path, contents, self.special_ids)
        self._words = words_of(self.backend)
        self.whole_documents = self._words is None
        adds_space = any(part.get("add_prefix_space") for part in _parts(contents.get("pre_tokenizer")))
        self.gives_text_back = "ByteLevel" in self._decoders and contents.get("normalizer") is None and not adds_space
        self._may_panic = '"Regex":' in json.dumps(contents.get("pre_tokenizer")) + json.dumps(
            contents.get("normalizer")
        )

    @property
    def meaning(self) -> str:
        """What stands around a text, how ids are decoded, and settings at their defaults do not count."""
        found: dict[str, Any] = json.loads(self.backend.to_str())
        model = {key: value for key, value in found["model"].items() if value not in (None, False, "")}
        searched = [token for token in found["added_tokens"] if not token["special"]]
        parts = [found["normalizer"], found["pre_tokenizer"], model, searched, self.special_ids.values()]
        return hashlib.sha256(json.dumps([self.vocab_size, *parts], sort_keys=True).encode()).hexdigest()

    @property
    def remarks(self) -> list[str]:
        """What a person should know who has used it with its own library: at most one line."""
        control, usual = {*self.special_ids.present().values()}, {*chain.from_iterable(roles.USUAL.values())}
        numbers = [number for number in _special(self.contents) if number < self.first_sentinel]
        found = [name for number in numbers if number not in control and (name := self.names[number]) not in usual]
        if not found:
            return []
        more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        told = ", ".join([*(f"{name:.40}" for name in found[:_MOST_NAMED]), *more])
        return [
            f"transformers finds the special tokens {told} in a text; here their names are ordinary text. To have them "
            "found, call add_tokens([...]) of that tokenizer in transformers, save it and import it again"
        ]

    def encode(self, text: str) -> NDArray[np.int32]:
        if self._words is not None:
            return self._words.encode_part(text, "", False)
        with self._errors():
            found = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array(found, dtype=np.int32)

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        if self._words is not None:
            return self._words.encode_part(text, previous, continues)
        return super().encode_part(text, previous, continues)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        with self._errors():
            encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32), np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)

    def _errors(self) -> AbstractContextManager[None]:
        """What the library cannot encode is one line. The search for a pattern of the file's own may take too long."""
        guard = quiet_as_line if self._may_panic else as_line
        return guard(
            f"{self.path}: the library tokenizers cannot encode a text", "leave the text out, or change the file"
        )

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        if "ByteLevel" in self._decoders:  # of a run of bytes that are not UTF-8 the library shows all as wrong
            return super().decode(ids)
        text: str = self.backend.decode([number for number in self.checked(ids) if not self._control[number]])
        return text

    def begins_word(self) -> NDArray[np.bool_]:
        if self._prefix is None:
            return super().begins_word()
        names = (self.names.get(number, "") for number in range(self.vocab_size))
        return np.array([not name.startswith(self._prefix) for name in names])

    def _texts(self) -> list[bytes]:
        """The text of each id as its decoder spells it; nearly that where a decoder is of no usual kind."""
        added = {token["id"] for token in self.contents.get("added_tokens") or ()}

        def text(number: int) -> bytes:
            piece = self.names.get(number, "")
            if self._control[number] or number in added:
                return b"" if self._control[number] else piece.encode()
            if "ByteLevel" in self._decoders and _BYTE_OF.keys() >= set(piece):
                return bytes(map(_BYTE_OF.__getitem__, piece))
            if "ByteFallback" in self._decoders and (byte := re.fullmatch("<0x([0-9A-F]{2})>", piece)):
                return bytes([int(byte[1], 16)])
            if self._prefix and piece.startswith(self._prefix):
                return piece.removeprefix(self._prefix).encode(errors="replace")
            if self._prefix:
                return f"{' ' * piece[:1].isalnum()}{piece}".encode(errors="replace")
            if self._suffix and piece.endswith(self._suffix):
                piece = f"{piece.removesuffix(self._suffix)} "
            return piece.replace(SPACE, " ").encode(errors="replace")

        return [text(number) for number in range(self.vocab_size)]


def learn_roles(
    path: Path, contents: Mapping[str, Any], wanted: Mapping[str, str], said: Mapping[str, str]
) -> tuple[int, SpecialIds, str]:
    """(vocabulary size, roles, a line about them) of a file, `wanted` before what its files have `said`. Raises
    DataError for one that the library cannot read, and for a role whose symbol is missing, or is ordinary text.
    """
    vocabulary = vocabulary_of(path, contents)
    size = max(vocabulary.values()) + 1
    special_ids = roles.special_ids(path, vocabulary.get, wanted, said, size)
    names = {number: piece for piece, number in vocabulary.items()}
    merged = {"".join(pair) for pair in _merges(contents)}
    for role, number in special_ids.present().items():
        if names[number] in merged:
            raise DataError(f"{path}: {names[number]!r} is text that is merged, not a symbol for --role {role}")
    backend(path, contents, special_ids)
    line = roles.shown(path, special_ids, names.__getitem__)
    if roles.FIRST_SENTINEL in vocabulary and not special_ids.sentinels:
        line += f"; its {roles.FIRST_SENTINEL} is not the last id, as the first sentinel is here: it has no sentinels"
    return size, special_ids, line


def around(path: Path, contents: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the library puts before a text and after it. Raises DataError for a file that it cannot read."""
    encoding = _encoding(path, contents)
    ids, added = encoding.ids, encoding.special_tokens_mask
    first = added.index(0) if 0 in added else len(ids)
    last = len(ids) - added[::-1].index(0) if 0 in added else len(ids)
    return tuple(ids[:first]), tuple(ids[last:])


def layout(path: Path, contents: Mapping[str, Any], pair: bool) -> list[tuple[int | str, int]]:
    """How the library lays out one text, or a `pair`: the id of each symbol, or A and B for the texts, each with its
    segment. Raises DataError for a file that it cannot read.
    """
    encoding, found = _encoding(path, contents, "b" if pair else None), list[tuple[int | str, int]]()
    for number, at, segment in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
        part = (number if at is None else "AB"[at], segment)
        if at is None or part not in found[-1:]:  # one for all tokens of a text
            found.append(part)
    return found


def _encoding(path: Path, contents: Mapping[str, Any], second: str | None = None) -> Any:
    """What the library makes of a text, or of two."""
    import tokenizers

    with quiet_as_line(f"{path}: the library tokenizers cannot read it", _AGAIN):
        return tokenizers.Tokenizer.from_str(json.dumps(contents)).encode("a", second)


def read(path: Path) -> dict[str, Any]:
    """The contents of a file. Raises DataError as `checked`, and for what is too large or no JSON object."""
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
    """`contents`. Raises DataError for those with a map of characters that the library cannot take, and for merges that
    are left out at random.
    """
    try:
        for part in _parts(contents.get("normalizer")):
            if part.get("type") == "Precompiled" and part.get("precompiled_charsmap"):
                check_charsmap(base64.b64decode(part["precompiled_charsmap"], validate=True))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a {FILE} ({error!s:.200}); {_AGAIN}") from None
    model = contents.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        raise DataError(
            f"{path}: model.dropout {model['dropout']!r:.40}: a text would have other ids each time; set it to null"
        )
    return contents


def vocabulary_of(path: Path, contents: Mapping[str, Any]) -> dict[str, int]:
    """Piece -> id, with the added ones. Raises DataError for other shapes."""
    try:
        model = contents["model"]
        listed = model["vocab"]
        pieces = {piece: number for number, (piece, _) in enumerate(listed)} if isinstance(listed, list) else listed
        found = {**pieces, **{token["content"]: token["id"] for token in contents.get("added_tokens") or ()}}
        whole = all(isinstance(piece, str) and type(number) is int for piece, number in found.items())
        if not found or not whole or not 0 <= min(found.values()) <= max(found.values()) < 2 * len(found) + 1000:
            raise ValueError("ids")
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path}: its model has no vocabulary of pieces and ids; {_AGAIN}") from None
    return found


def backend(path: Path, contents: Mapping[str, Any], special_ids: SpecialIds) -> Any:
    """The library's tokenizer, which finds no control symbol in a text and adds none to it."""
    import tokenizers

    with quiet_as_line(f"{path}: the library tokenizers cannot read it", _AGAIN):
        made = tokenizers.Tokenizer.from_str(json.dumps(_hidden(contents, special_ids)))
        made.encode_special_tokens = True
        for token in made.encode("A text.", add_special_tokens=False).ids:
            made.id_to_token(token)
    return made


def _hidden(contents: Mapping[str, Any], special_ids: SpecialIds) -> dict[str, Any]:
    """The file without what it does around a text, its control symbols marked as such, and under names that no text
    has where the model would take them for pieces of text.
    """
    model, control = dict(contents["model"]), {*special_ids.present().values(), *_special(contents)}
    added = [dict(token) for token in contents.get("added_tokens") or ()]
    for token in added:
        token["special"] = token["id"] in control
    unknown = model.get("unk_token")
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        hide = {name for name, number in vocabulary_of(Path(FILE), contents).items() if number in control} - {unknown}
        listed = model["vocab"]
        if isinstance(listed, list):
            model["vocab"] = [[_HIDDEN + piece if piece in hide else piece, score] for piece, score in listed]
        else:
            model["vocab"] = {_HIDDEN + piece if piece in hide else piece: number for piece, number in listed.items()}
        for token in added:
            token["content"] = (_HIDDEN if token["content"] in hide else "") + token["content"]
    around = {"truncation": None, "padding": None, "post_processor": None}
    return {**contents, **around, "added_tokens": added, "model": model}


def _special(contents: Mapping[str, Any]) -> list[int]:
    return [token["id"] for token in contents.get("added_tokens") or () if token.get("special")]


def _merges(contents: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for pair in contents["model"].get("merges") or ():
        yield pair.split(" ") if isinstance(pair, str) else pair


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A normalizer, pre-tokenizer or decoder, or those of a sequence."""
    if isinstance(part, dict):
        inner = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders")
        if isinstance(inner, list):
            for one in inner:
                yield from _parts(one)
        else:
            yield part


FEWEST = 2  # times that a pair of pieces must occur to become one, as in the library's recipe for GPT-2


def check_piece_count(wanted: int, most: int) -> None:
    """Raises DataError when the library stopped at `most` pieces in training."""
    if most < wanted:
        raise DataError(f"--vocab-size={wanted} is more than this text supports; use at most {most}, or more text")
