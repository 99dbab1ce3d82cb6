"""What an encoder-decoder writes of a source, and sentinels as text: `<extra_id_0>` is the first one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch

from gpt1_ds.common.errors import ArgumentError, ConfigError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.evaluation.generate import control_symbols, next_token
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.sampling import TOKENS, Sampling
from gpt1_ds.objectives.base import row_facts

_SENTINEL = re.compile(r"<extra_id_(\d{1,9})>")


@torch.no_grad()
def answer(loaded: Loaded, source: str, sampling: Sampling) -> str:
    """What the decoder writes; sentinels in it are shown, as they say which span the text after them is. Raises
    ConfigError for a model without a decoder, ArgumentError for a text that is too long.
    """
    if loaded.config.model.kind != "encoder_decoder":
        raise ConfigError(f"sample: {loaded.folder} has one stack: it continues text; use --prompt, not --source")
    tokenizer, model, context = loaded.tokenizer, loaded.model, loaded.config.model.context
    most = min(TOKENS, context - 1) if sampling.tokens is None else sampling.tokens
    if most >= context:
        raise ArgumentError(f"tokens={sampling.tokens} is too many for model.context={context}; use less than that")
    source_ids = [*encode_sentinels(tokenizer, source), tokenizer.eod_id]
    if len(source_ids) > context:
        raise ArgumentError(
            f"source has {len(source_ids)} tokens, the encoder reads model.context={context}; use a shorter one"
        )
    device = next(model.parameters()).device
    facts_B3 = torch.from_numpy(row_facts(np.zeros(1, np.int64), (np.array([len(source_ids)]),) * 2)).to(device)
    memory = model.encode(torch.tensor(source_ids, device=device).unsqueeze(1), facts_B3)
    generator, caches, token = torch.Generator().manual_seed(sampling.seed), model.caches(), tokenizer.pad_id
    forbidden, written = control_symbols(tokenizer), list[int]()
    while len(written) < most:
        states = model.decode(memory, torch.tensor([[token]], device=device), caches)
        logits_V = model.logits_of(states)[-1, 0]
        token = next_token(loaded, logits_V, forbidden, sampling, generator)
        if token == tokenizer.eod_id:
            break
        written.append(token)
    return decode_sentinels(tokenizer, written)


def encode_sentinels(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which `<extra_id_0>` is the first sentinel. Raises ArgumentError for an unknown one."""
    ids: list[int] = []
    for number, part in enumerate(_SENTINEL.split(text)):
        if number % 2 == 0:
            ids += tokenizer.encode(part).tolist()
        elif int(part) < (tokenizer.special_ids.sentinels or 0):
            ids.append(tokenizer.vocab_size - 1 - int(part))
        else:
            raise ArgumentError(
                f"source: the tokenizer has {tokenizer.special_ids.sentinels or 0} sentinels, no {part}"
            )
    return ids


def decode_sentinels(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids, sentinels written as `<extra_id_0>`."""
    parts, last = [], tokenizer.vocab_size - 1
    for is_sentinel, some in groupby(ids, key=lambda one: one >= tokenizer.first_sentinel):
        few = list(some)
        parts += [f"<extra_id_{last - one}>" for one in few] if is_sentinel else [tokenizer.decode(few)]
    return "".join(parts)
