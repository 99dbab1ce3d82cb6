"""What sentence-transformers reads besides an encoder in transformers' form: which modules there are, and the pooling.

The names of modules and keys are those of its versions 2 to 6.
"""

from __future__ import annotations

from typing import Any

from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.hf_task import FineTuned

POOLING = "1_Pooling"
MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}

_CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, {family.model_type}]
---

# {family.title}, vectors of sentences

Exported by gpt1-ds {facts[hashes][version]} after {facts[step]} steps of fine-tuning (loss {loss}):
{model.layers} layers, width {model.width}, {model.heads} heads, fp32.
Its vectors are the checkpoint's (`gpt1-ds embed`), to rounding.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
vectors = model.encode(["It was read by many.", "Many read it."])
print(model.similarity(vectors, vectors))
```

* A vector is the {pooling} of the last states, control symbols included, of at most {limit} tokens.
* Without that library: the encoder is transformers' `{architecture}`.
"""


def sentence_files(tuned: FineTuned, model: ModelConfig) -> dict[str, Any]:
    """File name -> the JSON in it."""
    pooling = {"word_embedding_dimension": model.width}
    modules = (("", "Transformer"), (POOLING, "Pooling"))
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
        f"{POOLING}/config.json": {**pooling, **{key: kind == tuned.head.kind for kind, key in MODES.items()}},
        "sentence_bert_config.json": {"max_seq_length": tuned.limit, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
    }


def sentence_card(tuned: FineTuned, model: ModelConfig, facts: dict[str, Any]) -> str:
    """Markdown; `facts` is the checkpoint's manifest."""
    pooling = {"mean": "mean", "max": "largest value of each channel", "cls": "first one"}[tuned.head.kind]
    return _CARD.format(
        family=tuned.family,
        facts=facts,
        model=model,
        loss=tuned.head.loss,
        pooling=pooling,
        limit=tuned.limit,
        architecture=tuned.architecture,
    )
