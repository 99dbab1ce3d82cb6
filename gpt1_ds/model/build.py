"""From an architecture to torch modules, which both engines run: one module, or a pipeline.

(hidden states [S, B, D] of each stack, facts of the rows int64 [B, 3]) pass from layer to layer, with relative
positions' tables between them (model/block.py). At the end, where no pipeline cuts, a task head puts scores in the
place of the facts, and a masked head the logits' bias before them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.architecture import Architecture, architecture
from gpt1_ds.architecture.facts import COLUMNS, SECOND, UNTIL
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import Config
from gpt1_ds.config.policy import is_compiled
from gpt1_ds.model import names
from gpt1_ds.model.block import Block
from gpt1_ds.model.heads import FinalNorm, Head, PositionEmbedding, TokenEmbedding
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import TaskLoss, make_loss
from gpt1_ds.model.lstm import Lstm
from gpt1_ds.model.masked_head import MaskedHead
from gpt1_ds.model.sentence_head import SentenceHead
from gpt1_ds.model.task_head import PooledHead, TaskHead


@dataclass(frozen=True)
class ModuleSpec:
    """How to build a layer. Tied layers share one module; `apply` is what a later one calls on it."""

    layer: Layer
    module: type[nn.Module]
    arguments: tuple[Any, ...]
    apply: Callable[[Any, tuple[Tensor, ...]], Any] | None = None


def module_specs(
    model: Architecture, config: Config, tensor: TensorParallel, head: HeadSpec | None = None
) -> list[ModuleSpec]:
    """One for each layer. The first takes (token ids [S, B] of each stack, facts [B, 3]); the last gives what the loss
    asks for: the head's projection, with a task's `head` also its scores [S, B, O], or (hidden [S, B, D], scores) where
    the language model's loss counts nothing.
    """
    recompute = config.train.recompute == "block"
    known: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
        "tokens": (TokenEmbedding, (config.model, tensor)),
        "positions": (PositionEmbedding, (config.model, tensor)),
        "block": (Block, (config.model, tensor, recompute)),
        "lstm": (Lstm, (config.model, tensor)),
        "norm": (FinalNorm, (config.model, tensor)),
        "task_head": (_task_head(head), (head, tensor)),
        "masked_head": (MaskedHead, (config.model, tensor)),
        "head": (TokenEmbedding, (config.model, tensor)),
    }
    projection = language_head if head is None or head.kind == "text" else both_heads
    if not config.model.tied:
        known["head"] = (Head, (config.model, tensor, projection))
    specs = []
    for layer in model.layers:
        module, arguments = known[layer.kind]
        is_tied_head = layer.kind == "head" and layer.tied is not None
        specs.append(ModuleSpec(layer, module, (layer, *arguments), projection if is_tied_head else None))
    return specs


def _task_head(head: HeadSpec | None) -> type[nn.Module]:
    if head is not None and head.loss is not None:
        return SentenceHead
    return TaskHead if head is None or head.kind == "linear" else PooledHead


def compiles(config: Config) -> bool:
    """Whether `train.compile` means that blocks are compiled here: auto does on a GPU, by Triton."""
    if config.train.compile == "auto" and not (torch.cuda.is_available() and importlib.util.find_spec("triton")):
        return False
    return is_compiled(config)


def compile_blocks(model: nn.Module) -> None:
    """torch.compile every block; they share one graph for training and one for evaluation, and from the second length
    on one of each for all lengths. What cannot be compiled runs as it is. On a GPU also the sum of the embeddings and
    its dropout, which would be 36 kernels more (on a CPU its numbers would change).
    """
    compiled = (Block, PositionEmbedding) if torch.cuda.is_available() else (Block,)
    for module in model.modules():
        if isinstance(module, compiled):
            module.compile()


def language_head(tokens: TokenEmbedding, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden_SBD, *bias, _facts = inputs
    return (*tokens.projection(hidden_SBD), *bias)


def both_heads(tokens: TokenEmbedding, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    hidden_SBD, *bias, scores_SBO = inputs
    return (*tokens.projection(hidden_SBD), *bias, scores_SBO)


class DenseModel(nn.Module):
    """All layers in one module, for ranks that hold every layer. Its loss is called `loss`."""

    def __init__(self, config: Config, vocab_size: int, tensor: TensorParallel, head: HeadSpec | None = None) -> None:
        super().__init__()
        specs = module_specs(architecture(config.model, vocab_size, head), config, tensor, head)
        body = [spec for spec in specs if spec.layer.kind not in ("task_head", "masked_head", "head")]
        self.layers = nn.ModuleList(spec.module(*spec.arguments) for spec in body)
        heads = {str(spec.layer.kind): spec.module(*spec.arguments) for spec in specs[len(body) :] if not spec.apply}
        self.heads = nn.ModuleDict(heads)  # task_head, masked_head, a head that is not tied: where there is one
        self.projection = next((spec.apply for spec in specs if spec.apply), None)
        names.share(self)
        self.loss = make_loss(head, vocab_size, tensor)
        self.stacks, self.context = config.model.stacks, config.model.context
        self._encoded = 2 + config.model.layers + 1  # layers up to the encoder's norm, where there is one

    @property
    def tokens(self) -> TokenEmbedding:
        return self.layers[0]  # type: ignore[return-value]

    @property
    def output(self) -> TokenEmbedding:
        """What makes logits of states."""
        own: dict[str, Any] = dict(self.heads.items())
        return own.get("head", self.tokens)  # type: ignore[no-any-return]

    def forward(self, *tensors: Tensor) -> Tensor:
        """fp32 scalar loss of one micro-batch: of the tokens of each stack, the facts of the rows, and the labels that
        the loss asks for (see model/losses.py). Of the tokens of each stack alone, as people write them: logits.
        """
        if len(tensors) <= self.stacks:
            return self.batch_first(*tensors)
        state: Any = self.run(tensors[: self.stacks + 1])
        for head in self.heads.values():
            state = head(state)
        if self.projection is not None:
            state = self.projection(self.tokens, state)
        return self.loss(state, tensors[self.stacks + 1 :])

    def batch_first(self, *ids: Tensor) -> Tensor:
        """fp32 logits [B, S, V], with gradients, of ids [B, S], each row of which is one text without padding; of an
        encoder-decoder logits [B, T, V] of its source [B, S] and of what its decoder reads [B, T].

        Raises ConfigError for another number of arguments, for ids of another shape or vocabulary, and for too many.
        """
        if len(ids) != self.stacks:
            wanted = "the source's and the target's ids" if self.stacks == 2 else "one batch of ids"
            raise ConfigError(f"model(...) takes {wanted}, [batch, positions]; it was given {len(ids)}")
        ConfigError.raise_all(_id_problems(ids, self.output.vocab_size, self.context))
        tokens = tuple(part.T.long().to(self.tokens.weight.device) for part in ids)
        if self.stacks == 1:
            return self.logits(tokens[0]).transpose(0, 1)[..., : self.output.vocab_size].float()
        states_TBD, *_ = self.run((*tokens, _whole_rows(tokens[0])))
        return self.logits_of(states_TBD).transpose(0, 1)[..., : self.output.vocab_size].float()

    def hidden(
        self, tokens_SB: Tensor, facts_B3: Tensor | None = None, caches: Sequence[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """(states after the last block [S, B, D], facts); with `caches` (of `self.caches`) the S positions follow those
        that the caches hold. Without facts every row is one segment of S tokens.
        """
        hidden_SBD, facts_B3 = self.run((tokens_SB, _whole_rows(tokens_SB) if facts_B3 is None else facts_B3), caches)
        return hidden_SBD, facts_B3

    def run(self, state: tuple[Tensor, ...], caches: Sequence[Any] | None = None) -> tuple[Tensor, ...]:
        """Through all layers but the heads: from (tokens [S, B] of each stack, facts) to (last states, facts)."""
        for index, layer in enumerate(self.layers):
            state = layer(state) if caches is None else layer(state, caches[index])
        return state

    def logits(self, tokens_SB: Tensor, facts_B3: Tensor | None = None, caches: Sequence[Any] | None = None) -> Tensor:
        """[S, B, V] of the language model; arguments are those of `hidden`."""
        hidden_SBD, _ = self.hidden(tokens_SB, facts_B3, caches)
        return self.logits_of(hidden_SBD)

    def logits_of(self, hidden_SBD: Tensor) -> Tensor:
        """[S, B, V] of the language model, from states after the last block, of any positions."""
        biases: list[Tensor] = []
        if "masked_head" in self.heads:
            hidden_SBD, *biases, _ = self.heads["masked_head"]((hidden_SBD, None))
        return self.output.logits(hidden_SBD, *biases)

    def scores(self, tokens_SB: Tensor, extract_B: Tensor, facts_B3: Tensor | None = None) -> Tensor:
        """fp32 [E, K]: of each example's classes or choices, before the softmax; or its score. What is read is the
        extract token, or of a bidirectional model the first one, position 0.
        """
        assert isinstance(self.loss, TaskLoss), "this model was fine-tuned on a task, and has its loss"
        _, scores_SBO = self.heads["task_head"](self.hidden(tokens_SB, facts_B3))
        return self.loss.scores_at(scores_SBO, extract_B)

    def encode(self, source_SB: Tensor, facts_B3: Tensor) -> tuple[Tensor, ...]:
        """What a decoder reads of a source: (memory [S, B, D], relative positions' tables if there are any)."""
        state: tuple[Tensor, ...] = (source_SB, source_SB[:1], facts_B3)
        for layer in self.layers[: self._encoded]:
            state = layer(state)
        memory_SBD, _target, *tables, _facts = state
        return memory_SBD, *tables

    def decode(self, memory: tuple[Tensor, ...], target_TB: Tensor, facts_B3: Tensor, caches: Sequence[Any]) -> Tensor:
        """[T, B, D]: the last states of these T positions, which follow those that the caches hold."""
        state: tuple[Tensor, ...] = (target_TB, facts_B3)
        ends, blocks = self.layers[:2], self.layers[self._encoded :]
        for layer, cache in zip(ends, caches, strict=False):
            state = layer(state, cache)
        memory_SBD, *tables = memory
        state = (memory_SBD, state[0], *tables, facts_B3)
        for layer, cache in zip(blocks, caches[2:], strict=True):
            state = layer(state, cache)
        return state[0]

    def caches(self) -> list[Any]:
        """Empty ones, one per layer that sees new positions; None for one that looks at one position only."""
        new = [*self.layers[:2], *self.layers[self._encoded :]] if self.stacks == 2 else self.layers
        return [layer.new_cache() for layer in new]  # type: ignore[operator]


def _id_problems(ids: Sequence[Tensor], vocab_size: int, context: int) -> Iterator[str]:
    for part in ids:
        if not isinstance(part, Tensor) or part.is_floating_point() or part.dim() != 2 or not part.numel():
            told = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            yield f"model(ids): {told} is no batch of ids; give a tensor of integers [batch, positions]"
        elif not 0 <= int(part.min()) <= int(part.max()) < vocab_size:
            yield f"model(ids): an id is not in the vocabulary of {vocab_size}: {int(part.min())} to {int(part.max())}"
        elif part.shape[1] > context:
            yield f"model(ids): {part.shape[1]} positions; the model sees {context} (model.context): give fewer"


def _whole_rows(tokens_SB: Tensor) -> Tensor:
    """Facts [B, 3] of rows of S tokens in one segment, for a model without dropout."""
    positions, rows = tokens_SB.shape
    facts_B3 = tokens_SB.new_zeros(rows, COLUMNS)
    facts_B3[:, UNTIL] = facts_B3[:, SECOND] = positions
    return facts_B3
