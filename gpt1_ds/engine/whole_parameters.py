"""LAMB and Adafactor: what they do to an element depends on the whole matrix, wherever its parts lie.

Queries, keys and values, and the two halves of a gated layer, are one parameter here and matrices of their own for both
rules, as they are in BERT's and T5's code; so are the parts of their biases. Softmax ignores the bias of keys: its
gradient is rounding, which would else reach the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.engine.adamw import MOMENTS, AdamW
from gpt1_ds.engine.parts import Flat, Placed, Sums, Whole

FACTORS = ("exp_avg_sq_row", "exp_avg_sq_col")  # of Adafactor's matrices: means of squares over rows and over columns
DECAY_POWER = 0.8  # Adafactor: how fast old squares are forgotten
SMALLEST_SQUARE, SMALLEST_SCALE = 1e-30, 1e-3  # Adafactor: of a gradient's square and of a weight's RMS

Held = Sequence[tuple[Tensor, dict[str, Any]]]  # tensors to update, each with the settings of its group


class WholeParameters(AdamW, ABC):
    """A rule that reads sums over whole matrices. It updates the parts that lie here, all of them together."""

    def __init__(self, params: Iterable[Any], **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.flats: Mapping[Tensor, Flat] = {}
        self.sums: Sums | None = None

    def connect(self, flats: Mapping[Tensor, Flat], sums: Sums) -> None:
        """Before the first update: what the tensors are made of, and how numbers are added up over the ranks."""
        self.flats, self.sums = flats, sums

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        held = [(flat, group) for group in self.param_groups for flat in group["params"] if flat.grad is not None]
        for flat, _ in held:
            if not self.state[flat]:
                self.state[flat].update(self.fresh_state(flat, 0))
            self.state[flat]["step"] += self._applied
        self._update_all(held)
        for flat, _ in held:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    @abstractmethod
    def _update_all(self, held: Held) -> None:
        """Update what lies here of all parameters; every rank of a stage calls this together."""

    def _gradient(self, flat: Tensor, placed: Placed) -> Tensor:
        """[count], of a part."""
        assert flat.grad is not None, "it has one"
        return self._read(placed.of(flat.grad))

    def _totals(self, held: Held, length: Callable[[Whole], int], add: Callable[..., None]) -> dict[str, Tensor]:
        """Canonical name -> numbers of every parameter that has some, over all ranks."""
        assert self.sums is not None, "it is connected before"
        numbers: dict[str, Tensor] = {}
        for flat, group in held:
            for whole in self.flats[flat].parameters:
                if length(whole):
                    numbers[whole.info.name] = torch.zeros(length(whole), device=flat.device)
            for placed in self.flats[flat].parts:
                if placed.counted and length(placed.whole):
                    add(numbers[placed.part.info.name], flat, placed, group)
        return self.sums.over_ranks(numbers)


class Lamb(WholeParameters):
    """Adam's step with decoupled decay, as long as the weight is (You et al. 2019, algorithm 2, with phi(z) = z):

        u  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p
        p -= lr * |p| / |u| * u

    Norms are of whole matrices. Where one of them is 0, the ratio is 1, and it is for biases and gains, which the
    authors' code does not adapt either.
    """

    def _update_all(self, held: Held) -> None:
        for flat, group in held:
            for placed in self.flats[flat].parts:
                self._average(flat, placed, group)
        squares = self._totals(held, lambda whole: 2 * whole.matrices.count * whole.is_matrix, self._add_squares)
        for flat, group in held:
            for placed in self.flats[flat].parts:
                along = self._along(flat, placed, group).mul_(group["lr"] * self._applied)
                if placed.whole.is_matrix:
                    weight_M, along_M = squares[placed.part.info.name].view(2, -1)
                    ratio_M = torch.where((weight_M > 0) & (along_M > 0), (weight_M / along_M).sqrt(), 1.0)
                    along.mul_(placed.spread(ratio_M))
                placed.of(flat).sub_(along)

    def _average(self, flat: Tensor, placed: Placed, group: dict[str, Any]) -> None:
        """Take a part's gradient into the means."""
        gradient = self._gradient(flat, placed)
        values = gradient, gradient.square()
        for key, value, decay in zip(MOMENTS, values, group["betas"], strict=True):
            placed.of(self.state[flat][key]).lerp_(value, (1 - decay) * self._applied)

    def _along(self, flat: Tensor, placed: Placed, group: dict[str, Any]) -> Tensor:
        """[count]: u of a part, a new tensor."""
        state = self.state[flat]
        step = state["step"].double().clamp(min=1.0)  # in fp32 1 - 0.999^1 is wrong by 1e-5 of itself
        mean_part, square_part = (1.0 - torch.pow(decay, step) for decay in group["betas"])
        root = placed.of(state["exp_avg_sq"]).div(square_part).sqrt_().add_(group["eps"])
        along = placed.of(state["exp_avg"]).div(mean_part).div_(root)
        return along.add_(placed.of(flat), alpha=group["weight_decay"])

    def _add_squares(self, sums: Tensor, flat: Tensor, placed: Placed, group: dict[str, Any]) -> None:
        """Add those of a part and of its u to `sums` [2 M]."""
        both = placed.of(flat), self._along(flat, placed, group)
        sums += torch.cat([placed.square_sums(values) for values in both])


