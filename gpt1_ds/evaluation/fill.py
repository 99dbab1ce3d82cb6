"""What a masked model puts in the place of `<mask>`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpt1_ds.common.errors import ArgumentError, ConfigError
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.probes import frame_of

MASK = "<mask>"


@dataclass(frozen=True)
class Filling:
    """One token for one mask. `text` is the whole text with it, the other masks as they were."""

    mask: int  # 0 is the first
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill(loaded: Loaded, text: str, top: int) -> list[Filling]:
    """The `top` likeliest tokens for each mask, likeliest first. Raises ConfigError for a model that continues text,
    ArgumentError for a text without a mask, and for one that is longer than the context.
    """
    model, special = loaded.config.model, loaded.tokenizer.special_ids
    if model.mask != "bidirectional":
        raise ConfigError(
            f"{loaded.folder} continues text (model.mask={model.mask}), it fills no {MASK} in; use sample, in Python "
            "generate"
        )
    if MASK not in text:
        raise ArgumentError(f"text={text!r:.60} has no {MASK}; write {MASK} where a token is missing")
    mask, frame = special.require("mask", "fill"), frame_of(loaded)
    parts = text.split(MASK)
    ids, places = [*frame.first], []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        ids += loaded.tokenizer.encode(part if last else part.rstrip(" ")).tolist()  # the token brings its space
        if not last:
            places.append(len(ids))
            ids.append(mask)
    ids += frame.last
    if len(ids) > model.context:
        raise ArgumentError(f"text has {len(ids)} tokens, the model sees model.context={model.context}; shorten it")
    device = next(loaded.model.parameters()).device
    logits_SV = loaded.model.logits(torch.tensor(ids, device=device).unsqueeze(1))[:, 0].float()
    logits_SV[:, [*special.present().values()]] = -torch.inf
    logits_SV[:, loaded.tokenizer.vocab_size :] = -torch.inf
    found = []
    for number, place in enumerate(places):
        chances, tokens = logits_SV[place].softmax(-1).topk(min(top, loaded.tokenizer.vocab_size))
        for chance, token in zip(chances.tolist(), tokens.tolist(), strict=True):
            word = loaded.tokenizer.decode([token])
            left = parts[number].rstrip(" ") if word.startswith(" ") else parts[number]
            before = MASK.join([*parts[:number], left])
            found.append(Filling(number, word, chance, before + word + MASK.join(parts[number + 1 :])))
    return found
