"""Reads from a folder of sentence-transformers what that library has besides an encoder in transformers' form.

    modules.json                       which modules there are, in their order, and their folders
    sentence_bert_config.json          tokens of a text at most
    config_sentence_transformers.json  text before each text, the kind of similarity
    1_Pooling, 2_Dense, ...            a config.json each, of dense layers and layer norms also weights

The names of modules and keys are those of its versions 2 to 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from gpt1_ds.checkpoint import external
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.settings import LARGEST
from gpt1_ds.model.heads import AnyPooling
from gpt1_ds.model.sentence_vector import ACTIVATIONS, SentenceVector, Step

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
LIMITS = ("sentence_bert_config.json", "sentence_roberta_config.json")  # files that may say max_seq_length
UNREAD = (  # keys of them that change how a text is read, or the model
    *("processing_kwargs", "processor_kwargs", "tokenizer_args", "config_kwargs", "config_args"),
    *("model_kwargs", "model_args", "query_length", "document_length", "query_expansion"),
)
HARMLESS = {"attn_implementation", "dtype", "torch_dtype", "trust_remote_code"}
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer_config.json"
MODES: dict[str, AnyPooling] = {  # keys of versions 2 to 5, in the order in which vectors are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
DENSE_TENSORS = {"linear.weight": "weight", "linear.bias": "bias", "residual.weight": "residual"}
NORM_TENSORS = {"norm.weight": "weight", "norm.bias": "bias"}
WITHOUT_EFFECT = ("Dropout",)  # modules that do nothing when a model is used
_VECTOR = "sentence_embedding"
_NAMED_PROMPTS = 4  # of those that are left out


@dataclass(frozen=True)
class SentenceFolder:
    """The content of a folder of sentence-transformers."""

    source: Path
    encoder: Path  # the folder of the encoder, which may be `source` itself
    vector: SentenceVector
    remarks: tuple[str, ...]


def is_sentence_folder(source: Path) -> bool:
    """Returns whether the folder makes vectors. A CrossEncoder does not: it is a classifier of transformers, which has
    modules since version 6 of the library. Raises CheckpointError for one that is more than that.
    """
    if not (source / MODULES).exists():
        return False
    values = external.read_optional(source, SETTINGS)
    if values.get("model_type") != "CrossEncoder":
        return True
    if others := [kind for path, kind in _modules(source) if (path, kind) != ("", "Transformer")]:
        raise CheckpointError(
            f"{source / MODULES}: a CrossEncoder with a {others[0]}: only its Transformer is known here"
        )
    _check_unread(source, "sequence-classification")
    if prompt := _prompts(source, values)[0]:
        raise CheckpointError(f"{source / SETTINGS}: a CrossEncoder with the prompt {prompt!r:.60} is not known here")
    return False


def after_score(source: Path, config: Mapping[str, Any]) -> str | None:
    """Returns the name of the function that CrossEncoder applies to the output of a head, as the folder or its
    `config.json` names it; None where there is none that changes the output.
    """
    stated = config.get("sentence_transformers")
    given = stated.get("activation_fn") if isinstance(stated, dict) else None
    given = (
        given
        or config.get("sbert_ce_default_activation_function")
        or external.read_optional(source, SETTINGS).get("activation_fn")
    )
    name = given.rpartition(".")[2] if isinstance(given, str) else None
    return None if name == "Identity" else name


def read(source: Path) -> SentenceFolder:
    """Returns the modules of a folder, without the symbols around a text, which `completed` adds. Raises
    CheckpointError for what has no counterpart here.
    """
    (path, kind), *rest = _modules(source)
    if kind != "Transformer":
        raise CheckpointError(f"{source / MODULES}: begins with a {kind}; only models that begin with a Transformer")
    if not rest or rest[0][1] != "Pooling":
        raise CheckpointError(f"{source / MODULES}: no Pooling follows the Transformer: it makes no vector of a text")
    encoder = source / path if path else source
    _check_unread(encoder, "feature-extraction")
    pooling = _pooling(source / rest[0][0])
    steps, weights = list[Step](), dict[str, Tensor]()
    for module, name in rest[1:]:
        if name in WITHOUT_EFFECT:
            continue
        step, tensors = _step(source / module, name)
        weights |= {f"{len(steps)}.{part}": value for part, value in tensors.items()}
        steps.append(step)
    prompt, size, remarks = _settings(source, pooling)
    if size is not None:
        steps.append(Step("truncate", size=size))
    vector = SentenceVector(pooling.modes, _limit(encoder) or LARGEST["context"], (), (), prompt, tuple(steps), weights)
    return SentenceFolder(source, encoder, vector, remarks)


def _modules(source: Path) -> list[tuple[str, str]]:
    """Returns (folder, class) of each module."""
    path = external.inside(source, MODULES)
    try:
        modules = [(module["path"], module["type"]) for module in external.read_json(path)]
        is_valid = len(modules) > 0 and all(isinstance(value, str) for module in modules for value in module)
    except (TypeError, KeyError):
        is_valid = False
    if not is_valid:
        raise CheckpointError(f"{path}: not a list of modules, each with path and type; download the folder again")
    for folder, kind in modules:
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(
                f"{path}: the module {kind!r:.80} is code of its own; only the library's are known here"
            )
        if folder and (Path(folder).name != folder or folder in (".", "..") or (source / folder).is_symlink()):
            raise CheckpointError(f"{path}: names a place outside the folder: {folder!r:.80}; refused")
    return [(folder, kind.rpartition(".")[2]) for folder, kind in modules]


@dataclass(frozen=True)
class _Pooling:
    path: Path
    modes: tuple[AnyPooling, ...]
    includes_prompt: bool


def _pooling(folder: Path) -> _Pooling:
    path = external.inside(folder, "config.json")
    values = external.read_object(path)
    given = values.get("pooling_mode") or [mode for key, mode in MODES.items() if values.get(key)] or ["mean"]
    modes = tuple([given] if isinstance(given, str) else given)
    unknown = [mode for mode in modes if mode not in get_args(AnyPooling)]
    unknown += [key for key, value in values.items() if key.startswith("pooling_mode_") and value and key not in MODES]
    if unknown:
        raise CheckpointError(
            f"{path}: pooling {unknown[0]!r:.60} is not known here; {', '.join(get_args(AnyPooling))} are"
        )
    return _Pooling(path, modes, values.get("include_prompt") is not False)


def _step(folder: Path, kind: str) -> tuple[Step, dict[str, Tensor]]:
    """Returns a module after pooling and its weights."""
    values = external.read_optional(folder, "config.json")
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, _VECTOR):
            raise CheckpointError(f"{folder}: {key} {values[key]!r:.60}: only {_VECTOR} is known here")
    if kind == "Normalize":
        return Step("normalize"), {}
    if kind == "LayerNorm":
        return Step("layer_norm"), _weights(folder, NORM_TENSORS)
    if kind != "Dense":
        raise CheckpointError(
            f"{folder}: a module {kind!r:.60} is not known here; Dense, LayerNorm, Normalize and Dropout are"
        )
    given = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = given.rpartition(".")[2] if isinstance(given, str) and given.startswith("torch.nn.") else None
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"{folder}: activation_function {given!r:.80} is not known here; {', '.join(ACTIVATIONS)} of torch.nn are"
        )
    return Step("dense", name, values.get("use_residual") is True), _weights(folder, DENSE_TENSORS)


def _weights(folder: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).exists():
        for path in sorted(folder.iterdir()):
            external.refuse_pickle(path)
    path = external.inside(folder, WEIGHTS)
    header = external.safetensors_header(path)
    if unknown := sorted(header.keys() - names.keys()):
        raise CheckpointError(f"{path}: {unknown[0]!r:.80} is no part of such a layer; download the folder again")
    return {names[name]: value for name, value in external.read_weights(path, header)}


def _settings(source: Path, pooling: _Pooling) -> tuple[str, int | None, tuple[str, ...]]:
    """Returns (text before each text, the number of features that are kept, remarks)."""
    path, values = source / SETTINGS, external.read_optional(source, SETTINGS)
    prompt, others = _prompts(source, values)
    if prompt and not pooling.includes_prompt:
        raise CheckpointError(
            f"{pooling.path}: include_prompt=false: vectors without their prompt {prompt!r:.60} are not known here"
        )
    size = values.get("truncate_dim")
    if size is not None and (type(size) is not int or size < 1):
        raise CheckpointError(f"{path}: truncate_dim {size!r:.60} is not a whole number from 1")
    similarity = values.get("similarity_fn_name")
    remarks: list[str] = []
    if similarity not in (None, "cosine"):
        remarks.append(
            f"its similarity is {similarity!r:.40}: search and evaluate --sts take the cosine of the same vectors"
        )
    if others:
        more = [f"{len(others) - _NAMED_PROMPTS} more"] if len(others) > _NAMED_PROMPTS else []
        named = ", ".join([*others[:_NAMED_PROMPTS], *more])
        remarks.append(f"its prompts {named} are left out: begin texts with them yourself")
    return prompt, size, tuple(remarks)


def _prompts(source: Path, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns (text before each text, descriptions of the other prompts), by the settings with these `values`."""
    path = source / SETTINGS
    name, prompts = values.get("default_prompt_name"), values.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: prompts {prompts!r:.60} are not names with texts")
    if name is not None and name not in list(prompts):
        raise CheckpointError(f"{path}: default_prompt_name {name!r:.60} is none of its prompts")
    others = [f"{other!r:.40} ({text!r:.60})" for other, text in prompts.items() if text and other != name]
    return prompts[name] if name is not None else "", others


