"""Text from a checkpoint.

Shapes: S positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.data.tokenizers.base import Tokenizer
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.sampling import TOKENS, Sampling


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
