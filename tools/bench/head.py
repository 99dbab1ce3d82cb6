"""Row 5: the tied head and the loss, forward and backward, beside the time of its three matrix products alone and the
memory of the plain way, fp32 logits.

Memory is the highest above what was held before, gradients of the hidden states and of the weight included.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.architecture.architecture import architecture
from gpt1_ds.architecture.facts import COLUMNS
from gpt1_ds.architecture.layer import padded
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import keep_freed_blocks
from gpt1_ds.model.embeddings import TokenEmbedding
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import LanguageLoss
from gpt1_ds.model.states import States
from tools.bench import matrix
from tools.bench.ours import connect, gpt1
from tools.bench.rows import Options, Ratio, Row, ratio, seconds, take_turns, wait_for

TOKENS = {"cpu": 2048, "cuda": 32768}
AGREEMENT = 2e-2  # of gradients, relative; and of losses, in nats
Run = Callable[[], Tensor]


@dataclass
class Head:
    """Inputs of every contender: bf16 hidden states [S, B, D] and weight [V, D], labels [S, B]."""

    tokens: TokenEmbedding
    tensor: TensorParallel
    hidden_SBD: Tensor
    labels_SB: Tensor
    weights_SB: Tensor

    def ours(self) -> Tensor:
        loss = LanguageLoss(self.tokens.vocab_size, self.tensor)
        states = States(self.hidden_SBD, torch.zeros(self.hidden_SBD.shape[1], COLUMNS, dtype=torch.int64))
        return loss(self.tokens.project(states), (self.labels_SB, self.weights_SB))

    def plain(self) -> Tensor:
        weight = self.tokens.weight[: self.tokens.vocab_size]
        logits_TV = (self.hidden_SBD.flatten(0, 1) @ weight.T).float()
        return F.cross_entropy(logits_TV, self.labels_SB.flatten())

    def megatron(self) -> Tensor:
        from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

        loss_SB = vocab_parallel_cross_entropy(self.tokens.logits(self.hidden_SBD), self.labels_SB)
        return (loss_SB * self.weights_SB).sum()  # type: ignore[no-any-return]

    def run(self, forward: Run) -> Tensor:
        """Forward and backward, into gradients that were not there before; the loss."""
        self.hidden_SBD.grad = self.tokens.weight.grad = None
        loss = forward()
        loss.backward()
        return loss.detach()

    def gradients(self) -> tuple[Tensor, Tensor]:
        assert self.hidden_SBD.grad is not None
        return self.hidden_SBD.grad.float(), self.tokens.weight.grad.float()


def measure(options: Options) -> Row:
    head, tokens = make_head(options)
    ways: dict[str, Run] = {"ours": head.ours, "fp32 logits": head.plain, "Megatron": head.megatron}
    losses, apart = agree(head, ways)
    memory = {name: peak_bytes(lambda f=forward: head.run(f), options.device) / 2**20 for name, forward in ways.items()}
    keep_freed_blocks()  # from here on, as a run does
    rows, width = padded(head.tokens.vocab_size, 128, 1), head.hidden_SBD.shape[-1]
    products = matrix.step_seconds(list(matrix.linear(tokens, width, rows, 1)), options.device)
    work: dict[str, Callable[[], float]] = {"its matrix products": lambda: 1e3 * products()}
    for name, forward in ways.items():
        work[name] = lambda f=forward: 1e3 * seconds(lambda: head.run(f), options.device)  # type: ignore[misc]
    series = take_turns(work, options.rounds)
    share = memory["ours"] / memory["fp32 logits"]
    effective = 6e-12 * tokens * width * rows / (statistics.median(series["ours"]) / 1e3)
    return Row(
        number=5,
        title=f"head and loss of {tokens} tokens, forward and backward",
        unit="ms",
        series=series,
        ratios=[
            Ratio(
                "ours / its matrix products alone", ratio(series, "ours", "its matrix products"), 1.25, at_least=False
            ),
            Ratio("memory, ours / fp32 logits", [share], 1 / 8, at_least=False),
            Ratio("memory, ours / Megatron", [memory["ours"] / memory["Megatron"]]),
            Ratio("Megatron / ours", ratio(series, "Megatron", "ours")),
        ],
        configuration={"tokens": tokens, "width": width, "vocabulary": rows, "threads": torch.get_num_threads()},
        checks={"losses": losses, "gradients apart": apart, "peak MiB": memory, "our TFLOP/s": effective},
    )


def make_head(options: Options) -> tuple[Head, int]:
    """The contenders' common inputs, and their number of tokens."""
    from megatron.core import parallel_state

    connect(options.device)
    config = gpt1(options, 1)
    model = config.model
    tokens = 512 if options.quick else TOKENS[options.device]
    assert model.vocab_size is not None, "it is known here"
    group = ProcessGroups(config).tensor_group
    parallel_state._TENSOR_MODEL_PARALLEL_GROUP = group  # where Megatron's own loss looks
    tensor = TensorParallel(group)
    torch.manual_seed(0)
    embedding = TokenEmbedding(architecture(model, model.vocab_size).layers[0], model, tensor)
    with torch.no_grad():
        embedding.weight[: model.vocab_size].normal_(0, 0.02)
    embedding = embedding.to(options.device, torch.bfloat16)
    shape = (tokens // 4, 4)
    hidden = torch.randn(*shape, model.width, device=options.device).bfloat16().requires_grad_()
    labels = torch.randint(0, model.vocab_size, shape, device=options.device)
    weights = torch.full(shape, 1 / tokens, device=options.device)
    return Head(embedding, tensor, hidden, labels, weights), tokens


def agree(head: Head, ways: dict[str, Run]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Losses, and how far each way's gradients are from the plain one's, relative to their size."""
    head.run(head.plain)
    wanted, losses, apart = head.gradients(), {}, {}
    for name, forward in ways.items():
        losses[name] = float(head.run(forward))
        apart[name] = [float((a - b).norm() / b.norm()) for a, b in zip(head.gradients(), wanted, strict=True)]
        assert max(apart[name]) < AGREEMENT, (name, apart)
        assert abs(losses[name] - losses["ours"]) < AGREEMENT, losses
    return losses, apart


def peak_bytes(work: Callable[[], Any], device: str) -> int:
    """The most memory that is held while `work` runs, above what is held before it."""
    if device == "cuda":
        wait_for(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        wait_for(device)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    before = _resident("VmRSS")
    work()
    return max(_resident("VmHWM") - before, os.sysconf("SC_PAGE_SIZE"))


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
