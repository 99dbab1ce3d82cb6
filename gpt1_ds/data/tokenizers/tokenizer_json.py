"""Every tokenizer that the `tokenizers` library runs, from its `tokenizer.json`: the same ids for every text.

The names of control symbols in a text are ordinary text, as with every kind here; other added tokens are found in a
text as the library finds them. Where the way to split a text is that of GPT-2, BERT or T5, words are encoded once and
remembered (`word_cutting.py`).

Decoding is the library's. Only a byte-level vocabulary gives every text back: elsewhere layout is lost, and what a
normaliser changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import json_file, roles
from gpt1_ds.data.tokenizers.base import SPACE, Metadata, WholeDocumentTokenizer
from gpt1_ds.data.tokenizers.json_file import special_token_ids, steps
from gpt1_ds.data.tokenizers.json_sections import BYTE_LETTERS
from gpt1_ds.data.tokenizers.library import errors_as_line, panics_as_line
from gpt1_ds.data.tokenizers.word_cutting import words_of

_MOST_NAMED = 4  # special tokens
_BYTE_OF = {letter: byte for byte, letter in BYTE_LETTERS.items()}


def load(folder: Path, metadata: Metadata) -> TokenizerJson:
    """Returns the tokenizer of a folder with the file."""
    path = folder / json_file.FILE
    return TokenizerJson(path, metadata, json_file.read(path))


class TokenizerJson(WholeDocumentTokenizer):
    """`contents` are those of a `tokenizer.json`; `path` is the file that they come from, for messages."""

    def __init__(self, path: Path, metadata: Metadata, contents: dict[str, Any]) -> None:
        super().__init__(metadata)
        self.path, self.contents = path, contents
        vocabulary = json_file.vocabulary_of(path, contents)
        if max(vocabulary.values()) + 1 != self.vocab_size:
            raise DataError(f"{path}: not the ids of the metadata; copy the folder again")
        self._control = np.zeros(self.vocab_size, dtype=np.bool_)
        self._control[[*self.special_ids.present().values(), *special_token_ids(contents)]] = True
        self._control[self.first_sentinel :] = True
        self.names = {number: piece for piece, number in vocabulary.items()}
        self.symbols = {piece: number for piece, number in vocabulary.items() if self._control[number]}
        decoders = [*steps(contents.get("decoder"))]
        self._decoders = {step.get("type") for step in decoders}
        self._prefix = next((step["prefix"] for step in decoders if step.get("type") == "WordPiece"), None)
        self._suffix = next((step["suffix"] for step in decoders if step.get("type") == "BPEDecoder"), None)
        added = {token["id"] for token in contents.get("added_tokens") or ()}
        self.pieces = [self._piece_bytes(number, number in added) for number in range(self.vocab_size)]
        self.backend = json_file.backend(path, contents, self.special_ids)
        self._words = words_of(self.backend)
        self.whole_documents = self._words is None
        adds_space = any(step.get("add_prefix_space") for step in steps(contents.get("pre_tokenizer")))
        self.gives_text_back = "ByteLevel" in self._decoders and contents.get("normalizer") is None and not adds_space
        sections = json.dumps([contents.get("pre_tokenizer"), contents.get("normalizer")])
        self._may_panic = '"Regex":' in sections  # the search for a pattern of the file's own may take too long

    @property
    def meaning(self) -> str:
        """Returns a hash of what decides the ids of a text: not what stands around it, nor how ids are decoded, nor
        settings at their defaults.
        """
        file: dict[str, Any] = json.loads(self.backend.to_str())
        model = {key: value for key, value in file["model"].items() if value not in (None, False, "")}
        searched = [token for token in file["added_tokens"] if not token["special"]]
        deciding = [file["normalizer"], file["pre_tokenizer"], model, searched, self.special_ids.values()]
        return hashlib.sha256(json.dumps([self.vocab_size, *deciding], sort_keys=True).encode()).hexdigest()

    @property
    def remarks(self) -> list[str]:
        """Returns at most one line, about special tokens that have no role here, for a person who has used it with its
        own library.
        """
        with_role, usual = {*self.special_ids.present().values()}, {*chain.from_iterable(roles.USUAL.values())}
        numbers = [number for number in special_token_ids(self.contents) if number < self.first_sentinel]
        names = [self.names[number] for number in numbers if number not in with_role]
        names = [name for name in names if name not in usual]
        if not names:
            return []
        more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        shown = ", ".join([*(f"{name:.40}" for name in names[:_MOST_NAMED]), *more])
        return [
            f"transformers finds the special tokens {shown} in a text; here their names are ordinary text. To have "
            "them found, call add_tokens([...]) of that tokenizer in transformers, save it and import it again"
        ]

    def encode(self, text: str) -> NDArray[np.int32]:
        if self._words is not None:
            return self._words.encode_part(text, "", False)
        with self._errors():
            ids = self.backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array(ids, dtype=np.int32)

    def encode_part(self, text: str, previous: str, continues: bool = False) -> NDArray[np.int32]:
        if self._words is not None:
            return self._words.encode_part(text, previous, continues)
        return super().encode_part(text, previous, continues)

    def encode_with_places(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        with self._errors():
            encoding = self.backend.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int32), np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)

    def _errors(self) -> AbstractContextManager[None]:
        """Raises one line in place of the library's own error, for a text that it cannot encode."""
        guard = panics_as_line if self._may_panic else errors_as_line
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

    def _piece_bytes(self, number: int, is_added: bool) -> bytes:
        """Returns the text of an id as its decoder spells it; nearly that where a decoder is of no usual kind."""
        piece = self.names.get(number, "")
        if self._control[number]:
            return b""
        if is_added:
            return piece.encode()
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
