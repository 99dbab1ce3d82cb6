"""A fine-tuning step at the lengths of SST-2 beside a plain transformers loop (tools/bench_finetune.py), in turns."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tools.bench.ours import TINY
from tools.bench.rows import take_turns
from tools.bench_finetune import BATCH, Ours, Plain, compare
from tools.families import make_data
from tools.gpu.measuring import one
from tools.gpu.record import Contact
from tools.gpu.training import used

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 12, 15, 21, 52)  # deciles of the words of SST-2's 67,349 training phrases
EXAMPLES, STEPS, ROUNDS = 3200, 20, 3
WARM_UP = 80  # steps, after which both shapes that get CUDA graphs have them


def finetuning(contact: Contact) -> None:
    """Measures the examples per second of GPT-1 at full size, in bf16 with dropout and the auxiliary loss."""
    tokenizer = make_data(contact.work / "text-causal").parent / "tokenizer"
    task = make_task(contact.work / "text-causal" / "phrases", tokenizer, 10 * BATCH if contact.tiny else EXAMPLES)
    arguments = [f"train.device={contact.device}", *(TINY if contact.tiny else [])]
    settings = argparse.Namespace(
        task="sst2", tokenizer=tokenizer, data=task, device=contact.device, arguments=arguments
    )
    ours = Ours(settings, str(contact.work / "finetuning"))
    theirs = Plain(ours)
    first = compare(ours, theirs)
    steps = 1 if contact.tiny else STEPS
    for peer in (ours, theirs):
        peer.train(1 if contact.tiny else WARM_UP)

    both = {"ours": ours, "transformers": theirs}
    peers = {
        name: partial(one, contact, name, "examples/s", partial(peer.train, steps), None) for name, peer in both.items()
    }
    found = take_turns(peers, ROUNDS)
    for (name, values), loss in zip(found.items(), first, strict=True):
        contact.series(name, "examples/s", values, first_loss=loss, batch=BATCH, **used())
    contact.fact("padding, share of the tokens", round(ours.workload.batches.padding_share(), 3))


def make_task(folder: Path, tokenizer: Path, examples: int) -> Path:
    """Returns a folder of phrases with the lengths of SST-2's, in its format; the labels mean nothing."""
    import numpy as np

    from gpt1_ds.data.python_docs import documents
    from gpt1_ds.data.tokenizers.registry import load_tokenizer

    if (folder / "dev.tsv").exists():
        return folder
    pieces, draw = load_tokenizer(tokenizer), np.random.default_rng(0)
    tokens = pieces.encode(" ".join(next(iter(documents())).split()))
    folder.mkdir(exist_ok=True)
    for split, count in (("train", examples), ("dev", BATCH)):
        lengths = np.interp(draw.random(count), np.linspace(0, 1, len(LENGTHS)), LENGTHS).round().astype(int)
        begins = draw.integers(0, len(tokens) - max(LENGTHS), count)
        texts = [pieces.decode(tokens[at : at + length].tolist()) for at, length in zip(begins, lengths, strict=True)]
        lines = [f"{' '.join(text.split()) or 'it'}\t{number % 2}" for number, text in enumerate(texts)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder
