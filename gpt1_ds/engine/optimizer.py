"""Update rules, as torch optimizers that DeepSpeed wraps.

Weight decay is decided per parameter before ZeRO flattens anything: inside ZeRO every tensor is one-dimensional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gpt1_ds.config.sections import OptimizerConfig
from gpt1_ds.engine.gradient_norm import square_sum
from gpt1_ds.engine.muon import Exchange
from gpt1_ds.engine.parts import Flat, Part, Placed, Sums
from gpt1_ds.model import names
from gpt1_ds.model.names import ParameterInfo

MOMENTS = ("exp_avg", "exp_avg_sq")  # what is kept of gradients: their mean and that of their squares
BLOCK = 1 << 19  # elements that an update on a CPU takes at once: what it writes is still in the cache after it


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and embeddings decay, biases and gains do not: the rule of GPT-1's code (more than one dimension)."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def layer_groups(groups: Iterable[dict[str, Any]], decay: float, blocks: int) -> list[dict[str, Any]]:
    """The same groups, cut by the level of their parameters. `share` is of the learning rate: decay^k, k levels below
    the head (Clark et al. 2020, ELECTRA; with one level above the last block as in Bao et al. 2022, BEiT).
    """
    cut = []
    for group in groups:
        levels: dict[int, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            level = names.info(parameter).level
            levels.setdefault(blocks + 1 if level is None else level, []).append(parameter)
        for level, held in sorted(levels.items()):
            cut.append({**group, "params": held, "share": decay ** (blocks + 1 - level)})
    return cut


def muon_groups(decaying: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same groups, matrices of blocks apart from what else decays: those are `orthogonal`."""
    groups = []
    for group in decaying:
        for orthogonal in (True, False):
            held = [p for p in group["params"] if (names.info(p).matrices is not None) == orthogonal]
            if held:
                groups.append({**group, "params": held, "orthogonal": orthogonal})
    return groups


def make_optimizer(module: nn.Module, settings: OptimizerConfig, blocks: int = 0) -> torch.optim.Optimizer:
    """Returns that of a module which holds part of a model of so many `blocks`."""
    arguments: dict[str, Any] = {"lr": settings.lr, "betas": tuple(settings.betas), "eps": settings.eps}
    groups = parameter_groups(module, settings.weight_decay)
    if settings.layer_decay != 1:
        groups = layer_groups(groups, settings.layer_decay, blocks)
    if settings.name == "muon":
        return Muon(muon_groups(groups), momentum=settings.momentum, **arguments, fused=True)
    if settings.name == "lamb":
        return Lamb(groups, **arguments, fused=True)
    if settings.name == "adam2018":
        return Adam2018(groups, **arguments)
    return AdamW(groups, **arguments, fused=True)  # fused is one pass over memory and needs no compiler


