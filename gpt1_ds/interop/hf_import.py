"""`checkpoint import --from hf`: the model in a folder that transformers, or `checkpoint export`, wrote. It needs no
transformers; weights come back bit for bit. hf_weights.py reads them, head_import.py the head of a fine-tuned model,
folder_tokenizer.py the tokenizer, sentence_folder.py what sentence-transformers adds.
"""

from __future__ import annotations

from pathlib import Path

from gpt1_ds.checkpoint import external
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.interop import folder_tokenizer, head_import, hf_weights, sentence_folder
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.families.registry import read_config
from gpt1_ds.interop.families.settings import Settings
from gpt1_ds.interop.folder_tokenizer import FolderTokenizer
from gpt1_ds.interop.head_import import Classifier, length_limit_of, read_classifier
from gpt1_ds.interop.hf_config import CONFIG, generation_settings
from gpt1_ds.interop.hf_weights import WEIGHTS, Headers
from gpt1_ds.interop.imported import Imported, our_weights, present_parts


def read(source: Path, tokenizer: Path | None, scratch: Path, task: str | None = None) -> tuple[Imported, Path]:
    """Returns the model in a folder of transformers, and the tokenizer folder to go with it: `tokenizer`, else what the
    folder holds, in `scratch` where it is converted. `task` says what the head of a fine-tuned model is for
    (head_import.py). Raises CheckpointError.
    """
    _check_folder(source)
    sentence = sentence_folder.read(source) if sentence_folder.is_sentence_folder(source) else None
    source = source if sentence is None else sentence.encoder
    files = hf_weights.weight_files(source)
    config = external.inside(source, CONFIG)
    headers = {file: hf_weights.header_of(source, file, expected) for file, expected in files.items()}
    family, model, facts = read_config(config, lambda one, other: hf_weights.differ(source, headers, one, other))
    if tokenizer is None:
        text = folder_tokenizer.find(source, family, scratch)
    else:
        text = FolderTokenizer(source, tokenizer, is_given=True)
    remarks, headers = hf_weights.without_left_out(family, headers)
    if task == head_import.NONE:
        headers, remark = _without_head(source, family, headers)
        remarks.append(remark)

    settings = Settings(config, external.read_object(config), family.title)
    writing = generation_settings(source, settings.values)
    if model.kind == "encoder_decoder":
        text.check_first(config, settings.values)
        text.check_first(*writing)
    text.check_padding(settings, facts)

    classifier, head_remarks = None, list[str]()
    if task != head_import.NONE:
        classifier, family, head_remarks = _classifier(settings, family, model, headers, task, text)
    parts = present_parts(family, model, _shapes(family, headers), classifier.head if classifier else None)
    hf_weights.check_parameters(source, headers, family, parts, facts)
    weights = our_weights(family, hf_weights.read_tensors(source, headers, family), parts.shapes, facts)
    weights |= parts.initial_values()
    if classifier is not None:
        weights = classifier.ordered(weights)
    remarks += [*head_remarks, *parts.remarks, *text.remarks]
    if classifier is None and sentence is None:
        remarks += text.text_remarks(model, writing)
    vector = None
    if sentence is not None:
        vector = sentence_folder.completed(sentence, model, text.symbols_around())
        remarks += [*sentence.remarks, f"vectors of at most {vector.limit} tokens: {vector}"]
    imported = Imported(
        origin="hf",
        source=source,
        model=model,
        weights=weights,
        remarks=tuple(remarks),
        head=parts.head,
        classifier=classifier,
        sentence=vector,
        own_tokenizer=not text.is_given,
    )
    return imported, text.folder


def _check_folder(source: Path) -> None:
    """Raises CheckpointError for what is no folder."""
    if source.is_dir():
        return
    if source.is_file():
        external.refuse_pickle(source)
    hint = "" if source.exists() else f"; `hf download OWNER/{source.name} --local-dir DIR` gets one from the hub"
    raise CheckpointError(f"{source}: not a folder; --source names the one that holds {CONFIG} and {WEIGHTS}{hint}")


def _without_head(source: Path, family: Family, headers: Headers) -> tuple[Headers, str]:
    """Returns the headers without the head of a fine-tuned model, and a remark on it."""
    names = head_import.left_out([name for header in headers.values() for name in header], family, source)
    others = {
        file: {name: tensor for name, tensor in header.items() if name not in names} for file, header in headers.items()
    }
    return others, f"{', '.join(names)} left out, as --task {head_import.NONE} says"


def _classifier(
    settings: Settings,
    family: Family,
    model: ModelConfig,
    headers: Headers,
    task: str | None,
    text: FolderTokenizer,
) -> tuple[Classifier | None, Family, list[str]]:
    """Returns the head of a fine-tuned model and its task, None where the folder has no head; the family with the rules
    for that head; and remarks on it.
    """
    if (kind := head_import.token_kind(settings, family)) is not None:
        family = family.with_token_head(kind)
    source = settings.path.parent
    shape = _shapes(family, headers).get(family.head_weight or "")
    tokenizer_config = external.read_optional(source, folder_tokenizer.CONFIG)
    limit, limit_remarks = length_limit_of(tokenizer_config, model.context)
    classifier = read_classifier(settings, family, model, shape[0] if shape else None, task, limit)
    if classifier is None:
        return None, family, []
    text.check_layout(classifier, tokenizer_config)
    remarks = [*classifier.remarks, *limit_remarks]
    if classifier.head.is_value and (function := sentence_folder.after_score(source, settings.values)):
        remarks.append(f"a score is the output of its head: the {function} that CrossEncoder applies to it is left out")
    return classifier, family, remarks


def _shapes(family: Family, headers: Headers) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the file's tensors by transformers' short names."""
    return {family.short(name): tensor.shape for header in headers.values() for name, tensor in header.items()}
