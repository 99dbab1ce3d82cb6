"""Row 20: text for 32 prompts at a time, greedily and by beams, beside transformers' `generate`: the same random
weights of a GPT-2 and the same prompts, in fp32, and the same tokens come out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import Config, load
from gpt1_ds.evaluation.decoding import write
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.interop.families.gpt2 import FAMILY
from gpt1_ds.interop.families.rules import Facts
from tools.bench.ours import TINY, connect, give_weights, initial_weights
from tools.bench.rows import Options, Ratio, Row, rate, ratio, take_turns

PROMPTS, LENGTH, TOKENS, BEAMS = 32, 32, 32, 4
SMALL = ["model.layers=6", "model.width=384", "model.heads=6", "model.context=256", "model.vocab_size=8192"]
END = 0  # never written: texts have one length

Ids = list[list[int]]


class Symbols:
    """A tokenizer's numbers, without text."""

    eod_id = pad_id = END

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.special_ids = vocab_size, self

    def present(self) -> dict[str, int]:
        return {}


def measure(options: Options) -> Row:
    connect(options.device)
    config, tokens = load(["model/gpt2"], [*(TINY if options.quick else SMALL)]), 8 if options.quick else TOKENS
    prompts = _prompts(config, LENGTH // 4 if options.quick else LENGTH)
    makers = {"ours": ours(config), "transformers": transformers(config)}
    work, same = {}, {}
    for way, beams in (("greedy", 1), ("beams", BEAMS)):
        first = {who: make(prompts, tokens, beams) for who, make in makers.items()}
        same[way] = sum(a == b for a, b in zip(first["ours"], first["transformers"], strict=True))
        assert same[way] >= PROMPTS - 1, f"{way}: {same[way]} of {PROMPTS} texts agree"  # one may be a draw of rounding
        for who, make in makers.items():
            work[f"{who}, {way}"] = rate(
                lambda make=make, beams=beams: make(prompts, tokens, beams), PROMPTS * tokens, options.device
            )
    series = take_turns(work, options.rounds, warm_up=0)
    return Row(
        number=20,
        title=f"text for {PROMPTS} prompts",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio(f"{way}: ours / transformers", ratio(series, f"ours, {way}", f"transformers, {way}"), 1.0)
            for way in ("greedy", "beams")
        ],
        configuration={
            "model": f"GPT-2, {config.model.layers} layers, width {config.model.width}",
            "vocabulary": config.model.vocab_size,
            "tokens of a prompt": len(prompts[0]),
            "tokens written": tokens,
            "beams": BEAMS,
            "threads": torch.get_num_threads(),
        },
        checks={"texts that agree": same},
    )


def _prompts(config: Config, length: int) -> Ids:
    assert config.model.vocab_size is not None, "it is known here"
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, config.model.vocab_size, (PROMPTS, length), generator=generator).tolist()


def ours(config: Config) -> Callable[[Ids, int, int], Ids]:
    """Returns what writes so many tokens after prompts, with so many beams."""
    weights = initial_weights(config)
    model = whole_model(config, lambda info: weights[info.name])
    symbols: Any = Symbols(config.model.vocab_size or 0)

    def text(prompts: Ids, tokens: int, beams: int) -> Ids:
        return write(model, symbols, prompts, Sampling(tokens, 0, min_tokens=tokens, beams=beams))

    return text


def transformers(config: Config) -> Callable[[Ids, int, int], Ids]:
    """Returns the same of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = GPT2Config(**FAMILY.write_config(config.model, END), bos_token_id=END, eos_token_id=END)
    model: Any = GPT2LMHeadModel(settings)
    give_weights(model, FAMILY, config, Facts(config.model.heads))
    model = model.eval()

    def text(prompts: Ids, tokens: int, beams: int) -> Ids:
        ids_BS = torch.tensor(prompts)
        lengths: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": END}
        out_BT = model.generate(
            ids_BS, attention_mask=torch.ones_like(ids_BS), do_sample=False, num_beams=beams, **lengths
        )
        return out_BT[:, len(prompts[0]) :].tolist()  # type: ignore[no-any-return]

    return text
