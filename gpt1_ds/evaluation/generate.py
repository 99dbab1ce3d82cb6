"""Text from a model: how it is drawn, what a causal model continues, what an encoder-decoder writes of a source
(sentinels as text: `<extra_id_0>` is the first one), and what a masked model puts in the place of `<mask>`.

Shapes: S positions, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.common.errors import ArgumentError, CheckpointError, ConfigError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.probes import frame_of
from gpt1_ds.evaluation.sampling import TOKENS, Sampling
from gpt1_ds.objectives.base import row_facts


def generate(loaded: Loaded, prompt: str, sampling: Sampling) -> str:
    """A continuation of `prompt` (not repeated), ended early by the end of a document. Raises ConfigError for a model
    that does not continue text.
    """
    if loaded.config.model.kind == "encoder_decoder":
        raise ConfigError(f"sample: {loaded.folder} is an encoder-decoder, which answers a source; use --source")
    if loaded.config.model.mask == "bidirectional":
        raise ConfigError(
            f"{loaded.folder} is an encoder (model.mask=bidirectional): it fills <mask> in, it does not "
            "continue text; use fill"
        )
    return continued(loaded, loaded.tokenizer.encode(prompt).tolist(), sampling)


@torch.no_grad()
def continued(loaded: Loaded, prompt: Sequence[int], sampling: Sampling, stops: Sequence[str] = ()) -> str:
    """What follows the ids `prompt`; the token that completes one of `stops` is the last."""
    tokenizer, context = loaded.tokenizer, loaded.config.model.context
    device = next(loaded.model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    forbidden = control_symbols(tokenizer)
    sequence = [*prompt] or [tokenizer.eod_id]
    begin, pending, seen, caches = len(sequence), sequence[-context:], 0, loaded.model.caches()
    most = begin + (TOKENS if sampling.tokens is None else sampling.tokens)
    while len(sequence) < most:
        if seen + len(pending) > context:  # learned positions end here: continue from the later half
            pending, seen, caches = sequence[-max(1, context // 2) :], 0, loaded.model.caches()
        tokens_SB = torch.tensor(pending, device=device).unsqueeze(1)
        logits_V = loaded.model.logits(tokens_SB, caches=caches)[-1, 0]
        seen += len(pending)
        token = next_token(loaded, logits_V, forbidden, sampling, generator)
        if token == tokenizer.eod_id:
            break
        sequence.append(token)
        pending = [token]
        if stops and any(stop in tokenizer.decode(sequence[begin:]) for stop in stops):
            break
    return tokenizer.decode(sequence[begin:])


def control_symbols(tokenizer: Tokenizer) -> list[int]:
    """What no text has."""
    return [number for number in tokenizer.special_ids.present().values() if number != tokenizer.eod_id]


def next_token(
    loaded: Loaded, logits_V: Tensor, forbidden: list[int], sampling: Sampling, generator: torch.Generator
) -> int:
    """The next token. Raises CheckpointError where logits are not finite."""
    vocab_size = loaded.tokenizer.vocab_size
    if not bool(logits_V[:vocab_size].isfinite().all()):  # pad rows are not
        raise CheckpointError(f"{loaded.folder}: its weights give no finite numbers: this is not a trained model")
    logits_V[forbidden] = -torch.inf
    logits_V[vocab_size:] = -torch.inf
    return choose(logits_V.float().cpu(), sampling, generator)


def choose(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token id: the likeliest at temperature 0, else drawn from the top_k and top_p that are left."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    below_V = (logits_V - logits_V.max()).double()  # so that the likeliest stays finite at any temperature
    logits_V = (below_V / sampling.temperature).float()
    if sampling.top_k:
        logits_V = logits_V.masked_fill(
            logits_V < logits_V.topk(min(sampling.top_k, len(logits_V))).values[-1], -torch.inf
        )
    if sampling.top_p < 1:
        ordered, order = logits_V.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # mass of likelier tokens
        logits_V = logits_V.index_fill(0, order[before >= sampling.top_p], -torch.inf)
    return int(torch.multinomial(logits_V.softmax(-1), 1, generator=generator))


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
