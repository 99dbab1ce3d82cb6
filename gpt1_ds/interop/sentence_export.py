"""Writes what sentence-transformers has besides an encoder in transformers' form; sentence_folder.py names the
files.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.cards import shape_in_words
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.head_export import FineTuned
from gpt1_ds.interop.sentence_folder import DENSE_TENSORS, LIMITS, MODES, MODULES, NORM_TENSORS, SETTINGS, WEIGHTS
from gpt1_ds.model.sentence_vector import SentenceVector, Step

POOLING = "1_Pooling"
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


def vector_of(tuned: FineTuned) -> SentenceVector:
    """Returns the vector of a checkpoint that was fine-tuned on sentences here, without the ids around a text, which
    the tokenizer's template has.
    """
    return SentenceVector((tuned.head.kind,), tuned.limit)  # type: ignore[arg-type]  # such heads are named after it


def sentence_files(vector: SentenceVector, model: ModelConfig) -> dict[str, Any]:
    """Returns JSON values by file name."""
    has_keys = [mode for mode in MODES.values() if mode in vector.pooling] == list(vector.pooling)
    keys = {key: mode in vector.pooling for key, mode in MODES.items()}
    pooling = keys if has_keys else {"pooling_mode": list(vector.pooling)}
    modules, files, size = [("", "Transformer"), (POOLING, "Pooling")], dict[str, Any](), None
    for number, step in enumerate(vector.steps):
        if step.kind == "truncate":
            size = step.size
            continue
        folder, kind = _place(number, step)
        modules.append((folder, kind))
        files[f"{folder}/config.json"] = _step_settings(vector, number, step)
    return {
        MODULES: [
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
    """Returns the tensors of the layers after pooling, by file name and name."""
    files = dict[str, dict[str, Tensor]]()
    for number, step in enumerate(vector.steps):
        names = NORM_TENSORS if step.kind == "layer_norm" else DENSE_TENSORS
        parts = {theirs: vector.weights.get(f"{number}.{ours}") for theirs, ours in names.items()}
        if tensors := {name: value for name, value in parts.items() if value is not None}:
            files[f"{_place(number, step)[0]}/{WEIGHTS}"] = tensors
    return files


def _place(number: int, step: Step) -> tuple[str, str]:
    """Returns (folder, class) of a module after pooling."""
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
    """Returns Markdown; `facts` is the checkpoint's manifest, `loss` that of fine-tuning here."""
    trained = f"after {facts['step']} steps of fine-tuning (loss {loss})" if loss else "as it was imported"
    return _CARD.format(
        family=family, facts=facts, shape=shape_in_words(model), model=model, vector=vector, trained=trained
    )
