"""The README.md of an export: what it is, how to load it, and where it differs from the checkpoint."""

from __future__ import annotations

from typing import Any

from gpt1_ds.architecture.count import parameters
from gpt1_ds.common.text import amount
from gpt1_ds.config import ModelConfig
from gpt1_ds.data.tokenizers.base import OPENAI, Tokenizer
from gpt1_ds.interop.families.family import Family
from gpt1_ds.interop.head_export import FineTuned, last_norm
from gpt1_ds.interop.hf_config import padding_id
from gpt1_ds.interop.hf_tokenizer import DIFFERENCE

_LANGUAGE_MODEL = """---
library_name: transformers
pipeline_tag: {tag}
tags: [{tags}]
---

# {family.title}, {parameters:,} parameters

Exported by gpt1-ds {facts[hashes][version]} after {facts[step]} training steps ({facts[tokens]} tokens):
{shape}, context {model.context} tokens,
{model.vocab_size} token ids, fp32. Its logits are the checkpoint's, to rounding.

```python
from transformers import AutoTokenizer, {name}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {name}.from_pretrained("."){evaluated}
{usage}
`gpt1-ds checkpoint import --from hf --source . --out CKPT` turns this folder back into a checkpoint, bit for bit;
`{folder}/` is the tokenizer that it uses.
"""
_CAUSAL_USAGE = """inputs = tokenizer("It was", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40, do_sample=False)[0], skip_special_tokens=True))
```

* A text may be at most {model.context} tokens long, what is generated included; pad on the right only (positions are
  learned, and padding on the left would shift them).
* Documents end with `{eod}` (id {tokenizer.eod_id}), after which a text also begins (`bos_token`), and so does the
  answer to a source, if the model was fine-tuned to write one; nothing adds it by itself.
* The text of a control symbol in an input is ordinary text (`split_special_tokens`).
* {text}
"""
_SOURCE_USAGE = """inputs = tokenizer("It was <extra_id_0> morning.", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=40, do_sample=False)[0]))
```

* It was trained on sources of {model.context} tokens; pad on the right. Where `<extra_id_0>` stands the model writes
  what is missing, after the same symbol, if it was trained on spans.
* Sources and what is written end with `{eod}` (id {tokenizer.eod_id}), which the tokenizer adds.
* {text}
"""
_MASKED_USAGE = """inputs = tokenizer("It was read.", return_tensors="pt")
print(model(**inputs)[0].shape)
```

* A text may be at most {model.context} tokens long, control symbols included; pad on the right only.
* {text}
"""
_FINE_TUNED = """---
library_name: transformers
pipeline_tag: {tag}
tags: [{tags}]
---

# {family.title}, fine-tuned on {tuned.task.name}

Exported by gpt1-ds {facts[hashes][version]} after {facts[step]} steps of fine-tuning:
{shape}, fp32.
Its scores are the checkpoint's (`gpt1-ds predict`), to rounding.

```python
import torch
from transformers import AutoTokenizer, {tuned.architecture}{helper}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {tuned.architecture}.from_pretrained(".").eval()
{example}
```

* {inputs}
{layout}
* A sequence has at most {tuned.limit} tokens. {cut}
{padding}
{head}* {text}
"""
_GPT_LAYOUT = """* The tokenizer lays them out by itself: {parts}, with the token ids
  {tokenizer.start_id} (start), {tokenizer.delimiter_id} (delimiter) and {tokenizer.extract_id} (extract).
  The text of a control symbol is ordinary text."""
_GPT_PADDING = """* Pad on the right only, with id {pad} (`pad_token_id`); what is read is the extract
  token, which ends a sequence."""
_ENCODER_LAYOUT = """* The tokenizer lays them out by itself. The text of a control symbol is ordinary text."""
_ENCODER_PADDING = """* Pad on the right only, with id {pad} (`pad_token_id`); what is read is the first token."""
_ARGUMENTS = 'padding=True, truncation=True, return_tensors="pt"'
_ONE = f"""inputs = tokenizer(["It was read by many."], {_ARGUMENTS})
with torch.no_grad():
    logits = model(**inputs).logits"""
_PAIR = f"""inputs = tokenizer(["It was read by many."], ["Many read it."], {_ARGUMENTS})
with torch.no_grad():
    logits = model(**inputs).logits"""
