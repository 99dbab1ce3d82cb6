"""`train.watch`: what a person watches of a logged step, measured beside it. No number of the training changes.

    norms   of gradients, weights and updates, by kind of layer
    all     also the gradient noise scale, the largest activations, and the loss by position and by source

measured_step.py measures; here the numbers become fields of a TrainRecord. What a layout cannot give is left out, and
`omissions` says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.config import Config
from gpt1_ds.config.batch_sizes import BatchSizes
from gpt1_ds.data.windows import blend
from gpt1_ds.engine.base import Engine, StepResult
from gpt1_ds.engine.build import batch_shape
from gpt1_ds.engine.measured_step import OUTPUT_KINDS, Measured, MeasuredStep, bucket_names, layer_kind

SMOOTHED = 10  # logged steps that the noise scale is a mean of
Values = dict[str, float | None]


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
        self.kinds = list(dict.fromkeys(map(layer_kind, engine.architecture.parameters)))
        self.estimates: deque[tuple[float, float]] = deque(maxlen=SMOOTHED)  # of |G|^2 and tr(Sigma), step by step
        self._step: MeasuredStep | None = None

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
        if self._step is not None:
            self._step.stop()  # a step that was rolled back
        self._step = MeasuredStep(self.engine, len(self.buckets), self._measured) if is_due else None

    def end(self, number: int, result: StepResult) -> dict[str, Any]:
        """Returns fields of the TrainRecord of the step on batch `number`; none where it was not measured."""
        step, self._step = self._step, None
        if step is None:
            return {}
        step.stop()
        sums = step.sums(self.kinds, len(self.sources), self._sources_of(number))
        fields: dict[str, Any] = {"weight_norms": self._norms(sums.weights)}
        if result.applied:
            # the squares have a factor of this step in them; their sum is the squared norm that the engine knows
            total = sum(sums.gradients) or 1.0
            squares = [result.grad_norm**2 * square / total for square in sums.gradients]
            fields["gradient_norms"] = self._norms(squares)
            fields["update_norms"] = self._norms(sums.updates)
        if self._measured.losses:
            fields |= self._noise(self.batch_sizes.size(number), result, sums.micro_batches)
            largest = [max(of_ranks) or None for of_ranks in sums.activations]
            fields["largest_activations"] = _named(OUTPUT_KINDS, largest)
            fields["loss_by_position"] = _named(self.buckets, _means(sums.losses, sums.loss_weights))
            fields["loss_by_source"] = _named(self.sources, _means(sums.source_losses, sums.source_weights))
        return {name: value for name, value in fields.items() if value}

    @property
    def _measured(self) -> Measured:
        if self.level != "all" or self._is_graphed:
            return Measured()
        return Measured(losses=True, noise=self._has_noise, activations=not self._is_compiled)

    def _sources_of(self, number: int) -> list[Tensor]:
        """Returns the source of each row [B] of this rank's micro-batches of batch `number`; none where one has all."""
        if not self.sources:
            return []
        shape = self._shape.of_batch(number, self.batch_sizes)
        sequence_G = shape.numbers(number)
        return [torch.from_numpy(blend(sequence_G[row_B], self._weights)[0]) for row_B in shape.rows()]

    def _norms(self, squares: Iterable[float]) -> Values:
        """Returns the norm of each kind of layer."""
        return {kind: _finite(math.sqrt(square)) for kind, square in zip(self.kinds, squares, strict=True)}

    def _noise(self, batch: int, result: StepResult, sums: Sequence[float]) -> dict[str, float]:
        """Returns the simple noise scale tr(Sigma) / |G|^2 of McCandlish et al. 2018 and its parts, by appendix A.1:
        from the squared norm of the whole batch's gradient, of B sequences, and the mean of those of all micro-batches
        of all ranks, b sequences each. Both estimates are unbiased, their ratio is not: it is that of the means over
        the last logged steps.
        """
        square, count = sums
        if count < 2 or not result.applied:
            return {}
        micro_batch = batch / count
        mean_square = square / count
        gradient = (batch * result.grad_norm**2 - micro_batch * mean_square) / (batch - micro_batch)
        variance = (mean_square - result.grad_norm**2) / (1 / micro_batch - 1 / batch)
        if not math.isfinite(gradient + variance):
            return {}
        self.estimates.append((gradient, variance))
        fields = {"gradient_square": gradient, "gradient_variance": variance}
        sum_of_gradients, sum_of_variances = (sum(values) for values in zip(*self.estimates, strict=True))
        if sum_of_gradients > 0:
            fields["noise_scale"] = sum_of_variances / sum_of_gradients
        return fields

    @property
    def _has_noise(self) -> bool:
        """Returns whether ranks see whole gradients of a micro-batch: not where stages sum those of shared weights."""
        held = [parameter.name for layer in self.engine.architecture.layers for parameter in layer.parameters]
        return self.engine.groups.layout.pipeline == 1 or len(held) == len(set(held))

    @property
    def _is_graphed(self) -> bool:
        graphs = self.engine.graphs
        return graphs is not None and graphs.problem is None

    @property
    def _is_compiled(self) -> bool:
        return any(module._compiled_call_impl is not None for module in self.engine.module.modules())


def _means(sums: Iterable[float], weights: Iterable[float]) -> list[float | None]:
    return [total / weight if weight else None for total, weight in zip(sums, weights, strict=True)]


def _named(names: Iterable[str], values: Iterable[float | None]) -> Values:
    """Returns the values that were measured, by name."""
    return {name: _finite(value) for name, value in zip(names, values, strict=True) if value is not None}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
