"""`train.watch`: what a person watches of a logged step, measured beside it. No number of the training changes.

A rank sums squares over those elements of the optimizer's tensors that it alone counts (master_weights.py), so one sum
over all ranks is right under every layout: of tensor-parallel slices, of ZeRO's partitions, and of weights that several
stages hold. All numbers of a step travel in that one sum.

    norms   of gradients, weights and updates, by kind of layer
    all     also the gradient noise scale, the largest activations, and the loss by position and by source

What a layout cannot give is left out, and `omissions` says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpt1_ds.config import Config
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.data.windows import blend
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.engine.build import batch_shape
from gpt1_ds.engine.gradient_norm import square_sum
from gpt1_ds.engine.master_weights import counted_parts
from gpt1_ds.model import names
from gpt1_ds.model.embeddings import PositionEmbedding
from gpt1_ds.model.losses import language_loss
from gpt1_ds.model.transformer import Attention, Block, CrossAttention, Mlp

SMOOTHED = 10  # logged steps that the noise scale is a mean of
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
Values = dict[str, float | None]


def kind_of(name: str) -> str:
    """Returns the kind of layer of a canonical parameter name; a bias has that of its matrix. A head that is tied to
    the token embedding is `embedding`, any other is `head`.
    """
    place = name.rpartition(".")[0]
    return next((kind for end, kind in KINDS.items() if place.endswith(end)), "head")


def bucket_names(context: int) -> list[str]:
    """Returns the buckets of positions of rows of `context` tokens: 0, 1-3, 4-15, ..."""
    starts = [start for start in POSITIONS if start < context]
    ends = [*(start - 1 for start in starts[1:]), context - 1]
    return [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]


class Watch:
    """Measures the steps between `begin` and `end`. All ranks call both for the same steps."""

    def __init__(self, engine: Engine, config: Config, batch_sizes: BatchSizes) -> None:
        self.engine, self.level, self.batch_sizes = engine, config.train.watch, batch_sizes
        self.buckets = bucket_names(config.model.context)
        several = config.task is None and len(config.data.path) > 1
        paths = [source.path for source in config.data.path] if several else []
        folders = [Path(path).name for path in paths]
        self.sources = folders if len(set(folders)) == len(folders) else paths
        self._weights = [source.weight for source in config.data.path]
        self._shape = batch_shape(config, engine.groups)
        self.kinds = list(dict.fromkeys(map(kind_of, engine.architecture.parameters)))
        self.steps: deque[tuple[float, float]] = deque(maxlen=SMOOTHED)  # estimates of |G|^2 and tr(Sigma)
        self._measured: _Measured | None = None

    def omissions(self) -> Iterator[str]:
        """Yields what this run asked for and does not get, one line each."""
        if self.level != "all":
            return
        if self._is_graphed:
            yield "train.watch=all: micro-batches are CUDA graphs: norms alone are watched; train.cuda_graphs=off"
            return
        if not self._has_noise:
            yield "train.watch=all: the noise scale is left out: stages of a pipeline sum gradients of tied weights"
        if self._is_compiled:
            yield "train.watch=all: blocks are compiled: their largest activations are left out; train.compile=off"

    def begin(self, is_due: bool) -> None:
        """The next step is measured if `is_due`."""
        if self._measured is not None:
            self._measured.stop()  # a step that was rolled back
        self._measured = None
        if is_due:
            inside = self.level == "all" and not self._is_graphed
            self._measured = _Measured(
                self.engine, len(self.buckets), inside, inside and self._has_noise, inside and not self._is_compiled
            )

    def end(self, number: int, result: StepResult) -> dict[str, Any]:
        """Returns fields of the TrainRecord of the step on batch `number`; none where it was not measured."""
        measured, self._measured = self._measured, None
        if measured is None:
            return {}
        measured.stop()
        sums = measured.sums(self.kinds, len(self.sources), self._sources_of(number))
        found: dict[str, Any] = {"weight_norms": self._norms(sums["weights"])}
        if result.applied:
            total = sum(sums["gradients"]) or 1.0
            found["gradient_norms"] = self._norms([result.grad_norm**2 * part / total for part in sums["gradients"]])
            found["update_norms"] = self._norms(sums["updates"])
        if self.level == "all" and not self._is_graphed:
            found |= self._noise(self.batch_sizes.size(number), result, sums["micro_batches"])
            largest = [max(values) for values in sums["activations"]]
            found["largest_activations"] = _present(OUTPUT_KINDS, [value or None for value in largest])
            found["loss_by_position"] = _present(self.buckets, _means(sums["losses"], sums["loss_weights"]))
            found["loss_by_source"] = _present(self.sources, _means(sums["source_losses"], sums["source_weights"]))
        return {key: value for key, value in found.items() if value}

    def _sources_of(self, number: int) -> list[Tensor]:
        """Returns the source of each row [B] of this rank's micro-batches of batch `number`; none where one has all."""
        if not self.sources:
            return []
        shape = self._shape.of_batch(number, self.batch_sizes)
        sequence_G = shape.numbers(number)
        return [torch.from_numpy(blend(sequence_G[row_B], self._weights)[0]) for row_B in shape.rows()]

    def _norms(self, squares: Iterable[float]) -> Values:
        return {kind: _finite(math.sqrt(one)) for kind, one in zip(self.kinds, squares, strict=True)}

    def _noise(self, big: int, result: StepResult, sums: Sequence[float]) -> dict[str, float]:
        """The simple noise scale tr(Sigma) / |G|^2 of McCandlish et al. 2018, by appendix A.1: from the squared norm of
        the whole batch's gradient, of B sequences, and the mean of those of all micro-batches of all ranks, b sequences
        each. Both estimates are unbiased, their ratio is not: it is that of the means over the last logged steps.
        """
        square, count = sums
        if count < 2 or not result.applied:
            return {}
        small = big / count
        small_square = square / count
        gradient = (big * result.grad_norm**2 - small * small_square) / (big - small)
        variance = (small_square - result.grad_norm**2) / (1 / small - 1 / big)
        if not math.isfinite(gradient + variance):
            return {}
        self.steps.append((gradient, variance))
        below, above = (sum(values) for values in zip(*self.steps, strict=True))
        found = {"gradient_square": gradient, "gradient_variance": variance}
        return found | ({"noise_scale": above / below} if below > 0 else {})

    @property
    def _has_noise(self) -> bool:
        """Whether ranks see whole gradients of a micro-batch: not where stages sum those of weights that they share."""
        held = [one.name for layer in self.engine.architecture.layers for one in layer.parameters]
        return self.engine.groups.layout.pipeline == 1 or len(held) == len(set(held))

    @property
    def _is_graphed(self) -> bool:
        graphs = self.engine.graphs
        return graphs is not None and graphs.problem is None

    @property
    def _is_compiled(self) -> bool:
        return any(one._compiled_call_impl is not None for one in self.engine.module.modules())


