"""LAMB and Adafactor: their update of an element depends on the whole matrix, whose ranges lie on several ranks.

Queries, keys and values, and the two halves of a gated layer, are one parameter here, but both rules see them as
matrices of their own, as in BERT's and T5's code; so are the vectors of their biases. Softmax ignores the bias of keys:
its gradient is rounding noise, which must not reach the update of the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.engine.adamw import MOMENTS, AdamW
from gpt1_ds.engine.ranges import FlatContents, LocalRange, StageSums, WholeParameter

FACTORS = ("exp_avg_sq_row", "exp_avg_sq_col")  # of Adafactor's matrices: means of squares over rows and over columns
DECAY_POWER = 0.8  # Adafactor: how fast old squares are forgotten
SMALLEST_SQUARE, SMALLEST_SCALE = 1e-30, 1e-3  # Adafactor: of a gradient's square and of a weight's RMS

Updated = Sequence[tuple[Tensor, dict[str, Any]]]  # flat tensors to update, each with the settings of its group
AddNumbers = Callable[[Tensor, Tensor, LocalRange, dict[str, Any]], None]  # (sums, flat, local, group)


class WholeParameters(AdamW, ABC):
    """An optimizer whose rule reads sums over whole matrices. It updates all of the rank's ranges together."""

    def __init__(self, params: Iterable[Any], **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.contents: Mapping[Tensor, FlatContents] = {}
        self.sums: StageSums | None = None

    def connect(self, contents: Mapping[Tensor, FlatContents], sums: StageSums) -> None:
        """Sets, before the first update, what the flat tensors are made of and how numbers are added up over ranks."""
        self.contents, self.sums = contents, sums

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        updated = [(flat, group) for group in self.param_groups for flat in group["params"] if flat.grad is not None]
        for flat, _ in updated:
            if not self.state[flat]:
                self.state[flat].update(self.fresh_state(flat, 0))
            self.state[flat]["step"] += self._applied
        self._update_all(updated)
        for flat, _ in updated:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    @abstractmethod
    def _update_all(self, updated: Updated) -> None:
        """Updates this rank's ranges of all parameters. All ranks of a stage call it together."""

    def _ranges(self, updated: Updated) -> Iterator[tuple[Tensor, LocalRange, dict[str, Any]]]:
        """Yields (flat tensor, range in it, settings of its group) for every range that this rank updates."""
        for flat, group in updated:
            for local in self.contents[flat].ranges:
                yield flat, local, group

    def _gradient(self, flat: Tensor, local: LocalRange) -> Tensor:
        """Returns the gradient [count] of a range."""
        assert flat.grad is not None, "only tensors with gradients are updated"
        return self._read(local.view(flat.grad))

    def _sum_over_ranks(
        self, updated: Updated, length: Callable[[WholeParameter], int], add: AddNumbers
    ) -> dict[str, Tensor]:
        """Returns sums over whole parameters by canonical name, `length(parameter)` numbers each; those of length 0 are
        left out. `add` adds the numbers of one range.
        """
        assert self.sums is not None, "connect() comes before the first update"
        numbers: dict[str, Tensor] = {}
        for flat, _ in updated:
            for whole in self.contents[flat].parameters:
                if length(whole):
                    numbers[whole.info.name] = torch.zeros(length(whole), device=flat.device)
        for flat, local, group in self._ranges(updated):
            if local.counted and length(local.whole):
                add(numbers[local.whole.info.name], flat, local, group)
        return self.sums.all_reduce(numbers)


class Lamb(WholeParameters):
    """Adam's step with decoupled decay, scaled to the norm of the weight (You et al. 2019, algorithm 2, phi(z) = z):

        u  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p
        p -= lr * |p| / |u| * u

    Norms are of whole matrices. The ratio of norms is 1 where one of them is 0, and for biases and gains, which the
    authors' code does not adapt either.
    """

    def _update_all(self, updated: Updated) -> None:
        for flat, local, group in self._ranges(updated):
            self._update_moments(flat, local, group)
        squares = self._sum_over_ranks(updated, lambda one: 2 * one.matrices.count * one.is_matrix, self._add_squares)
        for flat, local, group in self._ranges(updated):
            direction = self._direction(flat, local, group).mul_(group["lr"] * self._applied)
            if local.whole.is_matrix:
                weight_M, direction_M = squares[local.whole.info.name].view(2, -1)
                ratio_M = torch.where((weight_M > 0) & (direction_M > 0), (weight_M / direction_M).sqrt(), 1.0)
                direction.mul_(local.per_element(ratio_M))
            local.view(flat).sub_(direction)

    def _update_moments(self, flat: Tensor, local: LocalRange, group: dict[str, Any]) -> None:
        gradient = self._gradient(flat, local)
        values = gradient, gradient.square()
        for key, value, beta in zip(MOMENTS, values, group["betas"], strict=True):
            local.view(self.state[flat][key]).lerp_(value, (1 - beta) * self._applied)

    def _direction(self, flat: Tensor, local: LocalRange, group: dict[str, Any]) -> Tensor:
        """Returns u [count] of a range, in a new tensor."""
        state = self.state[flat]
        step = state["step"].double().clamp(min=1.0)  # in fp32 1 - 0.999^1 is wrong by 1e-5 of itself
        mean_correction, square_correction = (1.0 - torch.pow(beta, step) for beta in group["betas"])
        root = local.view(state["exp_avg_sq"]).div(square_correction).sqrt_().add_(group["eps"])
        direction = local.view(state["exp_avg"]).div(mean_correction).div_(root)
        return direction.add_(local.view(flat), alpha=group["weight_decay"])

    def _add_squares(self, sums: Tensor, flat: Tensor, local: LocalRange, group: dict[str, Any]) -> None:
        """Adds the squares of a range's weights and of its u to `sums` [2 M]."""
        both = local.view(flat), self._direction(flat, local, group)
        sums += torch.cat([local.square_sums(values) for values in both])


class Adafactor(WholeParameters):
    """Shazeer & Stern 2018, with T5's settings; the arithmetic of transformers' Adafactor with relative_step=False.

        b  = 1 - t^-0.8
        R  = b R + (1 - b) mean of g^2 + 1e-30 over each row,   C likewise over each column of a matrix
        u  = g / sqrt(R C / mean(R));   of a vector g / sqrt(v) with v = b v + (1 - b) (g^2 + 1e-30)
        a  = lr * max(1e-3, RMS(p))   with `scaled`, else lr
        p -= a * (u / max(1, RMS(u)) + weight_decay * p)

    Means and RMS are of whole matrices. Every rank that holds a range of a matrix keeps all of its R and C, by name.
    """

    def __init__(self, params: Iterable[Any], lr: float, scaled: bool) -> None:
        super().__init__(params, lr=lr)
        self.scaled = scaled

    def moments(self, flat: Tensor) -> Sequence[str]:
        return () if any(whole.is_matrix for whole in self.contents[flat].parameters) else MOMENTS[1:]

    def fresh_state(self, flat: Tensor, updates: int) -> dict[str, Any]:
        state = super().fresh_state(flat, updates)
        matrices = {local.whole.info.name: local.whole for local in self.contents[flat].ranges if local.whole.is_matrix}
        for number, key in enumerate(FACTORS):
            state[key] = {
                name: torch.zeros(factor_sizes(one)[number], device=flat.device) for name, one in matrices.items()
            }
        return state

    def _update_all(self, updated: Updated) -> None:
        squares = self._sum_over_ranks(updated, _square_sums, self._add_squares)
        for flat, local, _ in self._ranges(updated):
            self._update_moments(flat, local, squares[local.whole.info.name])
        directions = self._sum_over_ranks(updated, lambda one: one.matrices.count, self._add_directions)
        for flat, local, group in self._ranges(updated):
            name, whole, weight = local.whole.info.name, local.whole, local.view(flat)
            rate = torch.full((1,), group["lr"], device=flat.device) * self._applied
            if self.scaled:
                weight_rms_M = (squares[name][: whole.matrices.count] / whole.matrix_elements).sqrt()
                rate = local.per_element(weight_rms_M.clamp(min=SMALLEST_SCALE)) * rate
            clip_M = (directions[name] / whole.matrix_elements).sqrt().clamp(min=1.0)
            direction = self._direction(flat, local).div_(local.per_element(clip_M)).mul_(rate)
            weight.mul_(1.0 - rate * group["weight_decay"]).sub_(direction)

    def _add_squares(self, sums: Tensor, flat: Tensor, local: LocalRange, _: dict[str, Any]) -> None:
        """Adds a range's squares to `sums`: [M] of the weights; of a matrix also [R] and [M C], those of its gradient
        over rows and over columns.
        """
        whole = local.whole
        weight_M, rows_R, columns_MC = sums.split([whole.matrices.count, *factor_sizes(whole)])
        weight_M += local.square_sums(local.view(flat))
        if whole.is_matrix:
            block = local.to_block(self._squares(flat, local))
            rows_R[local.row_numbers_r] += block.sum(1)
            columns_MC.view(whole.matrices.count, -1)[:, local.columns] += local.sum_by_matrix(block)

    def _squares(self, flat: Tensor, local: LocalRange) -> Tensor:
        """Returns the squares [count] of a range's gradient."""
        return self._gradient(flat, local).square().add_(SMALLEST_SQUARE)

    def _update_moments(self, flat: Tensor, local: LocalRange, sums: Tensor) -> None:
        """Takes the squares of a range's gradient into v, or into R and C; `sums` are those of `_add_squares`."""
        state, whole = self.state[flat], local.whole
        newest = state["step"].clamp(min=1.0).pow(-DECAY_POWER) * self._applied  # all at the first update
        if not whole.is_matrix:
            local.view(state["exp_avg_sq"]).lerp_(self._squares(flat, local), newest)
            return
        factors = sums[whole.matrices.count :].split(factor_sizes(whole))
        others_of = whole.columns, whole.rows // whole.matrices.count
        for key, values, others in zip(FACTORS, factors, others_of, strict=True):
            state[key][whole.info.name].lerp_(values / others, newest)

    def _direction(self, flat: Tensor, local: LocalRange) -> Tensor:
        """Returns u [count] of a range, before it is clipped, in a new tensor."""
        state, whole, gradient = self.state[flat], local.whole, self._gradient(flat, local)
        if not whole.is_matrix:
            return _inverse_root(local.view(state["exp_avg_sq"])).mul_(gradient)
        rows_R, columns_MC = (state[key][whole.info.name] for key in FACTORS)
        rows_r = _inverse_root(rows_R)[local.row_numbers_r] * local.per_row(whole.mean_by_matrix(rows_R).sqrt())
        columns_rc = local.per_row(_inverse_root(columns_MC).view(whole.matrices.count, -1)[:, local.columns])
        return local.from_block(columns_rc.mul_(rows_r[:, None])).mul_(gradient)

    def _add_directions(self, sums: Tensor, flat: Tensor, local: LocalRange, _: dict[str, Any]) -> None:
        """Adds the squares of a range's u to `sums` [M]."""
        sums += local.square_sums(self._direction(flat, local))


def factor_sizes(whole: WholeParameter) -> tuple[int, int]:
    """Returns the lengths of a parameter's FACTORS, R and M C; a vector has none."""
    return (whole.rows, whole.matrices.count * whole.columns) if whole.is_matrix else (0, 0)


def _square_sums(whole: WholeParameter) -> int:
    """Returns how many sums Adafactor needs of a parameter: one for each matrix, row and column."""
    return whole.matrices.count + sum(factor_sizes(whole))


def _inverse_root(squares: Tensor) -> Tensor:
    """Returns 1 / sqrt in a new tensor; it is finite even before the first update."""
    return squares.clamp(min=SMALLEST_SQUARE).rsqrt_()
