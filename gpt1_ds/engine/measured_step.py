"""What `train.watch` measures inside one optimizer step: hooks collect it, `sums` adds it up over the ranks.

A rank sums squares over those elements of the optimizer's tensors that it alone counts (master_weights.py), so one sum
over all ranks is right under every layout: of tensor-parallel slices, of ZeRO's partitions, and of weights that several
stages hold. All numbers of a step travel in that one sum.

Shapes: K kinds of layers, O kinds of outputs, P buckets of positions, Q sources of text, W ranks, S positions of a row,
B rows of a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt1_ds.engine.base import Engine
from gpt1_ds.engine.gradient_norm import square_sum
from gpt1_ds.engine.master_weights import counted_parts
from gpt1_ds.model import names
from gpt1_ds.model.embeddings import PositionEmbedding
from gpt1_ds.model.losses import language_loss
from gpt1_ds.model.transformer import Attention, Block, CrossAttention, Mlp

KINDS = {  # by what ends or begins a canonical name without .weight and .bias, the first that fits
    "_norm": "norms",
    "masked.norm": "norms",
    "tokens": "embedding",
    "positions": "positions",
    "segments": "positions",
    "relative": "positions",
    "attention.qkv": "attention_qkv",
    "attention.out": "attention_out",
    "cross.q": "cross_qkv",
    "cross.kv": "cross_qkv",
    "cross.out": "cross_out",
    "mlp.up": "mlp_in",
    "mlp.down": "mlp_out",
    "lstm.cell": "lstm_cell",
    "lstm.out": "lstm_out",
}
OUTPUTS: dict[type[nn.Module], str] = {
    PositionEmbedding: "embedding",
    Attention: "attention",
    CrossAttention: "cross",
    Mlp: "mlp",
    Block: "block",
}
OUTPUT_KINDS = list(OUTPUTS.values())
POSITIONS = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384)  # where buckets of positions begin


def layer_kind(name: str) -> str:
    """Returns the kind of layer of a canonical parameter name; a bias has that of its matrix. A head that is tied to
    the token embedding is `embedding`, any other is `head`.
    """
    place = name.rpartition(".")[0]
    return next((kind for end, kind in KINDS.items() if place.endswith(end)), "head")


def bucket_names(context: int) -> list[str]:
    """Returns the names of the buckets of positions of rows of `context` tokens: 0, 1-3, 4-15, ..."""
    starts = [start for start in POSITIONS if start < context]
    ends = [*(start - 1 for start in starts[1:]), context - 1]
    return [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Measured:
    """Which measurements are taken besides norms."""

    losses: bool = False  # of tokens, by position and by source
    noise: bool = False  # squared norms of the gradients of single micro-batches
    activations: bool = False  # largest outputs


@dataclass(frozen=True)
class StepSums:
    """The numbers of one step, added up over all ranks."""

    gradients: list[float]  # [K], squared norms of the whole gradient, before clipping
    weights: list[float]  # [K], squared norms after the update
    updates: list[float]  # [K], squared norms of what the update has changed
    micro_batches: list[float]  # [2], the squared norms of the gradients of all micro-batches, and their number
    activations: list[list[float]]  # [O, W], largest absolute values of each rank, 0 where there is none
    losses: list[float]  # [P], nats times the weights of the tokens
    loss_weights: list[float]  # [P]
    source_losses: list[float]  # [Q], nats times the weights of the tokens
    source_weights: list[float]  # [Q]


class MeasuredStep:
    """One step. It puts hooks and an observer into the engine; `stop` removes them."""

    def __init__(self, engine: Engine, buckets: int, measured: Measured) -> None:
        self.engine, self.groups, self.buckets = engine, engine.groups, buckets
        self.loss_scale = engine.loss_scale()  # the step may change it
        self.parts = counted_parts(engine)
        self.gradient_squares: dict[str, list[Tensor]] = {}  # by kind of layer
        self.update_squares: dict[str, list[Tensor]] = {}
        self.micro_batch_squares: list[Tensor] = []  # of gradients of one micro-batch, parameter by parameter
        self.largest_outputs: dict[str, list[Tensor]] = {}  # by kind of output
        self.tokens: list[tuple[Tensor, Sequence[Tensor]]] = []  # of each micro-batch: nats of its tokens, its labels
        self._weights_before: dict[Tensor, Tensor] = {}  # of the update under way
        self._updated: set[Tensor] = set()
        self._handles: list[Any] = [
            engine.optimizer.register_step_pre_hook(self._before_update),
            engine.optimizer.register_step_post_hook(self._after_update),
        ]
        self._loss = language_loss(engine.loss) if measured.losses else None
        if self._loss is not None:
            self._loss.observer = self._store_for_losses
        if measured.noise:
            for parameter in engine.module.parameters():
                # of equal copies on tensor-parallel ranks the first one counts
                counts = names.info(parameter).dim is not None or self.groups.tensor_rank == 0
                if parameter.requires_grad and counts:
                    self._handles.append(parameter.register_hook(self._on_gradient))
        if measured.activations:
            for module in engine.module.modules():
                if type(module) in OUTPUTS:
                    self._handles.append(module.register_forward_hook(self._on_output))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._loss is not None:
            self._loss.observer = None

    def sums(self, kinds: Sequence[str], sources: int, source_of: Sequence[Tensor]) -> StepSums:
        """Returns everything that was measured, added up in one reduction, which all ranks call. `source_of` are the
        sources of the rows of each micro-batch.
        """
        device = self.engine.device
        losses_2P, losses_2Q = self._loss_sums(sources, source_of)
        values = {
            "gradients": _by_kind(self.gradient_squares, kinds, device),
            "weights": _by_kind(self._weight_squares(), kinds, device),
            "updates": _by_kind(self.update_squares, kinds, device),
            "micro_batches": self._micro_batch_sums(),
            "activations": self._largest_of_ranks(),
            "losses": losses_2P[0],
            "loss_weights": losses_2P[1],
            "source_losses": losses_2Q[0],
            "source_weights": losses_2Q[1],
        }
        packed = torch.cat([value.flatten() for value in values.values()])
        if self.groups.world > 1:
            dist.all_reduce(packed)
        parts = packed.cpu().split([value.numel() for value in values.values()])
        items = zip(values.items(), parts, strict=True)
        return StepSums(**{name: part.view(value.shape).tolist() for (name, value), part in items})

    def _weight_squares(self) -> dict[str, list[Tensor]]:
        squares: dict[str, list[Tensor]] = {}
        for flat, parts in self.parts.items():
            _add_squares(squares, flat, parts)
        return squares

    def _micro_batch_sums(self) -> Tensor:
        """Returns [2]: the squared norms of the micro-batches' gradients, without the loss scale and the division by
        the number of micro-batches, and how many this rank counts: once among the ranks of a replica.
        """
        scale = self.engine.micro_batches / self.loss_scale
        square = _total(self.micro_batch_squares, self.engine.device) * scale**2
        is_counted = self.groups.tensor_rank == 0 and self.groups.is_first_stage
        count = self.engine.micro_batches if self.micro_batch_squares and is_counted else 0
        return torch.stack([square, torch.tensor(float(count), dtype=torch.float64, device=self.engine.device)])

    def _largest_of_ranks(self) -> Tensor:
        """Returns [O, W] with this rank's largest values in its column: a sum over ranks then has those of each."""
        largest_OW = _zeros(len(OUTPUT_KINDS), self.groups.world, device=self.engine.device)
        for row, kind in enumerate(OUTPUT_KINDS):
            if kind in self.largest_outputs:
                largest_OW[row, self.groups.rank] = torch.stack(self.largest_outputs[kind]).max()
        return largest_OW

    def _loss_sums(self, sources: int, source_of: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns weighted losses and weights by position [2, P] and by source [2, Q]."""
        device = self.engine.device
        by_position, by_source = _zeros(2, self.buckets, device=device), _zeros(2, sources, device=device)
        for number, (nats, labels) in enumerate(self.tokens if self.groups.tensor_rank == 0 else ()):
            positions_2P, rows_2B = self._loss_sums_of(nats, labels)
            by_position += positions_2P
            if source_of:
                by_source.index_add_(1, source_of[number].to(device), rows_2B)
        return by_position, by_source

    def _loss_sums_of(self, nats: Tensor, labels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns weighted losses and weights of a micro-batch, [2, P] and [2, B]. Of labels [S, B] the position is the
        first index; where few count, the first of three labels has their positions.
        """
        *places, weights = (*labels[:-2], labels[-1])
        at = places[0] if places else torch.arange(len(weights), device=nats.device)[:, None].expand_as(weights)
        starts = torch.tensor(POSITIONS[1 : self.buckets], device=nats.device)
        both = torch.stack([nats.view_as(weights) * weights, weights]).double()
        by_position = _zeros(2, self.buckets, device=nats.device)
        by_position.index_add_(1, torch.bucketize(at.flatten(), starts, right=True), both.flatten(1))
        return by_position, both.sum(1)

    @torch.no_grad()
    def _before_update(self, optimizer: Any, *_: Any) -> None:
        """Before the update of some tensors: gradients are whole, times a factor that all of a step's have."""
        for group in optimizer.param_groups:
            for flat in group["params"]:
                if flat.grad is None or flat in self._updated:
                    continue
                self._updated.add(flat)
                if flat in self.parts:
                    _add_squares(self.gradient_squares, flat.grad, self.parts[flat])
                    self._weights_before[flat] = flat.detach().clone()

    @torch.no_grad()
    def _after_update(self, *_: Any) -> None:
        for flat, before in self._weights_before.items():
            _add_squares(self.update_squares, before.sub_(flat), self.parts[flat])
        self._weights_before.clear()

    def _on_gradient(self, gradient: Tensor) -> None:
        """A hook that gets a micro-batch's whole gradient of a parameter, before it is added to others."""
        self.micro_batch_squares.append(square_sum([gradient]).double())

    def _on_output(self, module: nn.Module, _: Any, output: Any) -> None:
        """A forward hook."""
        values = (output,) if isinstance(output, Tensor) else output.stacks
        if isinstance(module, Block):
            values = (values[module.stack],)
        for value in values:
            largest = torch.linalg.vector_norm(value.detach(), math.inf).double()
            self.largest_outputs.setdefault(OUTPUTS[type(module)], []).append(largest)

    def _store_for_losses(self, labels: Sequence[Tensor]) -> Tensor:
        """Returns the tensor into which the loss of a micro-batch writes the nats of each token."""
        nats = torch.empty_like(labels[-1]).flatten()
        self.tokens.append((nats, labels))
        return nats


def _add_squares(squares: dict[str, list[Tensor]], flat: Tensor, parts: Iterable[tuple[Any, int, int]]) -> None:
    """Adds to `squares`, by kind of layer, the sums of squares of the parts of a tensor."""
    values = flat.detach().view(-1)
    parts_of_kind: dict[str, list[Tensor]] = {}
    for info, start, count in parts:
        parts_of_kind.setdefault(layer_kind(info.name), []).append(values.narrow(0, start, count))
    for kind, tensors in parts_of_kind.items():
        squares.setdefault(kind, []).append(square_sum(tensors).double())


def _by_kind(squares: dict[str, list[Tensor]], kinds: Sequence[str], device: torch.device) -> Tensor:
    """Returns [K], the sum of the squares of each kind of layer."""
    return torch.stack([_total(squares.get(kind, ()), device) for kind in kinds])


def _total(values: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack(list(values)).sum() if values else _zeros(device=device)


def _zeros(*shape: int, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=device)
