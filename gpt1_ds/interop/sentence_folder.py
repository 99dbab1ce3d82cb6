"""A folder of sentence-transformers: what that library has besides an encoder in transformers' form, both ways.

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
from gpt1_ds.interop.cards import shape_in_words
from gpt1_ds.interop.families.family import LARGEST, Family
from gpt1_ds.interop.head_export import FineTuned
from gpt1_ds.model.heads import AnyPooling
from gpt1_ds.model.sentence_vector import ACTIVATIONS, SentenceVector, Step

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
POOLING = "1_Pooling"
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
_TENSORS = {"linear.weight": "weight", "linear.bias": "bias", "residual.weight": "residual"}
_NORM_TENSORS = {"norm.weight": "weight", "norm.bias": "bias"}
_VECTOR = "sentence_embedding"
_MOST_PROMPTS = 4  # that are named

_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, {family.model_type}]
---

# {family.title}, vectors of sentences

Exported by gpt1-ds {facts[hashes][version]} {trained}:
{shape}, fp32.
Its vectors are the checkpoint's (`gpt1-ds embed`), to rounding.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
vectors = model.encode(["It was read by many.", "Many read it."])
print(model.similarity(vectors, vectors))
```

* A vector is made of the last states, control symbols included, of at most {vector.limit} tokens: {vector}.
* Without that library: the encoder is transformers' `{family.stem}Model`.
"""


@dataclass(frozen=True)
class SentenceFolder:
    """The content of a folder of sentence-transformers. `encoder` is the folder of the encoder, which may be `source`
    itself.
    """

    source: Path
    encoder: Path
    vector: SentenceVector
    remarks: tuple[str, ...]


def is_sentence_folder(source: Path) -> bool:
    """Whether it makes vectors. A CrossEncoder is a classifier of transformers, which has modules since version 6 of
    the library. Raises CheckpointError for one that is more than that.
    """
    if not (source / MODULES).exists():
        return False
    values = external.read_optional(source, SETTINGS)
    if values.get("model_type") != "CrossEncoder":
        return True
    if found := [kind for path, kind in _modules(source) if (path, kind) != ("", "Transformer")]:
        raise CheckpointError(
            f"{source / MODULES}: a CrossEncoder with a {found[0]}: only its Transformer is known here"
        )
    _check_unread(source, "sequence-classification")
    if prompt := _prompts(source, values)[0]:
        raise CheckpointError(f"{source / SETTINGS}: a CrossEncoder with the prompt {prompt!r:.60} is not known here")
    return False


def after_score(source: Path, config: Mapping[str, Any]) -> str | None:
    """The function that CrossEncoder applies to the output of a head, where the folder or its `config.json` names one
    that changes it.
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
    """The modules of a folder, but for the symbols around a text. Raises CheckpointError for what has no counterpart
    here.
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
        found = _step(source / module, name)
        if found is None:
            continue
        weights |= {f"{len(steps)}.{part}": value for part, value in found[1].items()}
        steps.append(found[0])
    prompt, size, remarks = _settings(source, pooling)
    if size is not None:
        steps.append(Step("truncate", size=size))
    vector = SentenceVector(pooling.modes, _limit(encoder) or LARGEST["context"], (), (), prompt, tuple(steps), weights)
    return SentenceFolder(source, encoder, vector, remarks)


def _modules(source: Path) -> list[tuple[str, str]]:
    """(folder, class) of each module."""
    path = external.inside(source, MODULES)
    try:
        found = [(one["path"], one["type"]) for one in external.read_json(path)]
        plain = all(isinstance(part, str) for one in found for part in one) and len(found) > 0
    except (TypeError, KeyError):
        plain = False
    if not plain:
        raise CheckpointError(f"{path}: not a list of modules, each with path and type; download the folder again")
    for folder, kind in found:
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(
                f"{path}: the module {kind!r:.80} is code of its own; only the library's are known here"
            )
        if folder and (Path(folder).name != folder or folder in (".", "..") or (source / folder).is_symlink()):
            raise CheckpointError(f"{path}: names a place outside the folder: {folder!r:.80}; refused")
    return [(folder, kind.rpartition(".")[2]) for folder, kind in found]


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


def _step(folder: Path, kind: str) -> tuple[Step, dict[str, Tensor]] | None:
    """A module after pooling, with its weights; None for one that does nothing when a model is used."""
    if kind == "Dropout":
        return None
    values = external.read_optional(folder, "config.json")
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, _VECTOR):
            raise CheckpointError(f"{folder}: {key} {values[key]!r:.60}: only {_VECTOR} is known here")
    if kind == "Normalize":
        return Step("normalize"), {}
    if kind == "LayerNorm":
        return Step("layer_norm"), _weights(folder, _NORM_TENSORS)
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
    return Step("dense", name, values.get("use_residual") is True), _weights(folder, _TENSORS)


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
    """(text before each text, features that are kept, remarks)."""
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
        more = [f"{len(others) - _MOST_PROMPTS} more"] if len(others) > _MOST_PROMPTS else []
        named = ", ".join([*others[:_MOST_PROMPTS], *more])
        remarks.append(f"its prompts {named} are left out: begin texts with them yourself")
    return prompt, size, tuple(remarks)


