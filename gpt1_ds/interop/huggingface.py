"""`checkpoint export --to hf` and `checkpoint import --from hf`: folders of transformers' models (interop/families),
with a head for a fine-tuned checkpoint (interop/hf_task.py).

Neither needs transformers. An export holds `model.safetensors` (fp32), `config.json`, of a causal model
`generation_config.json` (greedy text is then that of `gpt1-ds sample --temperature 0`), the tokenizer in transformers'
form, our own one beside it, and a README.md. An import also reads folders that transformers wrote, whole or in shards;
weights come back bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import external, manifest, whole
from gpt1_ds.checkpoint.external import TensorFacts
from gpt1_ds.checkpoint.folders import find_checkpoint, while_it_is_there
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import write_tensors
from gpt1_ds.checkpoint.verify import check_memory, verify_files
from gpt1_ds.checkpoint.whole import head_of, task_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import published_folder, sync_folder, write_atomic, write_json
from gpt1_ds.config import Config, ModelConfig, load_carried
from gpt1_ds.data.tokenizers import hf_folder, json_file
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer, copy_tokenizer, read_metadata
from gpt1_ds.data.tokenizers.imports import import_hf
from gpt1_ds.data.tokenizers.registry import import_openai, load_tokenizer
from gpt1_ds.data.tokenizers.tokenizer_json import TokenizerJson
from gpt1_ds.interop import hf_task, sentence_folder
from gpt1_ds.interop.cards import model_card, task_card
from gpt1_ds.interop.families import openai_gpt
from gpt1_ds.interop.families.family import Facts, Family, Settings
from gpt1_ds.interop.families.registry import family_of_model, read_config
from gpt1_ds.interop.hf_config import (
    CONFIG,
    GENERATION,
    Written,
    generation_config,
    generation_settings,
    padding_id,
    their_config,
    ways_left_out,
)
from gpt1_ds.interop.hf_task import (
    Classifier,
    FineTuned,
    lay_out_inputs,
    lay_out_vector,
    length_limit_of,
    read_classifier,
    to_their_head,
)
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from gpt1_ds.interop.imported import Imported, Parts, check_shapes, free_place, our_weights, present_parts
from gpt1_ds.model.names import ParameterInfo
from gpt1_ds.tasks.encoding import length_limit
from gpt1_ds.tasks.text import most_written, text_limits

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"  # as OpenAIGPTTokenizer calls the files of the 2018 release
TOKENIZER_CONFIG = hf_folder.CONFIG
TOKENIZER_FILES = (*hf_folder.VOCABULARIES, *hf_folder.OTHERS, TOKENIZER_CONFIG)
TOKENIZER = "gpt1_ds_tokenizer"  # our own tokenizer folder inside an export
MAX_INDEX_BYTES = 16 << 20
MAX_TOKENIZER_BYTES = 64 << 20
WITHOUT_SEGMENTS = ("DistilBert", "TokenizersBackend")  # classes of tokenizers that tell a model none
_BUFFERS = (".attn.bias", ".attn.masked_bias", "position_ids")  # older versions saved causal masks and positions


def export(checkpoint: Path, out: Path) -> Path:
    """Write CKPT, verified first, as the folder `out` for transformers; the checkpoint that was read.

    Raises CheckpointError for a damaged checkpoint, for a model that no family can express, and when `out` is taken.
    """
    source = find_checkpoint(checkpoint)
    with while_it_is_there(source):
        return _export(source, out)


def _export(source: Path, out: Path) -> Path:
    facts = manifest.read(source)
    verify_files(source, facts)
    out = free_place(out)
    config = load_carried(source / "config.yaml")
    model, tokenizer = config.model, load_tokenizer(source / "tokenizer")
    family = family_of_model(source, model)
    head, tuned = head_of(source, facts), FineTuned.of(source, facts, config, family)
    check_memory(source, facts, model, head)
    family = family if tuned is None else tuned.family
    vector = whole.read(source, facts, model.width) if tuned is None else None
    if tuned is not None and tuned.head.loss is not None:
        vector = sentence_folder.vector_of(tuned)
    continues = model.kind != "encoder_decoder" and model.mask == "causal" and vector is None
    limit = tuned.limit if tuned else model.context if vector is None else vector.limit
    files = tokenizer_files(tokenizer, limit, plain=continues)
    if tuned is not None:
        settings = {**their_config(family, model, tokenizer, tuned.architecture), **tuned.config(tokenizer)}
        lay_out_inputs(files, tokenizer, tuned.task)
        card = task_card(model, tuned, tokenizer, facts) if vector is None else ""
    elif vector is not None:
        settings = {
            **their_config(family, model, tokenizer, f"{family.stem}Model"),
            "pad_token_id": padding_id(tokenizer),
        }
        lay_out_vector(files, tokenizer, vector)
    else:
        name = _language_model(source, family, head)
        settings = their_config(family, model, tokenizer, name)
        if model.mask == "causal":
            files[GENERATION] = generation_config(tokenizer, model, _written(source, facts, config, tokenizer))
        card = model_card(family, name, model, tokenizer, facts, TOKENIZER)
    if vector is not None:
        files |= sentence_folder.sentence_files(vector, model)
        loss = tuned.head.loss if tuned is not None else None
        card = sentence_folder.sentence_card(family, vector, model, facts, loss)
    theirs = Settings(out / CONFIG, settings, family.title)
    first_position = family.first_position(theirs)
    base_alone = vector is not None
    tensors = _their_tensors(source, family, model, head, Facts(model.heads, first_position), tuned, base_alone)
    with published_folder(out) as folder:
        write_tensors(folder / WEIGHTS, tensors, metadata={"format": "pt"})  # transformers asks for the format
        for name, value in {CONFIG: settings, **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, value)
        for name, parts in (sentence_folder.sentence_weights(vector) if vector is not None else {}).items():
            write_tensors(folder / name, parts, metadata={"format": "pt"})
        copy_tokenizer(source / "tokenizer", folder / TOKENIZER)
        write_atomic(folder / "README.md", card)
        sync_folder(folder / TOKENIZER)
    for key, rate in family.other_dropouts(model, theirs).items():
        log.say(
            f"{out}: transformers' {family.stem} cannot hold model.{key}={getattr(model, key):g}; where it is trained "
            f"there, that is {rate:g}; what it computes is the same"
        )
    return source


def _written(source: Path, facts: dict[str, Any], config: Config, tokenizer: Tokenizer) -> Written | None:
    """How a checkpoint that was fine-tuned to write texts does it."""
    task = task_of(source, facts)
    if config.task is None or task is None or not task.writes_text:
        return None
    decoding, model = config.task.decoding, config.model
    _, longest = text_limits(task, config.task, tokenizer, length_limit(config.task, model.context), model.stacks)
    if decoding.length_penalty != "plain":
        log.say(
            f"{source}: transformers has no task.decoding.length_penalty={decoding.length_penalty}; "
            "its beams compare by log-likelihood / length there"
        )
    return decoding, most_written(model, longest)


def _language_model(source: Path, family: Family, head: HeadSpec | None) -> str:
    """The class for a checkpoint of pre-training."""
    if head is None:
        return family.language_model
    if family.pairs is None:
        raise CheckpointError(f"{source}: objective.next_sentence=true: transformers' {family.stem} has no head for it")
    return family.pairs


def _their_tensors(
    source: Path,
    family: Family,
    model: ModelConfig,
    head: HeadSpec | None,
    facts: Facts,
    tuned: FineTuned | None,
    base_alone: bool,
) -> dict[str, Tensor]:
    """The weights under transformers' names; `base_alone`: those of the base model, as sentence-transformers has it."""
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    reader, tensors, linear = StateReader(source), dict[str, Tensor](), dict[str, Tensor]()
    for name, shape in architecture(model, model.vocab_size, head).shapes.items():
        if (tuned or base_alone) and name.startswith("masked."):
            continue  # no class has both heads
        if base_alone and name.startswith(("head.", "next_sentence.")):
            continue  # that of sentences is needed in training only
        stored = reader.index.get(name)
        dim = stored.dim if stored is not None and stored.dim in range(len(shape)) else None
        value = reader.whole("master", ParameterInfo(name, shape, dim))
        if tuned and tuned.head.kind == "linear" and name.startswith("head."):
            linear[name] = value
        else:
            tensors.update(family.to_theirs(name, value, facts))
    if tuned and linear:
        to_their_head(tensors, linear["head.weight"], linear["head.bias"], tuned, model)
    if base_alone:
        return tensors
    return {family.full(name): value for name, value in tensors.items()}