class _Measured:
    """One step. What it has put into the engine is out after `stop`."""

    def __init__(self, engine: Engine, buckets: int, losses: bool, noise: bool, activations: bool) -> None:
        self.engine, self.groups, self.buckets = engine, engine.groups, buckets
        self.loss_scale = engine.loss_scale()  # the step may change it
        self.parts = counted_parts(engine)
        self.gradients: dict[str, list[Tensor]] = {}  # squares by kind
        self.updates: dict[str, list[Tensor]] = {}
        self.micro_batches: list[Tensor] = []  # squares of gradients of one micro-batch, parameter by parameter
        self.largest: dict[str, list[Tensor]] = {}
        self.tokens: list[tuple[Tensor, Sequence[Tensor]]] = []  # of each micro-batch: nats of its tokens, its labels
        self._before: dict[Tensor, Tensor] = {}  # of the update under way
        self._seen: set[Tensor] = set()
        self._handles: list[Any] = [
            engine.optimizer.register_step_pre_hook(self._update_begins),
            engine.optimizer.register_step_post_hook(self._update_ends),
        ]
        self._loss = language_loss(engine.loss) if losses else None
        if self._loss is not None:
            self._loss.observer = self._observe
        if noise:
            counted = [
                parameter
                for parameter in engine.module.parameters()
                if parameter.requires_grad and (names.info(parameter).dim is not None or self.groups.tensor_rank == 0)
            ]
            self._handles += [parameter.register_hook(self._flows) for parameter in counted]
        if activations:
            self._handles += [
                one.register_forward_hook(self._leaves) for one in engine.module.modules() if type(one) in OUTPUTS
            ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._loss is not None:
            self._loss.observer = None

    def sums(self, kinds: Sequence[str], sources: int, source_of: Sequence[Tensor]) -> dict[str, Any]:
        """Everything that was measured, over all ranks, in one reduction. A largest value has a place for each rank in
        it: the others add 0 there. `source_of` are the sources of the rows of each micro-batch.
        """
        device = self.engine.device
        weights: dict[str, list[Tensor]] = {}
        for flat, parts in self.parts.items():
            _add_squares(weights, flat, parts)
        by_kind = [
            torch.stack([_total(found.get(kind, ()), device) for kind in kinds])
            for found in (self.gradients, weights, self.updates)
        ]
        scale = self.engine.micro_batches / self.loss_scale
        micro = torch.stack([_total(self.micro_batches, device) * scale**2, self._micro_batches(device)])
        largest = torch.zeros(len(OUTPUT_KINDS), self.groups.world, dtype=torch.float64, device=device)
        for place, output in enumerate(OUTPUT_KINDS):
            if output in self.largest:
                largest[place, self.groups.rank] = torch.stack(self.largest[output]).max()
        losses = torch.zeros(2, self.buckets, dtype=torch.float64, device=device)
        by_source = torch.zeros(2, sources, dtype=torch.float64, device=device)
        for number, tokens in enumerate(self.tokens if self.groups.tensor_rank == 0 else ()):
            by_position, by_row = self._losses(*tokens)
            losses += by_position
            if source_of:
                by_source.index_add_(1, source_of[number].to(device), by_row)
        packed = [*by_kind, micro, largest, *losses, *by_source]
        values = torch.cat([one.flatten() for one in packed])
        if self.groups.world > 1:
            dist.all_reduce(values)
        found = [
            part.view(one.shape).tolist()
            for part, one in zip(values.cpu().split([one.numel() for one in packed]), packed, strict=True)
        ]
        keys = ["gradients", "weights", "updates", "micro_batches", "activations", "losses", "loss_weights"]
        keys += ["source_losses", "source_weights"]
        return dict(zip(keys, found, strict=True))

    def _micro_batches(self, device: torch.device) -> Tensor:
        """Returns how many this rank counts: those whose gradients were seen, once among the ranks of a replica."""
        counts = self.groups.tensor_rank == 0 and self.groups.is_first_stage
        seen = self.engine.micro_batches if self.micro_batches and counts else 0
        return torch.tensor(float(seen), dtype=torch.float64, device=device)

    @torch.no_grad()
    def _update_begins(self, optimizer: Any, *_: Any) -> None:
        """Before the update of some tensors: gradients are whole, times a factor that all of a step's have."""
        for group in optimizer.param_groups:
            for flat in group["params"]:
                if flat.grad is None or flat in self._seen:
                    continue
                self._seen.add(flat)
                if flat in self.parts:
                    _add_squares(self.gradients, flat.grad, self.parts[flat])
                    self._before[flat] = flat.detach().clone()

    @torch.no_grad()
    def _update_ends(self, *_: Any) -> None:
        for flat, before in self._before.items():
            _add_squares(self.updates, before.sub_(flat), self.parts[flat])
        self._before.clear()

    def _flows(self, gradient: Tensor) -> None:
        """A micro-batch's whole gradient of a parameter, before it is added to others."""
        self.micro_batches.append(square_sum([gradient]).double())

    def _leaves(self, module: nn.Module, _: Any, output: Any) -> None:
        """A forward hook."""
        values = (output,) if isinstance(output, Tensor) else output.stacks
        kind = OUTPUTS[type(module)]
        if isinstance(module, Block):
            values = (values[module.stack],)
        for value in values:
            self.largest.setdefault(kind, []).append(torch.linalg.vector_norm(value.detach(), math.inf).double())

    def _observe(self, labels: Sequence[Tensor]) -> Tensor:
        """Returns where the loss of a micro-batch puts the nats of each token."""
        nats = torch.empty_like(labels[-1]).flatten()
        self.tokens.append((nats, labels))
        return nats

    def _losses(self, nats: Tensor, labels: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns weighted losses and weights, [2, buckets] and [2, rows]. Of labels [S, B] the position is the first
        index; where few count, the first of three labels has their positions.
        """
        *places, weights = (*labels[:-2], labels[-1])
        at = places[0] if places else torch.arange(len(weights), device=nats.device)[:, None].expand_as(weights)
        starts = torch.tensor(POSITIONS[1 : self.buckets], device=nats.device)
        both = torch.stack([nats.view_as(weights) * weights, weights]).double()
        by_position = torch.zeros(2, self.buckets, dtype=torch.float64, device=nats.device)
        by_position.index_add_(1, torch.bucketize(at.flatten(), starts, right=True), both.flatten(1))
        return by_position, both.sum(1)


def _add_squares(found: dict[str, list[Tensor]], flat: Tensor, parts: Iterable[tuple[Any, int, int]]) -> None:
    """Adds to `found`, by kind, the sums of squares of the parts of a tensor."""
    values = flat.detach().view(-1)
    held: dict[str, list[Tensor]] = {}
    for info, start, count in parts:
        held.setdefault(kind_of(info.name), []).append(values.narrow(0, start, count))
    for kind, some in held.items():
        found.setdefault(kind, []).append(square_sum(some).double())


def _total(values: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack(list(values)).sum() if values else torch.zeros((), dtype=torch.float64, device=device)


def _means(sums: Iterable[float], weights: Iterable[float]) -> list[float | None]:
    return [one / weight if weight else None for one, weight in zip(sums, weights, strict=True)]


def _present(names: Iterable[str], values: Iterable[float | None]) -> Values:
    """Returns those that were measured."""
    return {name: _finite(value) for name, value in zip(names, values, strict=True) if value is not None}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