def _prompts(source: Path, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(text before each text, the other prompts in words), by the settings with these `values`."""
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
    """Tokens of a text at most, those around it included, by the library's own file or the tokenizer's; None: those
    that the model reads.
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
    found: SentenceFolder, model: ModelConfig, around: tuple[tuple[int, ...], tuple[int, ...]]
) -> SentenceVector:
    """The vector with the ids `around` a text. Raises CheckpointError for modules that do not fit the model."""
    if model.kind == "encoder_decoder":
        raise CheckpointError(
            f"{found.source}: sentence vectors are those of BERT, RoBERTa and GPT-2, not of a {model.kind}"
        )
    most = min(found.vector.limit, model.context)
    vector = replace(found.vector, limit=most, first=around[0], last=around[1])
    if vector.limit <= len(vector.first) + len(vector.last):
        raise CheckpointError(f"{found.source}: {most} tokens at most leave no room for a text")
    try:
        vector.size(model.width)
    except ValueError as error:
        raise CheckpointError(f"{found.source}: {error}; download the folder again") from None
    return vector


def vector_of(tuned: FineTuned) -> SentenceVector:
    """Returns that of a checkpoint that was fine-tuned on sentences here; the ids around a text are the template's."""
    return SentenceVector((tuned.head.kind,), tuned.limit)  # type: ignore[arg-type]  # such heads are named after it


def sentence_files(vector: SentenceVector, model: ModelConfig) -> dict[str, Any]:
    """File name -> the JSON in it."""
    legacy = [mode for mode in MODES.values() if mode in vector.pooling] == list(vector.pooling)
    keys = {key: mode in vector.pooling for key, mode in MODES.items()}
    pooling = keys if legacy else {"pooling_mode": list(vector.pooling)}
    modules, files, size = [("", "Transformer"), (POOLING, "Pooling")], dict[str, Any](), None
    for number, step in enumerate(vector.steps):
        if step.kind == "truncate":
            size = step.size
            continue
        folder, kind = _place(number, step)
        modules.append((folder, kind))
        files[f"{folder}/config.json"] = _step_settings(vector, number, step)
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
        f"{POOLING}/config.json": {"word_embedding_dimension": model.width, **pooling},
        **files,
        LIMITS[0]: {"max_seq_length": vector.limit, "do_lower_case": False},
        SETTINGS: {
            "prompts": {"default": vector.prompt} if vector.prompt else {},
            **({"default_prompt_name": "default"} if vector.prompt else {}),
            "similarity_fn_name": "cosine",
            **({"truncate_dim": size} if size else {}),
        },
    }


def sentence_weights(vector: SentenceVector) -> dict[str, dict[str, Tensor]]:
    """File name -> the tensors in it, of the layers after pooling."""
    found = dict[str, dict[str, Tensor]]()
    for number, step in enumerate(vector.steps):
        names = _NORM_TENSORS if step.kind == "layer_norm" else _TENSORS
        parts = {theirs: vector.weights.get(f"{number}.{ours}") for theirs, ours in names.items()}
        if tensors := {name: value for name, value in parts.items() if value is not None}:
            found[f"{_place(number, step)[0]}/{WEIGHTS}"] = tensors
    return found


def _place(number: int, step: Step) -> tuple[str, str]:
    """(folder, class) of a module after pooling."""
    kind = {"dense": "Dense", "layer_norm": "LayerNorm", "normalize": "Normalize"}[step.kind]
    return f"{number + 2}_{kind}", kind


def _step_settings(vector: SentenceVector, number: int, step: Step) -> dict[str, Any]:
    if step.kind == "normalize":
        return {}
    weight = vector.weights[f"{number}.weight"]
    if step.kind == "layer_norm":
        return {"dimension": len(weight)}
    module = "linear" if step.activation == "Identity" else "activation"
    return {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": f"{number}.bias" in vector.weights,
        "activation_function": f"torch.nn.modules.{module}.{step.activation}",
        **({"use_residual": True} if step.residual else {}),
    }


def sentence_card(
    family: Family, vector: SentenceVector, model: ModelConfig, facts: dict[str, Any], loss: str | None
) -> str:
    """Markdown; `facts` is the checkpoint's manifest, `loss` that of fine-tuning here."""
    trained = f"after {facts['step']} steps of fine-tuning (loss {loss})" if loss else "as it was imported"
    return _CARD.format(
        family=family, facts=facts, shape=shape_in_words(model), model=model, vector=vector, trained=trained
    )
