"""The README.md of an export: what it is, how to load it, and where it differs from the checkpoint."""

from __future__ import annotations

from typing import Any

from gpt1_ds.architecture.count import parameters
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.base import OPENAI, Tokenizer
from gpt1_ds.interop.hf_tokenizer import DIFFERENCE

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [gpt1, openai-gpt]
---

# GPT-1, {parameters:,} parameters

Exported by gpt1-ds {version} after {step} training steps ({tokens} tokens): {layers} layers, width {width},
{heads} heads, context {context} tokens, {vocab_size} token ids, fp32. Its logits are the checkpoint's, to rounding.

```python
from transformers import AutoTokenizer, OpenAIGPTLMHeadModel

tokenizer = AutoTokenizer.from_pretrained(".")
model = OpenAIGPTLMHeadModel.from_pretrained(".")
inputs = tokenizer("It was", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True))
```

* A text may be at most {context} tokens long, what is generated included; pad on the right only (positions are learned,
  and padding on the left would shift them).
* Documents end with `<eod>` (id {eod}), after which a text also begins (`bos_token`); nothing adds it by itself.
* The text of a control symbol in an input is ordinary text (`split_special_tokens`).
* {tokenizer}

`gpt1-ds checkpoint import --from hf --source . --out CKPT` turns this folder back into a checkpoint, bit for bit;
`{folder}/` is the tokenizer that it uses.
"""
SAME = "The tokenizer gives the ids that the model was trained on, for every text, and decodes them back to it."


def model_card(model: ModelConfig, tokenizer: Tokenizer, facts: dict[str, Any], folder: str) -> str:
    """Markdown; `facts` is the checkpoint's manifest, `folder` where our tokenizer lies in the export."""
    rows = model.vocab_size or tokenizer.vocab_size
    return _CARD.format(
        parameters=parameters(model, rows),
        version=facts["hashes"]["version"],
        step=facts["step"],
        tokens=facts["tokens"],
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        context=model.context,
        vocab_size=rows,
        eod=tokenizer.eod_id,
        tokenizer=DIFFERENCE if tokenizer.kind == OPENAI else SAME,
        folder=folder,
    )
