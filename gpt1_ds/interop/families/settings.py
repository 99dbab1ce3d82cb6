"""A `config.json` of transformers, as a stranger may have written it: every value is checked when it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import CheckpointError

LARGEST = {
    **{"layers": 1 << 10, "width": 1 << 16, "heads": 1 << 12, "head_width": 1 << 12, "ffn": 1 << 20},
    **{"context": 1 << 20, "vocab_size": 1 << 24, "pad": 1 << 24},
}
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


class Settings:
    """The values of a `config.json` of the family `title`. What is missing is what transformers assumes. `differ` says
    of two names of tensors whether the files beside it have both, and not alike.

    All methods raise CheckpointError with one line that names the file, the key and its value.
    """

    def __init__(
        self,
        path: Path,
        values: dict[str, Any],
        title: str,
        differ: Callable[[str, str], bool] = lambda _one, _other: False,
    ) -> None:
        self.path, self.values, self.title, self.differ = path, values, title, differ

    def number(self, ours: str, key: str, default: int, *synonyms: str, least: int = 1) -> int:
        """Returns a whole number from `least` to the largest that `ours` may be."""
        given = {name: self.values[name] for name in (key, *synonyms) if name in self.values}
        for name, value in given.items():
            if type(value) is not int or not least <= value <= LARGEST[ours]:
                what = f"a whole number from {least} to {LARGEST[ours]}"
                raise CheckpointError(f"{self.path}: {name} {value!r:.60} is not {what}")
        if len(set(given.values())) > 1:
            differ = " and ".join(f"{name} {value}" for name, value in given.items())
            raise CheckpointError(f"{self.path}: {differ} differ")
        return next(iter(given.values()), default)

    def real(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if type(value) not in (int, float) or not abs(value) <= 1e9:
            raise CheckpointError(f"{self.path}: {key} {value!r:.60} is not a number")
        return float(value)

    def one_of(self, key: str, *allowed: Any) -> Any:
        """Returns the value, which must be one of these; the first is what transformers assumes."""
        value = self.values.get(key, allowed[0])
        if not any(type(value) is type(known) and value == known for known in allowed):
            known = f", {allowed[0]}" if len(allowed) == 1 else f"; {' or '.join(map(str, allowed))} is"
            raise CheckpointError(f"{self.path}: {key} {value!r:.60} is not {self.title}'s{known}")
        return value

    def switches(self, **wanted: bool) -> None:
        """Checks that each switch is as transformers assumes."""
        for key, on in wanted.items():
            if key in self.values and (self.values[key] or False) is not on:
                is_on, wanted_on = ("on" if value else "off" for value in (self.values[key], on))
                raise CheckpointError(f"{self.path}: {key} is {is_on}; {self.title}'s is {wanted_on}")

    def activation(self, key: str, default: str) -> Any:
        return ACTIVATIONS[self.one_of(key, default, *(name for name in ACTIVATIONS if name != default))]
