"""From an architecture to torch modules, which both engines run: one module, or a pipeline. Each maps States to States
(model/states.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpt1_ds.architecture.architecture import Architecture, architecture
from gpt1_ds.architecture.facts import COLUMNS, KEY, SECOND, UNTIL
from gpt1_ds.architecture.head import HeadSpec
from gpt1_ds.architecture.layer import Layer
from gpt1_ds.common.errors import ConfigError, UserError, one_line
from gpt1_ds.common.files import explain
from gpt1_ds.common.log import LOGGER
from gpt1_ds.config import Config
from gpt1_ds.config.policy import is_compiled
from gpt1_ds.model import names
from gpt1_ds.model.caches import Caches, Columns
from gpt1_ds.model.embeddings import PositionEmbedding, TokenEmbedding
from gpt1_ds.model.heads import FinalNorm, Head, MaskedHead, PooledHead, SentenceHead, TaskHead
from gpt1_ds.model.layers import TensorParallel
from gpt1_ds.model.losses import TaskLoss, make_loss
from gpt1_ds.model.lstm import Lstm
from gpt1_ds.model.states import States
from gpt1_ds.model.transformer import Block


@dataclass(frozen=True)
class ModuleSpec:
    """How to build a layer. Tied layers share one module; the later one calls `apply` with it."""

    layer: Layer
    module: type[nn.Module]
    arguments: tuple[Any, ...]
    apply: Callable[[Any, States], States] | None = None


def module_specs(
    model: Architecture, config: Config, tensor: TensorParallel, head: HeadSpec | None = None
) -> list[ModuleSpec]:
    """Returns one for each layer. The first takes token ids [S, B] of each stack; the last leaves what a loss reads."""
    recompute = config.train.recompute == "block"
    known: dict[str, tuple[type[nn.Module], tuple[Any, ...]]] = {
        "tokens": (TokenEmbedding, (config.model, tensor)),
        "positions": (PositionEmbedding, (config.model, tensor)),
        "block": (Block, (config.model, tensor, recompute)),
        "lstm": (Lstm, (config.model, tensor)),
        "norm": (FinalNorm, (config.model, tensor)),
        "task_head": (_task_head(head), (head, tensor)),
        "masked_head": (MaskedHead, (config.model, tensor)),
        "head": (TokenEmbedding if config.model.tied else Head, (config.model, tensor)),
    }
    specs = []
    for layer in model.layers:
        module, arguments = known[layer.kind]
        is_tied_head = layer.kind == "head" and layer.tied is not None
        specs.append(ModuleSpec(layer, module, (layer, *arguments), TokenEmbedding.project if is_tied_head else None))
    return specs


def _task_head(head: HeadSpec | None) -> type[nn.Module]:
    if head is not None and head.loss is not None:
        return SentenceHead
    return TaskHead if head is None or head.kind == "linear" or head.reads_tokens else PooledHead


def compiles(config: Config) -> bool:
    """Returns whether `train.compile` means that blocks are compiled here: auto does on a GPU, by Triton."""
    if config.train.compile == "auto" and not (torch.cuda.is_available() and importlib.util.find_spec("triton")):
        return False
    return is_compiled(config)


def compile_blocks(model: nn.Module) -> None:
    """torch.compile every block; they share one graph for training and one for evaluation, and from the second length
    on one of each for all lengths. What cannot be compiled runs as it is. On a GPU also the sum of the embeddings and
    its dropout, which would be 36 kernels more (on a CPU its numbers would change).
    """
    # of kinds of shapes (one row, one position, ...): beyond it blocks run as they are
    torch._dynamo.config.recompile_limit = max(32, torch._dynamo.config.recompile_limit)
    compiled = (Block, PositionEmbedding) if torch.cuda.is_available() else (Block,)
    for module in model.modules():
        if isinstance(module, compiled):
            module.compile()


@contextlib.contextmanager
def naming_compilation() -> Iterator[None]:
    """Raises UserError where torch could not compile in this block: no compiler, no place for what it makes."""
    try:
        yield
    except RuntimeError as error:
        cause: Exception | None = getattr(error, "inner_exception", None)  # torch's BackendCompilerFailed has one
        if cause is None:
            raise
        LOGGER.debug("torch's compiler failed", exc_info=True)
        said = one_line(getattr(cause, "output", cause), 500)  # of a C++ compiler; before it stands a long command
        if isinstance(cause, OSError):
            # slow to load, but a compiler that failed has loaded it
            from torch._inductor.runtime.cache_dir_utils import cache_dir

            cause.filename = cause.filename or cache_dir()
            if explained := explain(cause):
                raise explained from error
        raise UserError(f"train.compile: torch cannot compile here ({said}); use train.compile=off") from error


class DenseModel(nn.Module):
    """All layers in one module, for ranks that hold every layer. Its loss is called `loss`."""

    def __init__(self, config: Config, vocab_size: int, tensor: TensorParallel, head: HeadSpec | None = None) -> None:
        super().__init__()
        specs = module_specs(architecture(config.model, vocab_size, head), config, tensor, head)
        body = [spec for spec in specs if spec.layer.kind not in ("task_head", "masked_head", "head")]
        self.layers = nn.ModuleList(spec.module(*spec.arguments) for spec in body)
        heads = {str(spec.layer.kind): spec.module(*spec.arguments) for spec in specs[len(body) :] if not spec.apply}
        self.heads = nn.ModuleDict(heads)  # task_head, masked_head, a head that is not tied: where there is one
        self.has_tied_head = any(spec.apply for spec in specs)
        names.share(self)
        self.loss = make_loss(config, head, vocab_size, tensor)
        self.stacks, self.context = config.model.stacks, config.model.context
        norms = [number for number, spec in enumerate(body) if spec.layer.kind == "norm"]
        self._encoded = norms[0] + 1 if self.stacks == 2 else 0  # the encoder's layers, both embeddings first

    @property
    def tokens(self) -> TokenEmbedding:
        return self.layers[0]  # type: ignore[return-value]

    @property
    def output(self) -> TokenEmbedding:
        """Returns the function that makes logits of states."""
        return getattr(self.heads, "head", self.tokens)  # type: ignore[return-value]

    def forward(self, *tensors: Tensor) -> Tensor:
        """Returns a fp32 scalar loss of one micro-batch: of the tokens of each stack, the facts of the rows, and the
        labels that the loss asks for (see model/losses.py). Of the tokens of each stack alone, as people write them:
        logits.
        """
        if len(tensors) <= self.stacks:
            return self.batch_first(*tensors)
        *ids, facts_BF = tensors[: self.stacks + 1]
        states = self.states(*ids, facts_BF=facts_BF)
        for head in self.heads.values():
            states = head(states)
        if self.has_tied_head:
            states = self.tokens.project(states)
        return self.loss(states, tensors[self.stacks + 1 :])

    def batch_first(self, *ids: Tensor) -> Tensor:
        """Returns fp32 logits [B, S, V], with gradients, of ids [B, S], each row of which is one text without padding;
        of an encoder-decoder logits [B, T, V] of its source [B, S] and of what its decoder reads [B, T]. After
        `train()` with the dropout of the configuration, which torch's generator draws anew at each call.

        Raises ConfigError for another number of arguments, for ids of another shape or vocabulary, and for too many.
        """
        if len(ids) != self.stacks:
            wanted = "the source's and the target's ids" if self.stacks == 2 else "one batch of ids"
            raise ConfigError(f"model(...) takes {wanted}, [batch, positions]; it was given {len(ids)}")
        ConfigError.raise_all(_id_problems(ids, self.output.vocab_size, self.context))
        tokens = tuple(part.T.long().to(self.tokens.weight.device) for part in ids)
        if self.stacks == 1:
            return self.logits(tokens[0]).transpose(0, 1)[..., : self.output.vocab_size].float()
        states = self.states(*tokens, facts_BF=self._whole_rows(tokens[0]))
        return self.logits_of(states.last).transpose(0, 1)[..., : self.output.vocab_size].float()

    def states(self, *tokens_SB: Tensor, facts_BF: Tensor | None = None) -> States:
        """Returns the states after the last block, of the tokens of each stack. Without facts every row is one segment
        of S tokens.
        """
        states = States.of(tokens_SB, self._whole_rows(tokens_SB[0]) if facts_BF is None else facts_BF)
        for layer in self.layers:
            states = layer(states)
        return states

    def hidden(self, tokens_SB: Tensor, facts_BF: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """Returns [S, B, D], the last of `states`, of a model of one stack; with `caches` (of `self.caches`) the S
        positions follow those that the caches hold.
        """
        if caches is None:
            return self.states(tokens_SB, facts_BF=facts_BF).last
        states = States(tokens_SB, self._whole_rows(tokens_SB) if facts_BF is None else facts_BF)
        for layer, cache in zip(self.layers, caches.layers, strict=True):
            states = layer(states, cache)
        caches.columns.advance(len(tokens_SB))
        return states.last

    def logits(self, tokens_SB: Tensor, facts_BF: Tensor | None = None, caches: Caches | None = None) -> Tensor:
        """Returns [S, B, V] of the language model; arguments are those of `hidden`."""
        return self.logits_of(self.hidden(tokens_SB, facts_BF, caches))

    def logits_of(self, hidden_SBD: Tensor) -> Tensor:
        """Returns [S, B, V] of the language model, from states after the last block, of any positions."""
        bias_V = None
        if "masked_head" in self.heads:
            hidden_SBD, bias_V = self.heads["masked_head"].mapped(hidden_SBD)  # type: ignore[operator]
        return self.output.logits(hidden_SBD, bias_V)

    def scores(self, tokens_SB: Tensor, extract_B: Tensor, facts_BF: Tensor | None = None) -> Tensor:
        """Returns fp32 [E, K]: of each example's classes or choices, before the softmax; or its score. What is read is
        the extract token, or of a bidirectional model the first one, position 0.
        """
        assert isinstance(self.loss, TaskLoss), "this model was fine-tuned on a task, and has its loss"
        return self.loss.scores_at(self.heads["task_head"](self.states(tokens_SB, facts_BF=facts_BF)).scores, extract_B)

    def token_scores(self, tokens_SB: Tensor, facts_BF: Tensor) -> Tensor:
        """Returns fp32 [B, S, O]: of tags or spans, the scores of every token."""
        scores_SBO = self.heads["task_head"](self.states(tokens_SB, facts_BF=facts_BF)).scores
        return scores_SBO.float().transpose(0, 1)  # type: ignore[no-any-return]

    def encode(self, source_SB: Tensor, facts_BF: Tensor) -> States:
        """Returns what a decoder reads of a source: the memory [S, B, D] is the first stack's states."""
        states = States(source_SB, facts_BF, source_SB[:1])
        for layer in self.layers[: self._encoded]:
            states = layer(states)
        return states

    def decode(self, memory: States, target_TB: Tensor, caches: Caches) -> Tensor:
        """Returns [T, B, D]: the last states of these T positions, which follow those that the caches hold."""
        target, (ends, blocks) = States(target_TB, memory.facts_BF), (self.layers[:2], self.layers[self._encoded :])
        for layer, cache in zip(ends, caches.layers, strict=False):
            target = layer(target, cache)
        states = memory.with_stack(1, target.last)
        for layer, cache in zip(blocks, caches.layers[2:], strict=True):
            states = layer(states, cache)
        caches.columns.advance(len(target_TB))
        return states.last

    def caches(self, size: int | None = None, first_B: Tensor | None = None) -> Caches:
        """Returns empty ones, for `size` positions (None: a whole context). Rows that are shorter than others begin
        with padding: `first_B` says how much (None: none).
        """
        columns = Columns(size or self.context, first_B)
        new = [*self.layers[:2], *self.layers[self._encoded :]] if self.stacks == 2 else self.layers
        return Caches(columns, [layer.new_cache(columns) for layer in new])  # type: ignore[operator]

    def _whole_rows(self, tokens_SB: Tensor) -> Tensor:
        """Returns facts [B, 3] of rows of S tokens in one segment; after `train()` each row has dropout of its own,
        which torch's generator draws: an engine's rows have keys, those of people have none.
        """
        positions, rows = tokens_SB.shape
        facts_BF = tokens_SB.new_zeros(rows, COLUMNS)
        facts_BF[:, UNTIL] = facts_BF[:, SECOND] = positions
        if self.training:
            facts_BF[:, KEY] = torch.randint(1 << 62, (rows,), device=tokens_SB.device)
        return facts_BF


def _id_problems(ids: Sequence[Tensor], vocab_size: int, context: int) -> Iterator[str]:
    for part in ids:
        if not isinstance(part, Tensor) or part.is_floating_point() or part.dim() != 2 or not part.numel():
            what = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            yield f"model(ids): {what} is no batch of ids; give a tensor of integers [batch, positions]"
        elif not 0 <= int(part.min()) <= int(part.max()) < vocab_size:
            yield f"model(ids): an id is not in the vocabulary of {vocab_size}: {int(part.min())} to {int(part.max())}"
        elif part.shape[1] > context:
            yield f"model(ids): {part.shape[1]} positions; the model sees {context} (model.context): give fewer"
