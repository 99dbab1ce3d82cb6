"""What a model type of transformers is: its classes, its `config.json`, as a stranger may have written it, and the
names and transforms of its parameters.

D width, N heads, H head width, P parts of a fused matrix, whose rows are [N, P, H] here (architecture/block.py); the
rows of a gated layer are [F, 2].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import Kind
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.config import ModelConfig

LARGEST = {
    **{"layers": 1 << 10, "width": 1 << 16, "heads": 1 << 12, "head_width": 1 << 12, "ffn": 1 << 20},
    **{"context": 1 << 20, "vocab_size": 1 << 24, "pad": 1 << 24},
}
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
USUAL = {  # of every family but T5
    **{"kind": "gpt", "head_width": None, "attention_scale": "inverse_root"},
    **{"positions": "learned", "norm_kind": "layer", "biases": True, "tied": True, "logit_scale": "one"},
}
THEIR_ACTIVATION = {"gelu_tanh": "gelu_new", "gelu": "gelu"}


def gelu_alone(model: ModelConfig) -> Iterator[str]:
    if model.activation not in THEIR_ACTIVATION:
        known = " and ".join(THEIR_ACTIVATION)
        yield f"model.activation={model.activation}: transformers' classes other than T5's know only {known}"


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
        """A whole number from `least` to the largest that `ours` may be."""
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
        """The value, which must be one of these; the first is what transformers assumes."""
        value = self.values.get(key, allowed[0])
        if not any(type(value) is type(known) and value == known for known in allowed):
            known = f", {allowed[0]}" if len(allowed) == 1 else f"; {' or '.join(map(str, allowed))} is"
            raise CheckpointError(f"{self.path}: {key} {value!r:.60} is not {self.title}'s{known}")
        return value

    def switches(self, **wanted: bool) -> None:
        """Each must be as transformers assumes."""
        for key, on in wanted.items():
            if key in self.values and (self.values[key] or False) is not on:
                is_on, wanted_on = ("on" if value else "off" for value in (self.values[key], on))
                raise CheckpointError(f"{self.path}: {key} is {is_on}; {self.title}'s is {wanted_on}")

    def activation(self, key: str, default: str) -> Any:
        return ACTIVATIONS[self.one_of(key, default, *(name for name in ACTIVATIONS if name != default))]


@dataclass(frozen=True)
class Facts:
    """What a transform asks of a model: heads, and the rows of their position table before the first position."""

    heads: int
    first_position: int = 0


@dataclass(frozen=True)
class Transform:
    """`there` gives one tensor for each of their names; `back` is its inverse, bit for bit."""

    there: Callable[[Tensor, Facts], tuple[Tensor, ...]]
    back: Callable[[tuple[Tensor, ...], Facts], Tensor]


TOKEN_HEADS: Mapping[str, str] = {"span": "qa_outputs", "tags": "classifier"}  # what their classes call the matrix


@dataclass(frozen=True)
class Rule:
    """Canonical name -> theirs; a `*` in both stands for the number of the block."""

    ours: str
    theirs: tuple[str, ...]
    transform: Transform


def linear_rules(ours: str, theirs: str | tuple[str, ...], weight: Transform, bias: Transform) -> tuple[Rule, Rule]:
    """The rules of a matrix and its bias."""
    names = (theirs,) if isinstance(theirs, str) else theirs
    matrix = Rule(f"{ours}.weight", tuple(f"{name}.weight" for name in names), weight)
    return matrix, Rule(f"{ours}.bias", tuple(f"{name}.bias" for name in names), bias)


def matrix(ours: str, theirs: str) -> Rule:
    """The rule of a norm or a linear layer without a bias, stored alike."""
    return Rule(f"{ours}.weight", (f"{theirs}.weight",), SAME)


def same(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """The rules of a norm or a linear layer that is stored alike."""
    return linear_rules(ours, theirs, SAME, SAME)


def conv1d(ours: str, theirs: str) -> tuple[Rule, Rule]:
    """The rules of a transformers `Conv1D`, whose matrix is [in, out]; ours is [out, in]."""
    return linear_rules(ours, theirs, TRANSPOSED, SAME)


def _by_part(rows: Tensor, facts: Facts, count: int = 3) -> Tensor:
    """Rows [N, P, H] as [P, N, H]."""
    parts: Tensor = rows.unflatten(0, (facts.heads, count, -1))
    return parts.transpose(0, 1).flatten(0, 2)


def _by_head(rows: Tensor, facts: Facts, count: int = 3) -> Tensor:
    """Rows [P, N, H] as [N, P, H]."""
    parts: Tensor = rows.unflatten(0, (count, facts.heads, -1))
    return parts.transpose(0, 1).flatten(0, 2)


def _shifted(rows_SD: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
    """Positions after rows that no token has, and a table of one segment, which is zero."""
    unused = rows_SD.new_zeros(facts.first_position, rows_SD.shape[1])
    return torch.cat([unused, rows_SD]), rows_SD.new_zeros(1, rows_SD.shape[1])


def _positions(theirs: tuple[Tensor, ...], facts: Facts) -> Tensor:
    """Every token has the one segment, so its row is part of the positions."""
    rows_SD, segment_1D = theirs
    rows_SD = rows_SD[facts.first_position :]
    return rows_SD + segment_1D if segment_1D.any() else rows_SD.clone()  # -0.0 + 0.0 would be 0.0


SAME = Transform(lambda value, _: (value,), lambda theirs, _: theirs[0])
TRANSPOSED = Transform(lambda value, _: (value.T,), lambda theirs, _: theirs[0].T)
QKV = Transform(lambda value, facts: (_by_part(value, facts),), lambda theirs, facts: _by_head(theirs[0], facts))
QKV_TRANSPOSED = Transform(
    lambda value, facts: (_by_part(value, facts).T,), lambda theirs, facts: _by_head(theirs[0].T, facts)
)
THREE = Transform(
    lambda value, facts: tuple(_by_part(value, facts).chunk(3)),
    lambda theirs, facts: _by_head(torch.cat(theirs), facts),
)
TWO = Transform(
    lambda value, facts: tuple(_by_part(value, facts, 2).chunk(2)),
    lambda theirs, facts: _by_head(torch.cat(theirs), facts, 2),
)
PAIRS = Transform(lambda value, _: (value[::2], value[1::2]), lambda theirs, _: torch.stack(theirs, 1).flatten(0, 1))
TABLES = Transform(
    lambda value, _: tuple(table.T for table in value), lambda theirs, _: torch.stack([table.T for table in theirs])
)
SHIFTED = Transform(_shifted, _positions)


_BLOCK = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Family:
    """Names of parameters are short: as in transformers, without the `prefix` of the base model."""

    model_type: str
    title: str  # in messages
    stem: str  # with which the names of its classes begin
    language_model: str  # their class
    prefix: str
    needs: Mapping[str, Any]  # what a ModelConfig must say to be this model
    read_config: Callable[[Settings], ModelConfig]
    write_config: Callable[[ModelConfig, int], dict[str, Any]]  # the number is the id of padding
    rules: tuple[Rule, ...]
    is_variant: Callable[[Settings], bool] = lambda _: True  # whether a `config.json` of its model type is of this one
    limits: Callable[[ModelConfig], Iterator[str]] = lambda _: iter(())  # other things that it cannot express
    first_position: Callable[[Settings], int] = lambda _: 0  # rows of their position table before it
    classifier: Kind = "linear"  # the head of its ...ForSequenceClassification
    choices: str | None = None  # their class that scores several sequences
    pairs: str | None = None  # their class that was pre-trained on pairs of texts
    outside: tuple[str, ...] = ()  # beginnings of names that are no part of the base model
    copies: Mapping[str, str] = field(default_factory=dict)  # may be saved twice: name -> the one that it equals
    renamed: Mapping[str, str] = field(default_factory=dict)  # ends of names in old files -> now
    left_out: tuple[str, ...] = ()  # names that an import does not take over
    why_left_out: str = ""
    optional: tuple[str, ...] = ()  # prefixes of our names that a file may lack as a whole; an import initialises them

    def problems(self, model: ModelConfig) -> Iterator[str]:
        """Why this family cannot express the model, one line each."""
        for key, value in self.needs.items():
            if getattr(model, key) != value:
                yield f"model.{key}={getattr(model, key)}: transformers' {self.stem} knows only {value}"
        yield from self.limits(model)

    def other_dropouts(self, model: ModelConfig, settings: Settings) -> dict[str, float]:
        """The dropout rates, by our keys, with which transformers trains this model and which are not its own ones:
        `settings`, its `config.json`, has fewer keys for them.
        """
        theirs = self.read_config(settings)
        keys = [key.name for key in fields(ModelConfig) if key.name.endswith("_dropout")]
        return {key: getattr(theirs, key) for key in keys if getattr(theirs, key) != getattr(model, key)}

    def short(self, name: str) -> str:
        """A name in a file as the rules have it."""
        for old, new in self.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name.removeprefix(self.prefix)

    def full(self, name: str) -> str:
        """A short name as transformers saves it."""
        return name if name.startswith(self.outside) else self.prefix + name

    def their_names(self, name: str) -> tuple[str, ...]:
        """Short names for a canonical one. Raises KeyError for what this family does not have."""
        found = _BLOCK.search(name)
        return tuple(theirs.replace("*", found[0] if found else "*") for theirs in self._rule(name).theirs)

    def with_token_head(self, kind: Kind) -> Family:
        """This family with the head of its ...ForQuestionAnswering (`span`) or ...ForTokenClassification (`tags`)."""
        theirs = TOKEN_HEADS[kind]
        rules = tuple(rule for rule in self.rules if not rule.ours.startswith(("head.", "pooler.")))
        rules += same("head", theirs)
        return replace(self, rules=rules, outside=(*self.outside, f"{theirs}."))

    @property
    def head_weight(self) -> str | None:
        """The short name of the last matrix of its ...ForSequenceClassification; None if none is read here."""
        rule = self._table.get("head.weight")
        return None if rule is None else rule.theirs[0]

    def has(self, name: str) -> bool:
        """Whether a file has the canonical parameter."""
        return _BLOCK.sub("*", name, count=1) in self._table

    def to_theirs(self, name: str, value: Tensor, facts: Facts) -> dict[str, Tensor]:
        """A parameter of ours under their short names."""
        parts = self._rule(name).transform.there(value, facts)
        return {theirs: part.contiguous() for theirs, part in zip(self.their_names(name), parts, strict=True)}

    def from_theirs(self, name: str, theirs: Mapping[str, Tensor], facts: Facts) -> Tensor:
        """The inverse of `to_theirs`."""
        parts = tuple(theirs[short] for short in self.their_names(name))
        return self._rule(name).transform.back(parts, facts).contiguous()

    def their_shapes(self, shapes: Mapping[str, tuple[int, ...]], facts: Facts) -> dict[str, tuple[int, ...]]:
        """Short names and shapes of canonical ones."""
        values = ((name, torch.empty(shape, device="meta")) for name, shape in shapes.items())
        parts = (self.to_theirs(name, value, facts).items() for name, value in values)
        return {short: tuple(part.shape) for items in parts for short, part in items}

    def _rule(self, name: str) -> Rule:
        return self._table[_BLOCK.sub("*", name, count=1)]

    @cached_property
    def _table(self) -> dict[str, Rule]:
        return {rule.ours: rule for rule in self.rules}
