"""`checkpoint export --to hf`: a checkpoint as a folder of transformers' models (interop/families), with a head for a
fine-tuned one (head_export.py).

It needs no transformers. The folder holds `model.safetensors` (fp32), `config.json`, of a causal model
`generation_config.json` (greedy text is then that of `gpt1-ds sample --temperature 0`), the tokenizer in transformers'
form, our own one beside it, and a README.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.checkpoint import manifest, whole
from gpt1_ds.checkpoint.folders import find_checkpoint, while_it_is_there
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import write_tensors
from gpt1_ds.checkpoint.verify import check_memory, verify_files
from gpt1_ds.checkpoint.whole import head_of, task_of
from gpt1_ds.common import log
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import published_folder, sync_folder, write_atomic, write_json
from gpt1_ds.config import Config, ModelConfig, load_carried
from gpt1_ds.data.tokenizers.base import Tokenizer, copy_tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.interop import sentence_export
from gpt1_ds.interop.cards import model_card, task_card
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.registry import family_of_model
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.interop.families.settings import Settings
from gpt1_ds.interop.head_export import FineTuned, lay_out_inputs, lay_out_vector, put_head
from gpt1_ds.interop.hf_config import (
    CONFIG,
    GENERATION,
    Written,
    generation_config,
    padding_id,
    their_config,
)
from gpt1_ds.interop.hf_tokenizer import tokenizer_files
from gpt1_ds.interop.hf_weights import WEIGHTS
from gpt1_ds.interop.imported import free_place
from gpt1_ds.model.names import ParameterInfo
from gpt1_ds.tasks.encoding import length_limit
from gpt1_ds.tasks.text import most_written, text_limits

TOKENIZER = "gpt1_ds_tokenizer"  # our own tokenizer folder inside an export


def export(checkpoint: Path, out: Path) -> Path:
    """Writes CKPT, verified first, as the folder `out` for transformers. Returns the checkpoint that was read.

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
        vector = sentence_export.vector_of(tuned)
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
        files |= sentence_export.sentence_files(vector, model)
        loss = tuned.head.loss if tuned is not None else None
        card = sentence_export.sentence_card(family, vector, model, facts, loss)
    theirs = Settings(out / CONFIG, settings, family.title)
    first_position = family.first_position(theirs)
    base_alone = vector is not None
    tensors = _their_tensors(source, family, model, head, Facts(model.heads, first_position), tuned, base_alone)
    with published_folder(out) as folder:
        write_tensors(folder / WEIGHTS, tensors, metadata={"format": "pt"})  # transformers asks for the format
        for name, value in {CONFIG: settings, **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, value)
        for name, parts in (sentence_export.sentence_weights(vector) if vector is not None else {}).items():
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
    """Returns how a checkpoint that was fine-tuned to write texts writes them; None for any other."""
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
    """Returns the name of the class for a checkpoint of pre-training."""
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
    """Returns the weights under transformers' names; with `base_alone` those of the base model alone, as
    sentence-transformers has it.
    """
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
        put_head(tensors, linear["head.weight"], linear["head.bias"], tuned, model)
    if base_alone:
        return tensors
    return {family.full(name): value for name, value in tensors.items()}