_BOTH = f"""first, second = ["It was read by many."], ["Many read it."]
with torch.no_grad():
    logits = model(**tokenizer(first, second, {_ARGUMENTS})).logits
    logits += model(**tokenizer(second, first, {_ARGUMENTS})).logits"""
_CLASSES = """
probabilities = logits.softmax(-1)  # of model.config.id2label
print(probabilities.tolist())"""
_SCORES = """
mean = (logits.softmax(-1) * torch.arange(6)).sum(-1)
print(({low:g} + mean / 5 * {span:g}).tolist())"""
_VALUES = """
print(logits.squeeze(-1).tolist())"""
_CHOICE = f"""document, choices = "It was read.", {{choices}}
inputs = tokenizer([document] * len(choices), choices, {_ARGUMENTS})
extract = inputs["attention_mask"].sum(1) - 1
with torch.no_grad():
    scores = model(inputs["input_ids"].unsqueeze(0), mc_token_ids=extract.unsqueeze(0)).mc_logits
print(scores.softmax(-1).tolist())"""
_ENCODER_CHOICE = f"""document, choices = "It was read.", {{choices}}
inputs = tokenizer([document] * len(choices), choices, {_ARGUMENTS})
with torch.no_grad():
    scores = model(**{{{{name: value.unsqueeze(0) for name, value in inputs.items()}}}}).logits
print(scores.softmax(-1).tolist())"""
_SPAN_EXAMPLE = """inputs = tokenizer("Who read it?", "It was read by many.", return_tensors="pt")
with torch.no_grad():
    output = model(**inputs)
first, last = output.start_logits.argmax(), output.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, first : last + 1]))"""
_TAG_EXAMPLE = """tags = pipeline("token-classification", model=model, tokenizer=tokenizer)
print(tags("It was read by many ."))"""
_EVERY_TOKEN = """* Pad on the right only, with id {pad} (`pad_token_id`); every token is read."""
_SPANS = "The question is the first text, the context the second. What is read of a question is its first 64 tokens."
_WORDS = "Words stand with one blank between them; a word's tag is that of its first token."
_WINDOWS = "Of a longer context several rows are read, and the best span of all of them counts."
_PARTS = "A longer text is read in parts, each of whole words."
_TEXT = "Blanks around a text are to be stripped."
_CUT = """Longer texts were cut to {half} tokens each{questions}; `truncation=True` cuts the longer
  one, which differs only for those."""
_CUT_LONGER = """`truncation=True` cuts the longer text, as in training but for one token where
  both are long{questions}."""
_CUT_QUESTION = " (a question and its choices to {quarter}, the document to what they leave)"
_BIAS = """The head's bias is in the last LayerNorm's, `{norm}`, because `score` has none: the
  outputs are as they should be, but this folder is not to be loaded as a language model."""
_ORDERS = f"""{_TEXT} **A pair is read in both orders and the two outputs are added**, as above: one order alone
  is half an answer, and each of them holds half of the head's bias."""
_LOSSY = "The tokenizer gives the ids that the model was trained on, for every text; decoding loses layout."
_SAME = "The tokenizer gives the ids that the model was trained on, for every text, and decodes them back to it."


def model_card(
    family: Family, name: str, model: ModelConfig, tokenizer: Tokenizer, facts: dict[str, Any], folder: str
) -> str:
    """Returns markdown; `name` is the class, `facts` the checkpoint's manifest, `folder` that of our tokenizer
    there.
    """
    assert model.vocab_size is not None, "saved configurations name the vocabulary size"
    total, text = parameters(model, model.vocab_size), _about(tokenizer)
    usages = _MASKED_USAGE, "fill-mask"
    if model.kind == "encoder_decoder":
        usages = _SOURCE_USAGE, "text2text-generation"
    elif model.mask == "causal":
        usages = _CAUSAL_USAGE, "text-generation"
    usage, tag = usages
    names = {number: symbol for symbol, number in getattr(tokenizer, "symbols", {}).items()}
    usage = usage.format(model=model, tokenizer=tokenizer, text=text, eod=names.get(tokenizer.eod_id, "<eod>"))
    return _LANGUAGE_MODEL.format(
        family=family,
        name=name,
        tag=tag,
        tags=_tags(family),
        model=model,
        shape=shape_in_words(model),
        facts=facts,
        folder=folder,
        parameters=total,
        evaluated=".eval()" if usages[0] is _MASKED_USAGE else "",
        usage=usage,
    )


