"""How a model of sentence-transformers makes a vector of a text: what stands around the text, which states are pooled,
and what is done with the result.

Shapes: S positions, B rows, D width, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt1_ds.model.heads import AnyPooling, pooled
from gpt1_ds.model.layers import TensorParallel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # by the names that torch gives their classes
    **{"Identity": lambda value: value, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu},
    **{"Sigmoid": torch.sigmoid, "SiLU": F.silu},
}
KINDS = ("dense", "layer_norm", "normalize", "truncate")


@dataclass(frozen=True)
class Step:
    """A step that is applied to the pooled states: a `dense` layer, whose input is added to its output where it is a
    `residual`; a layer norm; division by the length; or the first `size` features alone.
    """

    kind: str
    activation: str = "Identity"
    residual: bool = False
    size: int = 0


@dataclass(frozen=True)
class SentenceVector:
    """`limit` is in tokens, those of `first` and `last` included, which are the ids around a text; `prompt` is text
    before it. Where several states are pooled, their vectors are joined. `weights` are those of the steps, fp32, named
    `<number of the step>.<weight, bias or residual>`.
    """

    pooling: tuple[AnyPooling, ...]
    limit: int
    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    prompt: str = ""
    steps: tuple[Step, ...] = ()
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> SentenceVector:
        """Returns the inverse of `values`. Raises TypeError or ValueError for what this program did not write."""
        found = cls(
            tuple(values["pooling"]),
            values["limit"],
            tuple(values["first"]),
            tuple(values["last"]),
            values["prompt"],
            tuple(Step(**step) for step in values["steps"]),
            weights,
        )
        known = set(found.pooling) <= set(get_args(AnyPooling)) and len(found.pooling) > 0
        known = known and all(step.kind in KINDS and step.activation in ACTIVATIONS for step in found.steps)
        counts = (found.limit, *found.first, *found.last, *(step.size for step in found.steps))
        if not known or not all(type(count) is int and 0 <= count < 2**31 for count in counts):
            raise ValueError("no vector that this program knows")
        return found

    @property
    def values(self) -> dict[str, Any]:
        """Returns its description as JSON, without the weights."""
        described = asdict(self)
        described.pop("weights")
        return described

    def __str__(self) -> str:
        return "+".join(self.pooling) + "".join(f", {step.kind}" for step in self.steps)

    def of_states(self, hidden_SBD: Tensor, length_B: Tensor, tensor: TensorParallel) -> Tensor:
        """Returns fp32 [B, F]: the vector of each row, of its first `length_B` states. Zeros stand for those of no
        states: a tokenizer that puts nothing around an empty text gives it no tokens.
        """
        at_least_one_B = length_B.clamp(min=1)
        vector_BF = torch.cat([pooled(hidden_SBD, at_least_one_B, mode, tensor) for mode in self.pooling], dim=-1)
        vector_BF = vector_BF * (length_B > 0).unsqueeze(-1)
        for number, step in enumerate(self.steps):
            vector_BF = self._done(vector_BF, number, step)
        return vector_BF

    def _done(self, vector_BF: Tensor, number: int, step: Step) -> Tensor:
        parts = {name: self.weights.get(f"{number}.{name}") for name in ("weight", "bias", "residual")}
        weight, bias, residual = (None if part is None else part.to(vector_BF.device) for part in parts.values())
        if step.kind == "normalize":
            return F.normalize(vector_BF, dim=-1)
        if step.kind == "truncate":
            return vector_BF[:, : step.size]
        assert weight is not None, "checked when it was read"
        if step.kind == "layer_norm":
            return F.layer_norm(vector_BF, weight.shape, weight, bias)
        made_BF = ACTIVATIONS[step.activation](F.linear(vector_BF, weight, bias))
        if not step.residual:
            return made_BF
        return made_BF + (vector_BF if residual is None else F.linear(vector_BF, residual))

    def size(self, width: int) -> int:
        """Returns the number of features of a vector of a model of this width. Raises ValueError for weights of another
        one.
        """
        size = width * len(self.pooling)
        for number, step in enumerate(self.steps):
            if step.kind == "truncate":
                size = min(size, step.size)
            elif step.kind == "dense":
                size = self._checked_size(number, step, size)
            elif step.kind == "layer_norm":
                self._check(number, {"weight": (size,), "bias": (size,)})
        return size

    def _checked_size(self, number: int, step: Step, size: int) -> int:
        """Returns the number of features that a dense layer makes of `size`."""
        weight = self.weights.get(f"{number}.weight")
        made = int(weight.shape[0]) if weight is not None and weight.ndim == 2 else 0
        shapes: dict[str, tuple[int, ...]] = {"weight": (made, size)}
        if f"{number}.bias" in self.weights:
            shapes["bias"] = (made,)
        if step.residual and made != size:
            shapes["residual"] = (made, size)
        self._check(number, shapes)
        return made

    def _check(self, number: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            value = self.weights.get(f"{number}.{name}")
            if value is None or value.shape != shape:
                found = "missing" if value is None else f"{list(value.shape)}"
                raise ValueError(f"{name} of its layer {number} after pooling is {found}, not {list(shape)}")
