"""Examples per second of full-size fine-tuning beside a plain transformers loop, in one interleaved run.

    python tools/bench_finetune.py --tokenizer DIR --data DIR [--task cola] [--rounds 5] [--steps 6] [--device cuda]

Both train GPT-1 (12 layers, 768 wide) from the same random weights on the same examples with the same batch size,
dropout, threads, objective (L2 + 0.5 L1), update count and clipping, bf16 on fp32 masters. The peer is what people
write: shuffled batches padded to their longest sequence, torch.autocast, AdamW (fused, as transformers' Trainer has
it). Both losses of one batch are compared first. Ours is the engine of `gpt1-ds finetune`, loader included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

BATCH = 32


class Ours:
    """The run that `gpt1-ds finetune` makes, driven step by step."""

    def __init__(self, options: argparse.Namespace, place: str) -> None:
        from gpt1_ds.common.rundir import RunDir
        from gpt1_ds.engine.build import build_engine
        from gpt1_ds.engine.process_groups import ProcessGroups
        from gpt1_ds.engine.session import keep_freed_blocks
        from gpt1_ds.tasks.reading import read_task
        from gpt1_ds.training.batches import Batches
        from gpt1_ds.training.configuration import finetune_config
        from gpt1_ds.training.finetuning import Finetuning
        from gpt1_ds.training.state import TrainingState
        from tools.bench.ours import connect

        self.device = options.device
        keep_freed_blocks()
        arguments = [
            "train.precision=bf16",
            f"train.micro_batch={BATCH}",
            f"run.dir={place}",
            f"task.path={options.data}",
        ]
        arguments += [f"task.tokenizer={options.tokenizer}", *options.arguments]
        self.config = finetune_config(["model/gpt1", f"finetune/{options.task}"], arguments)
        connect(options.device)
        groups = ProcessGroups(self.config)
        self.workload = Finetuning(self.config, read_task(self.config.task), Path(options.tokenizer), groups)
        config = self.workload.config
        self.engine = build_engine(config, groups, objective=self.workload.objective)
        self.batches = Batches(self.workload.batch, RunDir(Path(place) / "run"), self.engine)
        self.state = TrainingState()

    def train(self, steps: int) -> int:
        """Examples trained on."""
        from gpt1_ds.training.schedule import learning_rate

        for _ in range(steps):
            batch = self.batches.next(self.state)
            self.state = replace(self.state, step=self.state.step + 1)
            rate = learning_rate(self.config.schedule, self.config.optimizer.lr, self.state.step, self.workload.steps)
            self.engine.step(batch.micro_batches, rate)
        return steps * BATCH


class Plain:
    """transformers' GPT-1 with the weights of `ours`, in a loop as people write it."""

    def __init__(self, ours: Ours) -> None:
        import torch
        from transformers import OpenAIGPTConfig, OpenAIGPTModel

        model, encoded = ours.workload.config.model, ours.workload.train
        self.config = OpenAIGPTConfig(
            vocab_size=model.vocab_size,
            n_positions=model.context,
            n_embd=model.width,
            n_layer=model.layers,
            n_head=model.heads,
        )
        self.device = ours.device
        self.body = OpenAIGPTModel(self.config).to(self.device)
        self.head = torch.nn.Linear(model.width, ours.workload.objective.head.outputs, device=self.device)
        self.drop = torch.nn.Dropout(ours.workload.objective.head.dropout)
        self._copy(ours)
        parameters = [*self.body.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=6.25e-5, weight_decay=0.01, fused=True)
        self.parameters = parameters
        self.examples = [
            (encoded.tokens[encoded.offsets[n] : encoded.offsets[n + 1]].tolist(), int(encoded.labels[n]))
            for n in range(len(encoded))
        ]
        self.generator = torch.Generator().manual_seed(1)
        self.order: list[int] = []

    def _copy(self, ours: Ours) -> None:
        import torch

        from gpt1_ds.interop.families.openai_gpt import FAMILY
        from gpt1_ds.interop.families.rules import Facts
        from gpt1_ds.model import names

        weights = {}
        for parameter in ours.engine.module.parameters():
            info = names.info(parameter)
            weights[info.name] = parameter.detach().float()[: info.shape[0]].clone()
        with torch.no_grad():
            self.head.weight.copy_(weights.pop("head.weight"))
            self.head.bias.copy_(weights.pop("head.bias"))
        facts, state = Facts(self.config.n_head), {}
        for name, value in weights.items():
            state.update(FAMILY.to_theirs(name, value, facts))
        unread = self.body.load_state_dict(state, strict=False)  # their causal masks are buffers in some versions
        assert not unread.unexpected_keys, unread
        assert not set(unread.missing_keys) & {name for name, _ in self.body.named_parameters()}, unread

    def loss(self, batch: list[tuple[list[int], int]]) -> Any:
        import torch
        import torch.nn.functional as F

        longest = max(len(tokens) for tokens, _ in batch)
        rows = [tokens + [0] * (longest - len(tokens)) for tokens, _ in batch]
        ids_BT = torch.tensor(rows, device=self.device)
        lengths_B = torch.tensor([len(tokens) for tokens, _ in batch], device=self.device)
        labels_B = torch.tensor([label for _, label in batch], device=self.device)
        places_B = torch.arange(len(batch), device=self.device)
        real_BT = torch.arange(longest, device=self.device) < lengths_B[:, None]
        with torch.autocast(self.device, dtype=torch.bfloat16):
            hidden_BTD = self.body(ids_BT, attention_mask=real_BT.long()).last_hidden_state
            logits_BTV = hidden_BTD @ self.body.tokens_embed.weight.T
            scores_BO = self.head(self.drop(hidden_BTD[places_B, lengths_B - 1]))
        labels_BT = ids_BT.masked_fill(~real_BT, -100)[:, 1:]
        nats_BT = F.cross_entropy(logits_BTV[:, :-1].float().transpose(1, 2), labels_BT, reduction="none")
        language = (nats_BT.sum(1) / (lengths_B - 1)).mean()
        return F.cross_entropy(scores_BO.float(), labels_B) + 0.5 * language

    def train(self, steps: int) -> int:
        import torch

        self.body.train()
        for _ in range(steps):
            if len(self.order) < BATCH:
                self.order = torch.randperm(len(self.examples), generator=self.generator).tolist()
            batch = [self.examples[self.order.pop()] for _ in range(BATCH)]
            self.loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return steps * BATCH


