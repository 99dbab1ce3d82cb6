"""The tokenizer to go with a model in a folder of transformers, and what differs between its use there and here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpt1_ds.checkpoint import external
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers import hf_folder, json_file
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer, read_metadata
from gpt1_ds.data.tokenizers.imports import import_hf
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.interop.families import openai_gpt
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.families.settings import Settings
from gpt1_ds.interop.head_import import Classifier
from gpt1_ds.interop.hf_config import ways_left_out
from gpt1_ds.interop.hf_export import TOKENIZER

VOCABULARY, MERGES = "vocab.json", "merges.txt"  # as OpenAIGPTTokenizer calls the files of the 2018 release
CONFIG = hf_folder.CONFIG
FILES = (*hf_folder.VOCABULARIES, *hf_folder.OTHERS, CONFIG)
MAX_BYTES = 64 << 20
WITHOUT_SEGMENTS = ("DistilBert", "TokenizersBackend")  # classes of tokenizers that give a model no segments


class FolderTokenizer:
    """The tokenizer of the model in the folder `source`, as the tokenizer folder `folder` of ours. It is given by
    --tokenizer, or was found in `source`, where it may be converted from files in transformers' form.
    """

    def __init__(self, source: Path, folder: Path, is_given: bool = False, is_converted: bool = False) -> None:
        self.source, self.folder, self.is_given, self.is_converted = source, folder, is_given, is_converted
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.pad = self.tokenizer.special_ids.pad

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should know about the conversion."""
        tokenizer = self.tokenizer
        return tuple(tokenizer.remarks) if self.is_converted and isinstance(tokenizer, TokenizerJson) else ()

    def check_first(self, path: Path, values: Mapping[str, Any]) -> None:
        """Raises CheckpointError where the settings `values` of the file `path` let a decoder begin with another id
        than ours does.
        """
        if (first := values.get("decoder_start_token_id")) not in (None, self.pad):
            raise CheckpointError(
                f"{path}: decoder_start_token_id {first!r:.60}: a decoder begins with the padding symbol here, "
                f"which is {self.pad} of the tokenizer; pass --tokenizer with one whose <pad> it is"
            )

    def check_padding(self, settings: Settings, facts: Facts) -> None:
        """Raises CheckpointError for a model that counts positions by another padding symbol than its tokenizer has:
        one that texts may have.
        """
        counted = facts.first_position - 1
        if facts.first_position and self.pad not in (None, counted):
            raise CheckpointError(
                f"{settings.path}: pad_token_id {counted}: positions are counted by it, and the padding symbol is "
                f"{self.pad} of the tokenizer; pass --tokenizer with one whose <pad> it is"
            )

    def check_layout(self, classifier: Classifier, values: Mapping[str, Any]) -> None:
        """Raises CheckpointError for a tokenizer that lays out texts in another way than this program. `values` are the
        folder's tokenizer_config.json; they say nothing of the segments of a given tokenizer. Tokenizers of this
        program's own kinds have no layout to compare.
        """
        side = values.get("truncation_side", "right")
        if side != "right" and not classifier.task.reads_tokens:  # of tokens nothing is cut
            raise CheckpointError(
                f"{self.source / CONFIG}: truncation_side {side!r:.40}: texts are cut on the right here"
            )
        tokenizer = self.tokenizer
        if isinstance(tokenizer, TokenizerJson):
            is_unsaid = str(values.get("tokenizer_class")).startswith(WITHOUT_SEGMENTS)
            inputs = values.get("model_input_names", [] if is_unsaid else None) if self.is_converted else None
            has_segments = not isinstance(inputs, list) or "token_type_ids" in inputs
            classifier.check_layout(self.source, tokenizer, has_segments)

    def text_remarks(self, model: ModelConfig, writing: tuple[Path, Mapping[str, Any]]) -> Iterator[str]:
        """Yields remarks on what transformers puts around a text, and by the settings `writing` of a file on how it
        writes one, where this program does not.
        """
        tokenizer = self.tokenizer
        if self.is_converted and isinstance(tokenizer, TokenizerJson):
            ours: tuple[list[int | None], list[int | None]] = [], []
            if model.kind == "encoder_decoder":
                ours = [], [tokenizer.eod_id]
            elif model.mask == "bidirectional":
                ours = [tokenizer.special_ids.cls], [tokenizer.special_ids.separator]
            first, last = map(list, json_file.symbols_around(tokenizer.path, tokenizer.contents))
            if (first, last) != ours:
                yield (
                    f"its tokenizer puts {first or 'nothing'} before a text and {last or 'nothing'} after it, here "
                    f"there is {ours[0] or 'nothing'} before it and {ours[1] or 'nothing'} after it"
                )
        if model.mask != "bidirectional":
            yield from ways_left_out(*writing, tokenizer)

    def symbols_around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the ids that sentence-transformers puts before a text and after it: those of the tokenizer that the
        folder holds, else of the given one.
        """
        if _names(self.source) & hf_folder.VOCABULARIES.keys():
            return json_file.symbols_around(self.source, hf_folder.convert(self.source)[0])
        tokenizer = self.tokenizer
        if isinstance(tokenizer, TokenizerJson):
            return json_file.symbols_around(self.folder, tokenizer.contents)
        first, last = tokenizer.special_ids.cls, tokenizer.special_ids.separator
        return ((), ()) if first is None or last is None else ((first,), (last,))


def find(source: Path, family: Family, scratch: Path) -> FolderTokenizer:
    """Returns the tokenizer inside an export of ours, or one made in `scratch` of the files that the model was
    published with: of GPT-1 the 2018 BPE's vocab.json and merges.txt, which OpenAIGPTTokenizer saves. Raises
    CheckpointError.
    """
    folder, made = source / TOKENIZER, scratch / "tokenizer"
    if not folder.exists():
        names = _names(source)
        if family is openai_gpt.FAMILY and {VOCABULARY, MERGES} <= names:
            import_openai(source / VOCABULARY, source / MERGES, made)
            return FolderTokenizer(source, made, is_converted=True)
        if family is not openai_gpt.FAMILY and names & hf_folder.VOCABULARIES.keys():
            import_hf(source, made)
            return FolderTokenizer(source, made, is_converted=True)
    if not folder.is_dir() or folder.is_symlink():
        raise CheckpointError(
            f"{source}: carries neither a tokenizer of ours nor {VOCABULARY} and {MERGES}, or another one of "
            f"{family.title}; pass --tokenizer with a folder made by `gpt1-ds tokenizer`"
        )
    external.inside(folder, METADATA)
    for name in read_metadata(folder).files:
        _file(folder, name)
    return FolderTokenizer(source, folder)


def _names(folder: Path) -> set[str]:
    """Returns the names of the tokenizer's files in transformers' form that are there. Raises CheckpointError."""
    return {_file(folder, name).name for name in FILES if (folder / name).exists()}


def _file(folder: Path, name: str) -> Path:
    path = external.inside(folder, name)
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for a tokenizer's file")
    return path