class AdamW(torch.optim.AdamW):
    """torch's fused AdamW. On a CPU it can do two things more while a block of a parameter is in the cache: write
    the parameter's new values into a `copies` entry (of another precision), and divide gradients by `grad_scale`, which
    torch's own kernel would write back to memory.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None  # torch's own kernel leaves everything as it is where this is 1

    def __init__(self, params: Iterable[Any], **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.copies: dict[Tensor, Tensor] = {}

    def moments(self, flat: Tensor) -> Sequence[str]:
        """What the update keeps of the gradients of one of its tensors."""
        return MOMENTS

    def recount(self) -> None:
        """An update was left out; the kernel counts those that were not."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        if not self.copies:
            super().step()
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, scale = self.state[parameter], self.grad_scale
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        if scale is not None and float(scale) == 1.0:
            scale = None
        room = torch.empty(0 if scale is None else min(BLOCK, parameter.numel()))
        constants = {key: group[key] for key in ("lr", "eps", "weight_decay")}
        constants["beta1"], constants["beta2"] = group["betas"]
        tensors = (parameter, grad, state["exp_avg"], state["exp_avg_sq"], self.copies[parameter])
        for master, gradient, mean, square, copy in zip(*(one.view(-1).split(BLOCK) for one in tensors), strict=True):
            if scale is not None:
                gradient = torch.div(gradient, scale, out=room[: len(gradient)])
            states = [[master], [gradient], [mean], [square], list[Tensor](), [state["step"]]]
            torch._fused_adamw_(*states, **constants, amsgrad=False, maximize=False)
            copy.copy_(master)

    # What torch's kernel does itself, for rules that do not use it

    @property
    def _applied(self) -> float | Tensor:
        """1, or 0 for a step that is left out on the device."""
        return 1.0 if self.found_inf is None else 1.0 - self.found_inf

    def _gradient(self, flat: Tensor) -> Tensor:
        """Returns that of one of the tensors, 1-D, divided by `grad_scale`; zeros in a step that is left out."""
        assert flat.grad is not None, "it has one"
        gradient = flat.grad.view(-1)
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        if self.found_inf is not None:
            gradient = torch.where(self.found_inf > 0, 0.0, gradient)
        return gradient


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
        """Forget the counts on the host: an update was left out on the device."""
        self._counts.clear()

    def _updates(self, parameter: Tensor) -> int:
        """Returns the updates of a parameter so far. They are counted on the host, for reading `step` would wait for
        the device; read where the state is new.
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


class Muon(AdamW):
    """AdamW but for the groups that are `orthogonal`: there the gradients' running mean, with Nesterov's step ahead, is
    made orthogonal (engine/muon.py). `lr` and the decoupled decay are AdamW's.

        m  = momentum * m + (1 - momentum) * g
        p -= lr * (direction(momentum * m + (1 - momentum) * g) + weight_decay * p)
    """

    def __init__(self, params: Iterable[Any], momentum: float, **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.momentum = momentum
        self.parts: Mapping[Tensor, Sequence[Placed]] = {}
        self.group: ProcessGroup | None = None
        self._exchanges: dict[tuple[int, ...], Exchange] = {}  # by the ids of the tensors that are updated together

    def connect(self, flats: Mapping[Tensor, Flat], sums: Sums) -> None:
        """Before the first update: what the tensors are made of, and the ranks that hold the rest."""
        self.parts = {
            flat: one.parts for flat, one in flats.items() if any(info.matrices is not None for info in one.parameters)
        }
        self.group = sums.group

    def moments(self, flat: Tensor) -> Sequence[str]:
        return MOMENTS[:1] if flat in self.parts else MOMENTS

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "closures are not used"
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            flats = [flat for flat in group["params"] if flat.grad is not None]
            if group["orthogonal"] and flats:
                self._update_matrices(flats, group)

    def _update_matrices(self, flats: Sequence[Tensor], group: dict[str, Any]) -> None:
        """On CUDA a step may be left out on the device: its gradients count as 0, `applied` is 0."""
        applied = self._applied
        means = {flat: self._mean(flat, applied) for flat in flats}
        held = [(flat, placed) for flat in flats for placed in self.parts.get(flat, ())]
        values = [placed.of(means[flat]) for flat, placed in held]
        directions = self._exchange(flats, [placed.part for _, placed in held]).directions(values)
        for flat in flats:
            flat.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
        for (flat, placed), along in zip(held, directions, strict=True):
            placed.of(flat).sub_(along.mul_(group["lr"] * applied))
        for flat in flats:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    def _mean(self, flat: Tensor, applied: float | Tensor) -> Tensor:
        """1-D, of a new tensor."""
        state, gradient = self.state[flat], self._gradient(flat)
        if not state:
            state["step"] = torch.zeros((), device=flat.device)
            state["exp_avg"] = torch.zeros_like(flat, requires_grad=False)
        state["step"] += applied
        mean: Tensor = state["exp_avg"].view(-1).lerp_(gradient, (1 - self.momentum) * applied)
        return gradient.lerp(mean, self.momentum)

    def _exchange(self, flats: Sequence[Tensor], parts: Sequence[Part]) -> Exchange:
        key = tuple(map(id, flats))
        if key not in self._exchanges:
            assert self.group is not None, "it is connected before"
            self._exchanges[key] = Exchange(parts, self.group, flats[0].device)
        return self._exchanges[key]


class WholeParameters(AdamW):
    """A rule that reads sums over whole parameters, wherever their parts lie; what the norm of a weight is does not
    depend on the layout.
    """

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
                self.state[flat].update(fresh_state(self, flat, 0))
        self._update_all(held)
        for flat, _ in held:
            if flat in self.copies:
                self.copies[flat].copy_(flat)

    def _update_all(self, held: Sequence[tuple[Tensor, dict[str, Any]]]) -> None:
        """Update tensors, each with the settings of its group."""
        raise NotImplementedError

    def _totals(self, numbers: Sequence[tuple[ParameterInfo, Tensor]]) -> Iterator[Tensor]:
        """Returns the sums over the ranks of what each holds of every parameter, in their order."""
        assert self.sums is not None, "it is connected before"
        return iter(self.sums.over_ranks([info.name for info, _ in numbers], [one for _, one in numbers]))


class Lamb(WholeParameters):
    """Adam's step with decoupled decay, as long as the weight is (You et al. 2019, algorithm 2, with phi(z) = z):

        u  = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p
        p -= lr * |p| / |u| * u

    Norms are of whole parameters. Where one of them is 0, the ratio is 1, and it is for biases and gains, which the
    authors' code does not adapt either.
    """

    def _update_all(self, held: Sequence[tuple[Tensor, dict[str, Any]]]) -> None:
        for flat, group in held:
            self._average(flat, group)
        ratios = self._ratios(held)
        for flat, group in held:
            for placed in self.flats[flat].parts:
                along = self._along(flat, placed, group).mul_(group["lr"] * self._applied)
                ratio = ratios.get(self.flats[flat].parameters[placed.number].name)
                placed.of(flat).sub_(along if ratio is None else along.mul_(ratio))

    def _average(self, flat: Tensor, group: dict[str, Any]) -> None:
        """Take a gradient into the means."""
        state, gradient, applied = self.state[flat], self._gradient(flat), self._applied
        decay1, decay2 = group["betas"]
        state["step"] += applied
        state["exp_avg"].view(-1).lerp_(gradient, (1 - decay1) * applied)
        state["exp_avg_sq"].view(-1).lerp_(gradient.square(), (1 - decay2) * applied)

    def _along(self, flat: Tensor, placed: Placed, group: dict[str, Any]) -> Tensor:
        """[count]: u of a part, a new tensor."""
        state = self.state[flat]
        step = state["step"].double().clamp(min=1.0)  # in fp32 1 - 0.999^1 is wrong by 1e-5 of itself
        mean_part, square_part = (1.0 - torch.pow(decay, step) for decay in group["betas"])
        root = placed.of(state["exp_avg_sq"]).div(square_part).sqrt_().add_(group["eps"])
        along = placed.of(state["exp_avg"]).div(mean_part).div_(root)
        return along.add_(placed.of(flat), alpha=group["weight_decay"])

    def _ratios(self, held: Sequence[tuple[Tensor, dict[str, Any]]]) -> dict[str, Tensor]:
        """Canonical name -> |p| / |u| of the matrices that are updated, [] each."""
        numbers: list[tuple[ParameterInfo, Tensor]] = []
        for flat, group in held:
            made_of = self.flats[flat]
            squares = torch.zeros(len(made_of.parameters), 2, device=flat.device)
            for placed in made_of.parts:
                if placed.counted and _is_matrix(placed.part.info):
                    both = placed.of(flat), self._along(flat, placed, group)
                    squares[placed.number] = torch.stack([square_sum([one]) for one in both])
            numbers += [pair for pair in zip(made_of.parameters, squares, strict=True) if _is_matrix(pair[0])]
        ratios = {}
        for (info, _), (weight, along) in zip(numbers, self._totals(numbers), strict=True):
            ratios[info.name] = torch.where((weight > 0) & (along > 0), (weight / along).sqrt(), 1.0)
        return ratios


def _is_matrix(info: ParameterInfo) -> bool:
    return len(info.shape) > 1


def fresh_state(optimizer: AdamW, flat: Tensor, updates: int) -> dict[str, Any]:
    """Returns what the optimizer keeps of one of its tensors after so many updates, all moments 0."""
    zeros = {key: torch.zeros_like(flat, requires_grad=False) for key in optimizer.moments(flat)}
    return {"step": torch.tensor(float(updates), device=flat.device), **zeros}
