"""`checkpoint import --from hf`: the model in a folder that transformers, or `checkpoint export`, wrote. It needs no
transformers; weights come back bit for bit. hf_weights.py reads them, head_import.py the head of a fine-tuned model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from gpt1_ds.interop import head_import, hf_weights, sentence_folder
from gpt1_ds.interop.families import openai_gpt
from gpt1_ds.interop.families.family import Facts, Family, Settings
from gpt1_ds.interop.families.registry import read_config
from gpt1_ds.interop.head_import import Classifier, length_limit_of, read_classifier
from gpt1_ds.interop.hf_config import (
    CONFIG,
    generation_settings,
    ways_left_out,
)
from gpt1_ds.interop.hf_export import TOKENIZER
from gpt1_ds.interop.hf_weights import WEIGHTS
from gpt1_ds.interop.imported import Imported, our_weights, present_parts

VOCABULARY, MERGES = "vocab.json", "merges.txt"  # as OpenAIGPTTokenizer calls the files of the 2018 release
TOKENIZER_CONFIG = hf_folder.CONFIG
TOKENIZER_FILES = (*hf_folder.VOCABULARIES, *hf_folder.OTHERS, TOKENIZER_CONFIG)
MAX_TOKENIZER_BYTES = 64 << 20
WITHOUT_SEGMENTS = ("DistilBert", "TokenizersBackend")  # classes of tokenizers that tell a model none


def read(source: Path, tokenizer: Path | None, scratch: Path, task: str | None = None) -> tuple[Imported, Path]:
    """Returns the model in a folder of transformers, and the tokenizer folder to go with it. `task` says what the head
    of a fine-tuned model is for (head_import.py). Raises CheckpointError.

    Unless `tokenizer` is given it is our own one inside an export of ours, else made in `scratch` of what the folder
    holds: of GPT-1 the 2018 BPE's vocab.json and merges.txt, which OpenAIGPTTokenizer saves.
    """
    if not source.is_dir():
        if source.is_file():
            external.refuse_pickle(source)
        hint = "" if source.exists() else f"; `hf download OWNER/{source.name} --local-dir DIR` gets one from the hub"
        raise CheckpointError(f"{source}: not a folder; --source names the one that holds {CONFIG} and {WEIGHTS}{hint}")
    sentence = sentence_folder.read(source) if sentence_folder.is_sentence_folder(source) else None
    source = source if sentence is None else sentence.encoder
    files = hf_weights.weight_files(source)
    config = external.inside(source, CONFIG)
    headers = {file: hf_weights.header_of(source, file, expected) for file, expected in files.items()}
    family, model, facts = read_config(config, lambda one, other: hf_weights.differ(source, headers, one, other))
    own, tokenizer = tokenizer is None, tokenizer or _carried_tokenizer(source, family, scratch)
    remarks, wanted = hf_weights.without_left_out(family, headers)
    if task == head_import.NONE:
        names = head_import.left_out([name for header in wanted.values() for name in header], family, source)
        remarks.append(f"{', '.join(names)} left out, as --task {task} says")
        wanted = {file: {n: facts for n, facts in one.items() if n not in names} for file, one in wanted.items()}
    settings = Settings(config, external.read_object(config), family.title)
    writing = generation_settings(source, settings.values)
    _check_first([(config, settings.values), writing], model, tokenizer)
    _check_padding(settings, facts, tokenizer)
    kind = None if task == head_import.NONE else head_import.token_kind(settings, family)
    if kind is not None:
        family = family.with_token_head(kind)
    shapes = {family.short(name): one.shape for header in wanted.values() for name, one in header.items()}
    head = shapes.get(family.head_weight or "")
    tokenizer_config = external.read_optional(source, TOKENIZER_CONFIG)
    limit, unread = length_limit_of(tokenizer_config, model.context)
    tuned = None
    if task != head_import.NONE:
        tuned = read_classifier(settings, family, model, head[0] if head else None, task, limit)
    known, made = load_tokenizer(tokenizer), tokenizer.parent == scratch
    if tuned is not None:
        _check_reading(source, tuned, tokenizer_config, known, made)
    parts = present_parts(family, model, shapes, tuned.head if tuned else None)
    hf_weights.check_parameters(source, wanted, family, parts, facts)
    weights = our_weights(family, hf_weights.read_tensors(source, wanted, family), parts.shapes, facts) | parts.drawn()
    if tuned is not None:
        weights, remarks = tuned.ordered(weights), [*remarks, *tuned.remarks, *unread]
        if tuned.head.is_value and (function := sentence_folder.after_score(source, settings.values)):
            remarks.append(
                f"a score is the output of its head: the {function} that CrossEncoder applies to it is left out"
            )
    vector, remarks = None, [*remarks, *parts.remarks]
    if made and isinstance(known, TokenizerJson):
        remarks += known.remarks
    if tuned is None and sentence is None:
        remarks += _text_remarks(model, known, made, writing)
    if sentence is not None:
        vector = sentence_folder.completed(sentence, model, _around(source, tokenizer))
        remarks += [*sentence.remarks, f"vectors of at most {vector.limit} tokens: {vector}"]
    return Imported("hf", source, model, weights, tuple(remarks), parts.head, tuned, vector, own), tokenizer


def _check_first(files: Iterable[tuple[Path, Mapping[str, Any]]], model: ModelConfig, tokenizer: Path) -> None:
    """Raises CheckpointError for a decoder that begins with another id than ours does."""
    pad = read_metadata(tokenizer).special_ids.pad
    for path, values in files if model.kind == "encoder_decoder" else ():
        if (first := values.get("decoder_start_token_id")) not in (None, pad):
            raise CheckpointError(
                f"{path}: decoder_start_token_id {first!r:.60}: a decoder begins with the padding symbol here, "
                f"which is {pad} of the tokenizer; pass --tokenizer with one whose <pad> it is"
            )


def _check_padding(settings: Settings, facts: Facts, tokenizer: Path) -> None:
    """Raises CheckpointError for a model that counts positions by another padding symbol than its tokenizer has: one
    that texts may have.
    """
    pad, counted = read_metadata(tokenizer).special_ids.pad, facts.first_position - 1
    if facts.first_position and pad not in (None, counted):
        raise CheckpointError(
            f"{settings.path}: pad_token_id {counted}: positions are counted by it, and the padding symbol is {pad} "
            "of the tokenizer; pass --tokenizer with one whose <pad> it is"
        )


def _check_reading(source: Path, tuned: Classifier, values: Mapping[str, Any], known: Tokenizer, made: bool) -> None:
    """Raises CheckpointError for a tokenizer that reads texts in another way than this program. `values` are the
    folder's tokenizer_config.json; they say nothing of the segments of a tokenizer that was given by hand, not `made`
    from this folder. Tokenizers of this program's own kinds have no layout to compare.
    """
    side = values.get("truncation_side", "right")
    if side != "right" and not tuned.task.reads_tokens:  # of tokens nothing is cut
        raise CheckpointError(
            f"{source / TOKENIZER_CONFIG}: truncation_side {side!r:.40}: texts are cut on the right here"
        )
    if isinstance(known, TokenizerJson):
        is_unsaid = str(values.get("tokenizer_class")).startswith(WITHOUT_SEGMENTS)
        inputs = values.get("model_input_names", [] if is_unsaid else None) if made else None
        tuned.check_layout(source, known, not isinstance(inputs, list) or "token_type_ids" in inputs)


def _text_remarks(
    model: ModelConfig, known: Tokenizer, made: bool, writing: tuple[Path, Mapping[str, Any]]
) -> Iterator[str]:
    """Yields remarks on what transformers puts around a text, by a tokenizer that was `made` of the folder's, and on
    how it writes one, where this program does not.
    """
    if made and isinstance(known, TokenizerJson):
        ours: tuple[list[int | None], list[int | None]] = [], []
        if model.kind == "encoder_decoder":
            ours = [], [known.eod_id]
        elif model.mask == "bidirectional":
            ours = [known.special_ids.cls], [known.special_ids.separator]
        first, last = map(list, json_file.symbols_around(known.path, known.contents))
        if (first, last) != ours:
            yield (
                f"its tokenizer puts {first or 'nothing'} before a text and {last or 'nothing'} after it, here there "
                f"is {ours[0] or 'nothing'} before it and {ours[1] or 'nothing'} after it"
            )
    if model.mask != "bidirectional":
        yield from ways_left_out(*writing, known)


def _around(source: Path, tokenizer: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that sentence-transformers puts before a text and after it: those of the tokenizer that the
    folder holds, else of the given one.
    """
    if _tokenizer_files(source) & hf_folder.VOCABULARIES.keys():
        return json_file.symbols_around(source, hf_folder.convert(source)[0])
    given = load_tokenizer(tokenizer)
    if isinstance(given, TokenizerJson):
        return json_file.symbols_around(tokenizer, given.contents)
    first, last = given.special_ids.cls, given.special_ids.separator
    return ((), ()) if first is None or last is None else ((first,), (last,))