def read(source: Path, tokenizer: Path | None, scratch: Path, task: str | None = None) -> tuple[Imported, Path]:
    """The model in a folder of transformers, and the tokenizer folder to go with it; `task` says what the head of a
    fine-tuned one is for (interop/hf_task.py). Raises CheckpointError.

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
    files = _weight_files(source)
    config = external.inside(source, CONFIG)
    headers = {file: _header(source, file, expected) for file, expected in files.items()}
    family, model, facts = read_config(config, lambda one, other: _differ(source, headers, one, other))
    own, tokenizer = tokenizer is None, tokenizer or _carried_tokenizer(source, family, scratch)
    remarks, wanted = _left_out(family, headers)
    if task == hf_task.NONE:
        names = hf_task.left_out([name for header in wanted.values() for name in header], family, source)
        remarks.append(f"{', '.join(names)} left out, as --task {task} says")
        wanted = {file: {n: facts for n, facts in one.items() if n not in names} for file, one in wanted.items()}
    settings = Settings(config, external.read_object(config), family.title)
    writing = generation_settings(source, settings.values)
    _check_first([(config, settings.values), writing], model, tokenizer)
    _check_padding(settings, facts, tokenizer)
    kind = None if task == hf_task.NONE else hf_task.token_kind(settings, family)
    if kind is not None:
        family = family.with_token_head(kind)
    shapes = {family.short(name): one.shape for header in wanted.values() for name, one in header.items()}
    head = shapes.get(family.head_weight or "")
    tokenizer_config = external.read_optional(source, TOKENIZER_CONFIG)
    limit, unread = length_limit_of(tokenizer_config, model.context)
    tuned = None
    if task != hf_task.NONE:
        tuned = read_classifier(settings, family, model, head[0] if head else None, task, limit)
    known, made = load_tokenizer(tokenizer), tokenizer.parent == scratch
    if tuned is not None:
        _check_reading(source, tuned, tokenizer_config, known, made)
    parts = present_parts(family, model, shapes, tuned.head if tuned else None)
    _check(source, wanted, family, parts, facts)
    weights = our_weights(family, _tensors(source, wanted, family), parts.shapes, facts) | parts.drawn()
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
    """Raises CheckpointError for a tokenizer that reads texts in another way than is done here. `values` are the
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
    """Remarks on what transformers puts around a text, by a tokenizer that was `made` of the folder's, and on how it
    writes one, where that is not done here.
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
    """The ids that sentence-transformers puts before a text and after it: those of the tokenizer that the folder holds,
    else of the given one.
    """
    if _tokenizer_files(source) & hf_folder.VOCABULARIES.keys():
        return json_file.symbols_around(source, hf_folder.convert(source)[0])
    given = load_tokenizer(tokenizer)
    if isinstance(given, TokenizerJson):
        return json_file.symbols_around(tokenizer, given.contents)
    first, last = given.special_ids.cls, given.special_ids.separator
    return ((), ()) if first is None or last is None else ((first,), (last,))


def _left_out(
    family: Family, headers: dict[str, dict[str, TensorFacts]]
) -> tuple[list[str], dict[str, dict[str, TensorFacts]]]:
    """Remarks on what an import does not take over, and the headers without it and without buffers."""
    found = sorted(n for header in headers.values() for n in header if family.short(n) in family.left_out)
    remarks = [f"{', '.join(found)} left out: {family.why_left_out}"] if found else []
    wanted = {
        file: {n: facts for n, facts in header.items() if n not in found and not n.endswith(_BUFFERS)}
        for file, header in headers.items()
    }
    return remarks, wanted


def _weight_files(source: Path) -> dict[str, set[str] | None]:
    """File name -> the tensors that the index expects in it (None: all there are)."""
    if (source / WEIGHTS).exists():
        return {external.inside(source, WEIGHTS).name: None}
    if (source / INDEX).exists():
        places = external.read_object(external.inside(source, INDEX), MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()) or not places:
            raise CheckpointError(f"{source / INDEX}: has no weight_map of tensor names to file names")
        files: dict[str, set[str] | None] = {}
        for name, file in places.items():
            external.refuse_pickle(external.inside(source, file))
            expected = files.setdefault(file, set())
            assert expected is not None
            expected.add(name)
        return files
    for path in sorted(source.iterdir()):
        external.refuse_pickle(path)
    raise CheckpointError(f"{source}: holds neither {WEIGHTS} nor {INDEX}; name the folder of a saved model")


def _header(source: Path, file: str, expected: set[str] | None) -> dict[str, TensorFacts]:
    path = external.inside(source, file)
    header = external.safetensors_header(path)
    if expected is not None and header.keys() != expected:
        name = min(header.keys() ^ expected)
        raise CheckpointError(f"{path}: {INDEX} and this file disagree on {name!r:.80}; download both again")
    return header


def _differ(source: Path, headers: dict[str, dict[str, TensorFacts]], one: str, other: str) -> bool:
    """Whether the files have both tensors, and not alike."""
    found = [
        value
        for name in (one, other)
        for file, header in headers.items()
        if name in header
        for _, value in external.read_weights(external.inside(source, file), {name: header[name]})
    ]
    return len(found) == 2 and not torch.equal(*found)


def _check(
    source: Path, headers: dict[str, dict[str, TensorFacts]], family: Family, parts: Parts, facts: Facts
) -> None:
    """Raise CheckpointError unless the headers list exactly the parameters of the model, some of them twice."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file, header in headers.items():
        for name, tensor in header.items():
            short = family.short(name)
            if short in shapes:
                raise CheckpointError(f"{source / file}: {name!r:.80} is there twice; download the folder again")
            shapes[short] = tensor.shape
    for copy, original in family.copies.items():
        shape = shapes.pop(copy, None)
        if shape is not None and shapes.setdefault(original, shape) != shape:
            raise CheckpointError(f"{source}: {copy} {list(shape)} is not tied to {original} {list(shapes[original])}")
    check_shapes(family, shapes, parts.shapes, facts, str(source))


def _tensors(source: Path, headers: dict[str, dict[str, TensorFacts]], family: Family) -> dict[str, Tensor]:
    """Weights under transformers' short names. Some may be saved under either of two names, or under both."""
    found = {
        family.short(name): value
        for file, header in headers.items()
        for name, value in external.read_weights(external.inside(source, file), header)
    }
    for copy, original in family.copies.items():
        value = found.pop(copy, None)
        if value is not None and not torch.equal(value, found.setdefault(original, value)):
            raise CheckpointError(f"{source}: {copy} differs from {original}; in {family.title} they are one")
    return found


def _carried_tokenizer(source: Path, family: Family, scratch: Path) -> Path:
    """The tokenizer folder inside an export of ours, its files checked to lie there, or one made of the files that the
    model was published with.
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
    """The names of the tokenizer's files in transformers' form that are there. Raises CheckpointError as below."""
    return {_tokenizer_file(folder, name).name for name in TOKENIZER_FILES if (folder / name).exists()}


def _tokenizer_file(folder: Path, name: str) -> Path:
    path = external.inside(folder, name)
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path}: {path.stat().st_size} bytes is too large for a tokenizer's file")
    return path
