"""AdamW and the Adam of GPT-1's published code, by torch's fused kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")  # what is kept of gradients: their mean and that of their squares
BLOCK = 1 << 19  # elements that an update on a CPU takes at once: what it writes is still in the cache after it
LANES = 16  # fp32 numbers in the longest vector of a CPU


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW. On a CPU it can do two things more while a block of a parameter is in the cache: write
    the parameter's new values into a `copies` entry (of another precision), and divide gradients by `grad_scale`, which
    torch's own kernel would write back to memory. Updates of what is `shared` have the same bits wherever it lies.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None  # torch's own kernel leaves everything as it is where this is 1

    def __init__(self, params: Iterable[Any], **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.copies: dict[Tensor, Tensor] = {}
        self.shared: set[Tensor] = set()  # on a CPU: those with parts of weights that several pipeline stages hold

    def moments(self, flat: Tensor) -> Sequence[str]:
        """Returns what the update keeps of the gradients of one of its tensors."""
        return MOMENTS

    def fresh_state(self, flat: Tensor, updates: int) -> dict[str, Any]:
        """Returns what is kept of one of the tensors after so many updates; all moments are 0."""
        zeros = {key: torch.zeros_like(flat, requires_grad=False) for key in self.moments(flat)}
        return {"step": torch.tensor(float(updates), device=flat.device), **zeros}

    def recount(self) -> None:
        """An update was left out; the kernel counts those that were not."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        # found_inf is of a GPU, where torch's kernel itself leaves the update out
        if self.found_inf is not None or not (self.copies or self.shared):
            super().step()
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, scale = self.state[parameter], self.grad_scale
        if not state:
            state.update(self.fresh_state(parameter, 0))
        state["step"] += 1
        if scale is not None and float(scale) == 1.0:
            scale = None
        scratch = torch.empty(0 if scale is None else min(BLOCK, parameter.numel()))
        constants: dict[str, Any] = {key: group[key] for key in ("lr", "eps", "weight_decay")}
        constants["beta1"], constants["beta2"] = group["betas"]
        update = _fused_anywhere if parameter in self.shared else _fused
        copies = [self.copies[parameter]] if parameter in self.copies else []
        written = (one.view(-1).split(BLOCK) for one in (parameter, state["exp_avg"], state["exp_avg_sq"], *copies))
        for gradient, master, mean, square, *copy in zip(grad.reshape(-1).split(BLOCK), *written, strict=True):
            if scale is not None:
                gradient = torch.div(gradient, scale, out=scratch[: len(gradient)])
            update([master, gradient, mean, square], state["step"], constants)
            for one in copy:
                one.copy_(master)

    # What torch's kernel does itself, for rules that do not use it

    @property
    def _applied(self) -> float | Tensor:
        """1, or 0 for a step that is left out on the device."""
        return 1.0 if self.found_inf is None else 1.0 - self.found_inf

    def _read(self, gradient: Tensor) -> Tensor:
        """Returns a gradient, or a part of one, divided by `grad_scale`; zeros in a step that is left out."""
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        if self.found_inf is not None:
            gradient = torch.where(self.found_inf > 0, 0.0, gradient)
        return gradient


def _fused(tensors: Sequence[Tensor], step: Tensor, constants: dict[str, Any]) -> None:
    """Runs torch's kernel on 1-D tensors of a CPU: a weight, its gradient and its two moments."""
    states: list[list[Tensor]] = [*([one] for one in tensors), [], [step]]
    torch._fused_adamw_(*states, **constants, amsgrad=False, maximize=False)


def _fused_anywhere(tensors: Sequence[Tensor], step: Tensor, constants: dict[str, Any]) -> None:
    """Like `_fused`. The kernel rounds what fills no vector in another way than the rest, and stages of a pipeline hold
    a weight that they share at other places of their tensors: what is left over is updated in tensors that are filled
    up.
    """
    whole = len(tensors[0]) // LANES * LANES
    left = len(tensors[0]) - whole
    _fused([one[:whole] for one in tensors], step, constants)
    if left:
        filled = [torch.nn.functional.pad(one[whole:], (0, LANES - left)) for one in tensors]
        _fused(filled, step, constants)
        for one, values in zip(tensors, filled, strict=True):
            one[whole:] = values[:left]


class Adam2018(AdamW):
    """The update of GPT-1's published code (openai/finetune-transformer-lm, opt.py), `lr` being lr * schedule:

        lr_t = lr * sqrt(1 - b2^t) / (1 - b1^t)
        p   -= lr_t * (m / (sqrt(v) + eps) + weight_decay * p)

    Unlike in AdamW, eps is added to the uncorrected root and the decay is multiplied by the bias correction. This is
    AdamW's fused kernel with another eps and decay at every t:

        lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps')   with eps' = eps / sqrt(1 - b2^t)
        lr * decay' * p                                       with decay' = weight_decay * sqrt(1 - b2^t) / (1 - b1^t)
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        self._counts: dict[Tensor, tuple[Tensor, int]] = {}  # of a parameter: its `step`, and that on the host

    def recount(self) -> None:
        """Forgets the counts on the host: an update was left out on the device."""
        self._counts.clear()

    def _updates(self, parameter: Tensor) -> int:
        """Returns the number of updates of a parameter so far. They are counted on the host, for reading `step` would
        wait for the device; read where the state is new.
        """
        step = self.state[parameter].get("step")
        if step is None:
            return 0
        known, count = self._counts.get(parameter, (None, 0))
        return count if step is known else int(step)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        plain = [(group["eps"], group["weight_decay"]) for group in self.param_groups]
        before: dict[Tensor, int] = {}  # updates of each parameter
        for group in self.param_groups:
            counts = {parameter: self._updates(parameter) for parameter in group["params"]}
            before.update(counts)
            t = 1 + max(counts.values(), default=0)
            root = math.sqrt(1 - group["betas"][1] ** t)
            group["eps"] /= root
            group["weight_decay"] *= root / (1 - group["betas"][0] ** t)
        try:
            super().step()
            for parameter, count in before.items():
                if parameter.grad is not None:
                    self._counts[parameter] = self.state[parameter]["step"], count + 1
        finally:
            for group, (eps, decay) in zip(self.param_groups, plain, strict=True):
                group["eps"], group["weight_decay"] = eps, decay