class Adafactor(WholeParameters):
    """Shazeer & Stern 2018, with T5's settings; the arithmetic of transformers' Adafactor with relative_step=False.

        b  = 1 - t^-0.8
        R  = b R + (1 - b) mean of g^2 + 1e-30 over each row,   C likewise over each column of a matrix
        u  = g / sqrt(R C / mean(R));   of a vector g / sqrt(v) with v = b v + (1 - b) (g^2 + 1e-30)
        a  = lr * max(1e-3, RMS(p))   with `scaled`, else lr
        p -= a * (u / max(1, RMS(u)) + weight_decay * p)

    Means and RMS are of whole matrices. Every rank that holds a part of one keeps all of its R and C, by name.
    """

    def __init__(self, params: Iterable[Any], lr: float, scaled: bool) -> None:
        super().__init__(params, lr=lr)
        self.scaled = scaled

    def moments(self, flat: Tensor) -> Sequence[str]:
        return () if any(whole.is_matrix for whole in self.flats[flat].parameters) else MOMENTS[1:]

    def fresh_state(self, flat: Tensor, updates: int) -> dict[str, Any]:
        state = super().fresh_state(flat, updates)
        matrices = {placed.part.info.name: placed.whole for placed in self.flats[flat].parts if placed.whole.is_matrix}
        for number, key in enumerate(FACTORS):
            state[key] = {
                name: torch.zeros(factor_sizes(one)[number], device=flat.device) for name, one in matrices.items()
            }
        return state

    def _update_all(self, held: Held) -> None:
        squares = self._totals(held, lambda one: one.matrices.count + sum(factor_sizes(one)), self._add_squares)
        for flat, _ in held:
            for placed in self.flats[flat].parts:
                self._renew(flat, placed, squares[placed.part.info.name])
        lengths = self._totals(held, lambda whole: whole.matrices.count, self._add_lengths)
        for flat, group in held:
            for placed in self.flats[flat].parts:
                name, whole, weight = placed.part.info.name, placed.whole, placed.of(flat)
                rate = torch.full((1,), group["lr"], device=flat.device) * self._applied
                if self.scaled:
                    root_M = (squares[name][: whole.matrices.count] / whole.elements).sqrt()
                    rate = placed.spread(root_M.clamp(min=SMALLEST_SCALE)) * rate
                length_M = (lengths[name] / whole.elements).sqrt().clamp(min=1.0)
                along = self._along(flat, placed).div_(placed.spread(length_M)).mul_(rate)
                weight.mul_(1.0 - rate * group["weight_decay"]).sub_(along)

    def _add_squares(self, sums: Tensor, flat: Tensor, placed: Placed, _: dict[str, Any]) -> None:
        """Add a part's to `sums`: [M] of the weight, [R] of a matrix's gradient over rows, [M C] over columns."""
        whole = placed.whole
        weight_M, rows_R, columns_MC = sums.split([whole.matrices.count, *factor_sizes(whole)])
        weight_M += placed.square_sums(placed.of(flat))
        if whole.is_matrix:
            block = placed.block(self._squares(flat, placed))
            rows_R[placed.rows_r] += block.sum(1)
            columns_MC.view(whole.matrices.count, -1)[:, placed.columns] += placed.by_matrix(block)

    def _squares(self, flat: Tensor, placed: Placed) -> Tensor:
        """[count]: the squares of a part's gradient."""
        return self._gradient(flat, placed).square().add_(SMALLEST_SQUARE)

    def _renew(self, flat: Tensor, placed: Placed, sums: Tensor) -> None:
        """Take the squares of a part's gradient into its means; `sums` are those of `_add_squares` over all ranks."""
        state, whole = self.state[flat], placed.whole
        newest = state["step"].clamp(min=1.0).pow(-DECAY_POWER) * self._applied  # all at the first update
        if not whole.is_matrix:
            placed.of(state["exp_avg_sq"]).lerp_(self._squares(flat, placed), newest)
            return
        factors = sums[whole.matrices.count :].split(factor_sizes(whole))
        others_of = whole.columns, whole.rows // whole.matrices.count
        for key, values, others in zip(FACTORS, factors, others_of, strict=True):
            state[key][whole.info.name].lerp_(values / others, newest)

    def _along(self, flat: Tensor, placed: Placed) -> Tensor:
        """[count]: u of a part, a new tensor."""
        state, whole, gradient = self.state[flat], placed.whole, self._gradient(flat, placed)
        if not whole.is_matrix:
            return _inverse_root(placed.of(state["exp_avg_sq"])).mul_(gradient)
        rows_R, columns_MC = (state[key][whole.info.name] for key in FACTORS)
        rows_r = _inverse_root(rows_R)[placed.rows_r] * placed.of_rows(whole.means(rows_R).sqrt())
        columns_rc = placed.of_rows(_inverse_root(columns_MC).view(whole.matrices.count, -1)[:, placed.columns])
        return placed.cut(columns_rc.mul_(rows_r[:, None])).mul_(gradient)

    def _add_lengths(self, sums: Tensor, flat: Tensor, placed: Placed, _: dict[str, Any]) -> None:
        """Add the squares of a part's u to `sums` [M]."""
        sums += placed.square_sums(self._along(flat, placed))


def factor_sizes(whole: Whole) -> tuple[int, int]:
    """Returns how many numbers the FACTORS of a parameter have: of a vector none."""
    return (whole.rows, whole.matrices.count * whole.columns) if whole.is_matrix else (0, 0)


def _inverse_root(squares: Tensor) -> Tensor:
    """1 / sqrt, of a new tensor; finite where there was no update yet."""
    return squares.clamp(min=SMALLEST_SQUARE).rsqrt_()
