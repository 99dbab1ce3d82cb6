"""Text for 32 prompts at a time, greedily, with cached keys and values, in bf16.

GPT-2's base shape, because transformers' GPT-1 has no cache; the same random weights and prompts for both.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.config import Config, load
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.interop.families.gpt2 import FAMILY
from gpt1_ds.interop.families.rules import Facts
from gpt1_ds.model import proof
from tools.bench.ours import TINY, give_weights, initial_weights
from tools.gpu.measuring import three
from tools.gpu.record import Contact
from tools.gpu.training import used

BATCH, PROMPT, NEW = 32, 32, 128  # rows; tokens of each


def configuration(contact: Contact) -> Config:
    return load(["model/gpt2"], [*TINY, "model.context=64"] if contact.tiny else [])


def sizes(contact: Contact) -> tuple[int, int, int]:
    """Returns (rows, tokens of a prompt, tokens to add)."""
    return (2, 8, 8) if contact.tiny else (BATCH, PROMPT, NEW)


def prompts(contact: Contact, config: Config) -> Tensor:
    """Returns int64 [B, S] on the device."""
    rows, prompt, _ = sizes(contact)
    assert config.model.vocab_size is not None, "the preset names it"
    generator = torch.Generator().manual_seed(7)
    return torch.randint(config.model.vocab_size, (rows, prompt), generator=generator).to(contact.device)


def ours(contact: Contact) -> None:
    """Measures what `gpt1-ds sample` does with ids: a CUDA graph for each token."""
    from gpt1_ds.checkpoint.whole import whole_model
    from gpt1_ds.evaluation.decoding import write
    from gpt1_ds.evaluation.sampling import Sampling

    config, (_, _, new) = configuration(contact), sizes(contact)
    proof.decide(True)  # it is the speed of graphs that is measured
    weights = initial_weights(config)
    model = whole_model(config, lambda info: weights[info.name]).to(contact.device, torch.bfloat16)
    end = config.model.vocab_size - 1  # type: ignore[operator]
    ids: Any = SimpleNamespace(vocab_size=end + 1, eod_id=end, pad_id=end, special_ids=SpecialIds(eod=end))
    given, greedy = prompts(contact, config).tolist(), Sampling(new, temperature=0, min_tokens=new)
    _timed(contact, "ours", lambda: torch.tensor(write(model, ids, given, greedy)))


@torch.no_grad()
def transformers(contact: Contact) -> None:
    """Measures transformers' `generate` with its cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config, (_, _, new) = configuration(contact), sizes(contact)
    model: Any = GPT2LMHeadModel(GPT2Config(**FAMILY.write_config(config.model, 0), pad_token_id=0))
    give_weights(model, FAMILY, config, Facts(config.model.heads))
    model = model.eval().to(contact.device, torch.bfloat16)
    prompt_BS = prompts(contact, config)
    settings: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "use_cache": True}
    settings |= {"attention_mask": torch.ones_like(prompt_BS), "eos_token_id": config.model.vocab_size - 1}  # type: ignore[operator]
    _timed(contact, "transformers", lambda: model.generate(prompt_BS, **settings)[:, prompt_BS.shape[1] :])


def _timed(contact: Contact, name: str, write: Callable[[], Tensor]) -> None:
    rows, _, new = sizes(contact)
    first_BT = write()  # the second one is timed
    assert first_BT.shape == (rows, new), f"{tuple(first_BT.shape)}"
    values = three(contact, name, "tokens/s", write, rows * new)
    contact.series(name, "tokens/s", values, first_tokens=first_BT[0, :8].tolist(), **used())