def task_card(model: ModelConfig, tuned: FineTuned, tokenizer: Tokenizer, facts: dict[str, Any]) -> str:
    """Returns markdown; `facts` is the checkpoint's manifest."""
    parts = "start, text, extract"
    if tuned.task.layout != "single":
        parts = "start, first text, delimiter, second text, extract"
    is_gpt = tuned.head.kind == "linear"
    layout, padding = (_GPT_LAYOUT, _GPT_PADDING) if is_gpt else (_ENCODER_LAYOUT, _ENCODER_PADDING)
    padding = _EVERY_TOKEN if tuned.head.reads_tokens else padding
    return _FINE_TUNED.format(
        family=tuned.family,
        tags=_tags(tuned.family),
        model=model,
        shape=shape_in_words(model),
        tuned=tuned,
        tokenizer=tokenizer,
        facts=facts,
        tag=_tag(tuned),
        helper=", pipeline" if tuned.head.kind == "tags" else "",
        example=_example(tuned),
        inputs=_inputs(tuned),
        layout=layout.format(tokenizer=tokenizer, parts=parts),
        padding=padding.format(pad=padding_id(tokenizer)),
        cut=_cut(tuned),
        head=f"* {_head(tuned, model)}\n" if is_gpt else "",
        text=_about(tokenizer),
    )


def shape_in_words(model: ModelConfig) -> str:
    """Returns how large a model is: `12 layers, width 768, 12 heads`."""
    return f"{amount(model.layers, 'layer')}, width {model.width}, {amount(model.heads, 'head')}"


def _tags(family: Family) -> str:
    return family.model_type if family.model_type != "openai-gpt" else "gpt1, openai-gpt"


def _about(tokenizer: Tokenizer) -> str:
    if tokenizer.kind == OPENAI:
        return DIFFERENCE
    return _SAME if tokenizer.gives_text_back else _LOSSY


def _tag(tuned: FineTuned) -> str:
    if tuned.head.reads_tokens:
        return {"span": "question-answering", "tags": "token-classification"}[tuned.head.kind]
    return "multiple-choice" if tuned.head.choice else "text-classification"


def _example(tuned: FineTuned) -> str:
    if tuned.head.reads_tokens:
        return _SPAN_EXAMPLE if tuned.head.kind == "span" else _TAG_EXAMPLE
    if tuned.head.choice:
        example = _CHOICE if tuned.head.kind == "linear" else _ENCODER_CHOICE
        return example.format(choices=[f"choice {number}" for number in range(1, tuned.head.sequences + 1)])
    logits = {"single": _ONE, "pair": _PAIR}.get(tuned.task.layout, _BOTH)
    if not tuned.task.has_scores:
        return logits + _CLASSES
    if tuned.head.is_value:
        return logits + _VALUES
    low, high = tuned.task.score_range
    return logits + _SCORES.format(low=low, span=high - low)


def _inputs(tuned: FineTuned) -> str:
    if tuned.head.reads_tokens:
        return _SPANS if tuned.head.kind == "span" else _WORDS
    if tuned.head.choice:
        question = "A question, where the task has one, follows its document and a space, as one text."
        return f"One sequence per choice, the document as first text and the choice as second. {question} {_TEXT}"
    return _ORDERS if tuned.task.layout == "both" else _TEXT


def _cut(tuned: FineTuned) -> str:
    if tuned.head.reads_tokens:
        return _WINDOWS if tuned.head.kind == "span" else _PARTS
    if tuned.task.layout == "single":
        return "`truncation=True` cuts as in training."
    questions = _CUT_QUESTION.format(quarter=tuned.limit // 4 - 1) if tuned.head.choice else ""
    if tuned.task.symbols != "extract":
        return _CUT_LONGER.format(questions=questions)
    return _CUT.format(half=tuned.limit // 2 - 2, questions=questions)


def _head(tuned: FineTuned, model: ModelConfig) -> str:
    if tuned.head.choice:
        trained = "" if tuned.head.lm_coefficient else ", which was not trained with the choices"
        return f"`mc_logits` are the choices' scores; `logits` those of the language model{trained}."
    (norm,) = tuned.family.their_names(last_norm(model))
    return _BIAS.format(norm=tuned.family.full(norm))