def _carried_tokenizer(source: Path, family: Family, scratch: Path) -> Path:
    """Returns the tokenizer folder inside an export of ours, its files checked to lie there, or one made of the files
    that the model was published with.
    """
    folder, made = source / TOKENIZER, scratch / "tokenizer"
    if not folder.exists():
        names = _tokenizer_files(source)
        if family is openai_gpt.FAMILY and {VOCABULARY, MERGES} <= names:
            import_openai(source / VOCABULARY, source / MERGES, made)
            return made
        if family is not openai_gpt.FAMILY and names & hf_folder.VOCABULARIES.keys():
            import_hf(source, made)
            return made
    if not folder.is_dir() or folder.is_symlink():
        raise CheckpointError(
            f"{source}: carries neither a tokenizer of ours nor {VOCABULARY} and {MERGES}, or another one of "
            f"{family.title}; pass --tokenizer with a folder made by `gpt1-ds tokenizer`"
        )
    external.inside(folder, METADATA)
    for name in read_metadata(folder).files:
        _tokenizer_file(folder, name)
    return folder


def _tokenizer_files(folder: Path) -> set[str]:
    """Returns the names of the tokenizer's files in transformers' form that are there. Raises CheckpointError."""
    return {_tokenizer_file(folder, name).name for name in TOKENIZER_FILES if (folder / name).exists()}


def _tokenizer_file(folder: Path, name: str) -> Path:
    path = external.inside(folder, name)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for a tokenizer's file")
    return path