def _check_unread(encoder: Path, task: str) -> None:
    """Raises CheckpointError for settings of the encoder by which the library reads it for another `task`, or a text or
    the model in another way.
    """
    for path in (external.inside(encoder, name) for name in LIMITS if (encoder / name).exists()):
        values = external.read_object(path)
        if values.get("transformer_task", task) != task:
            raise CheckpointError(
                f"{path}: transformer_task {values['transformer_task']!r:.60}: only {task} is known here"
            )
        for key in UNREAD:
            given = values.get(key)
            if given and not (isinstance(given, dict) and given.keys() <= HARMLESS):
                raise CheckpointError(
                    f"{path}: {key} {given!r:.80} is not read: say it in {TOKENIZER} or config.json, and remove it"
                )


def _limit(encoder: Path) -> int | None:
    """Returns the tokens of a text at most, those around it included, by the library's own file or the tokenizer's;
    None where neither says it.
    """
    for name, key in (*((name, "max_seq_length") for name in LIMITS), (TOKENIZER, "model_max_length")):
        path, values = encoder / name, external.read_optional(encoder, name)
        if values.get("do_lower_case") and name != TOKENIZER:
            raise CheckpointError(
                f"{path}: do_lower_case is on: set it in {TOKENIZER}, which the tokenizer reads, and off here"
            )
        if values.get("truncation_side", "right") != "right":
            raise CheckpointError(
                f"{path}: truncation_side {values['truncation_side']!r:.40}: texts are cut on the right here"
            )
        limit = values.get(key)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise CheckpointError(f"{path}: {key} {limit!r:.60} is not a whole number from 1")
        if limit is not None:
            return limit
    return None


def completed(
    folder: SentenceFolder, model: ModelConfig, around: tuple[tuple[int, ...], tuple[int, ...]]
) -> SentenceVector:
    """Returns the vector with the ids `around` a text. Raises CheckpointError for modules that do not fit the model."""
    if model.kind == "encoder_decoder":
        raise CheckpointError(
            f"{folder.source}: sentence vectors are those of BERT, RoBERTa and GPT-2, not of a {model.kind}"
        )
    most = min(folder.vector.limit, model.context)
    vector = replace(folder.vector, limit=most, first=around[0], last=around[1])
    if vector.limit <= len(vector.first) + len(vector.last):
        raise CheckpointError(f"{folder.source}: {most} tokens at most leave none for a text")
    try:
        vector.size(model.width)
    except ValueError as error:
        raise CheckpointError(f"{folder.source}: {error}; download the folder again") from None
    return vector