def compare(ours: Ours, plain: Plain) -> tuple[float, float]:
    """The loss of the first batch by both, without dropout."""
    import torch

    first = ours.workload.batches.at(0)
    mine = ours.engine.evaluate(ours.workload.scorer.micro_batches(first))
    for part in (plain.body, plain.drop):
        part.eval()
    with torch.no_grad():
        theirs = float(plain.loss([plain.examples[n] for n in first.examples]))
    plain.drop.train()
    assert abs(mine - theirs) < 2e-2 * theirs, (mine, theirs)
    return mine, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", default="cola", choices=("cola", "sst2"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.set_defaults(arguments=[])
    options = parser.parse_args()
    if options.device == "cpu":  # DeepSpeed would take a GPU that it sees
        os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu")
    from gpt1_ds.launcher import libraries

    libraries.load()
    import torch

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as place:
        ours = Ours(options, place)
        plain = Plain(ours)
        losses = compare(ours, plain)
        print(f"loss of the first batch: ours {losses[0]:.4f}, transformers {losses[1]:.4f}", flush=True)
        speeds: dict[str, list[float]] = {"ours": [], "transformers": []}
        for round_number in range(options.rounds + 1):  # the first one is a warm-up
            for name, peer in (("ours", ours), ("transformers", plain)):
                begin = time.perf_counter()
                examples = peer.train(options.steps)
                if round_number:
                    speeds[name].append(examples / (time.perf_counter() - begin))
        ratios = [a / b for a, b in zip(*speeds.values(), strict=True)]
        for name, values in speeds.items():
            print(f"{name}: {statistics.median(values):.2f} examples/s ({min(values):.2f} to {max(values):.2f})")
        print(f"ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        packages = ("torch", "deepspeed", "megatron-core", "transformers")
        record = {
            "task": options.task,
            "batch": BATCH,
            "threads": options.threads,
            "padding": round(ours.workload.batches.padding_share(), 3),
            "losses": losses,
            "examples_per_second": speeds,
            "ratios": ratios,
            "processor": platform.processor() or platform.machine(),
            **{name: version(name) for name in packages},
        }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
