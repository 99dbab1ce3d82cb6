"""Our engine as `gpt1-ds pretrain` builds it, and what its peers share with it: weights, tokens and settings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt1_ds.config import Config, load
from tools.bench.rows import Options

if TYPE_CHECKING:
    from gpt1_ds.interop.families.family import Family
    from gpt1_ds.interop.families.rules import Facts

LEARNING_RATE = 1e-5  # of everybody
BATCHES = 8  # taken in turn
TINY = ["model.layers=2", "model.width=64", "model.heads=4", "model.context=32", "model.vocab_size=500"]


def gpt1(options: Options, rows: int, *arguments: str) -> Config:
    """Full-size GPT-1 in bf16, `rows` sequences a step in one micro-batch; a tiny one where it has to be quick."""
    arguments = (f"train.global_batch={rows}", f"train.micro_batch={rows}", "train.precision=bf16", *arguments)
    return load(["pretrain/gpt1_117m"], [*arguments, *(TINY if options.quick else [])])


def tokens_per_step(config: Config) -> int:
    return config.train.global_batch * config.model.context


def can_compile(options: Options) -> bool:
    """Whether torch.compile works here; not asked where it has to be quick."""
    import torch

    if options.quick:
        return False
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device=options.device))
    except Exception:
        return False
    return True


@functools.cache
def connect(device: str) -> None:
    """Join a process group of this process alone."""
    import torch

    from gpt1_ds.engine import process_groups
    from gpt1_ds.model import proof

    proof.decide(True)  # it is the speed of the kernels that is measured
    process_groups.connect(600, torch.device("cpu") if device == "cpu" else None)


def initial_weights(config: Config) -> dict[str, Any]:
    """Canonical name -> fp32 tensor: the weights that `build_engine` draws."""
    from gpt1_ds.architecture.architecture import architecture
    from gpt1_ds.architecture.head import pretraining_head
    from gpt1_ds.model.names import ParameterInfo, initial_value

    assert config.model.vocab_size is not None, "it is known here"
    parameters = architecture(config.model, config.model.vocab_size, pretraining_head(config)).parameters
    return {name: initial_value(ParameterInfo.whole(one), config.run.seed) for name, one in parameters.items()}


def give_weights(theirs: Any, family: Family, config: Config, facts: Facts) -> set[str]:
    """Gives a model of transformers our first weights. Returns the names of what it got none for."""
    state: dict[str, Any] = {}
    for name, value in initial_weights(config).items():
        state.update({family.full(short): part for short, part in family.to_theirs(name, value, facts).items()})
    unread = theirs.load_state_dict(state, strict=False)
    assert not unread.unexpected_keys, unread
    return set(unread.missing_keys)


class Text:
    """Random tokens: the batch of step k is the same for everybody, micro-batches included."""

    def __init__(self, config: Config) -> None:
        import numpy as np

        from gpt1_ds.data.loader import BatchShape, Rows
        from gpt1_ds.engine.build import training_batches
        from gpt1_ds.objectives.causal import Causal

        shape, draw = BatchShape(config.train.global_batch, config.train.micro_batch), np.random.default_rng(0)
        size = (config.train.micro_batch, config.model.context + 1)
        self._batches = []
        for step in range(BATCHES):
            rows = [Rows(draw.integers(0, config.model.vocab_size, size), numbers) for numbers in shape.rows()]
            self._batches.append(training_batches(Causal(), rows, config.run.seed, step))

    def ours(self, step: int) -> Sequence[Any]:
        """Micro-batches as our engine takes them."""
        return self._batches[step % BATCHES]

    def bare(self, step: int) -> list[tuple[Any, ...]]:
        """The same as DenseModel takes them."""
        return [(*one.inputs, *one.labels) for one in self.ours(step)]

    def plain(self, step: int) -> list[tuple[Any, ...]]:
        """(tokens [B, S], labels [B, S]) of each micro-batch."""
        return [(one.inputs[0].T.contiguous(), one.labels[0].T.contiguous()) for one in self.ours(step)]


class Ours:
    """The engine of a configuration; `text.ours` gives the batches of a step, `rate` is the learning rate."""

    def __init__(self, config: Config, text: Any, device: str, rate: float = LEARNING_RATE) -> None:
        from gpt1_ds.engine.build import build_engine
        from gpt1_ds.engine.process_groups import ProcessGroups
        from gpt1_ds.engine.session import keep_freed_blocks

        connect(device)
        keep_freed_blocks()
        self.config, self.text, self.rate, self.steps = config, text, rate, 0
        self.engine: Any = build_engine(config, ProcessGroups(config))

    def step(self) -> float:
        """One optimizer step; its loss."""
        result = self.engine.step(self.text.ours(self.steps), self.rate)
        assert result.applied, f"step {self.steps} was left out"
        self.steps += 1
        return float(result.loss)
