"""What a model type of transformers is: its classes, its `config.json`, and its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gpt1_ds.architecture.head import Kind
from gpt1_ds.config import ModelConfig
from gpt1_ds.interop.families.rules import Facts, Rule, same
from gpt1_ds.interop.families.settings import Settings

USUAL = {  # of every family but T5
    **{"kind": "gpt", "head_width": None, "attention_scale": "inverse_root"},
    **{"positions": "learned", "norm_kind": "layer", "biases": True, "tied": True, "logit_scale": "one"},
}
THEIR_ACTIVATION = {"gelu_tanh": "gelu_new", "gelu": "gelu"}


TOKEN_HEADS: Mapping[str, str] = {"span": "qa_outputs", "tags": "classifier"}  # what their classes call the matrix


def gelu_alone(model: ModelConfig) -> Iterator[str]:
    if model.activation not in THEIR_ACTIVATION:
        known = " and ".join(THEIR_ACTIVATION)
        yield f"model.activation={model.activation}: transformers' classes other than T5's know only {known}"


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
        """Yields why this family cannot express the model, one line each."""
        for key, value in self.needs.items():
            if getattr(model, key) != value:
                yield f"model.{key}={getattr(model, key)}: transformers' {self.stem} knows only {value}"
        yield from self.limits(model)

    def other_dropouts(self, model: ModelConfig, settings: Settings) -> dict[str, float]:
        """Returns the dropout rates, by our keys, with which transformers trains this model and which are not its own
        ones: `settings`, its `config.json`, has fewer keys for them.
        """
        theirs = self.read_config(settings)
        keys = [key.name for key in fields(ModelConfig) if key.name.endswith("_dropout")]
        return {key: getattr(theirs, key) for key in keys if getattr(theirs, key) != getattr(model, key)}

    def short(self, name: str) -> str:
        """Returns a file's name of a parameter as the rules have it."""
        for old, new in self.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name.removeprefix(self.prefix)

    def full(self, name: str) -> str:
        """Returns a short name as transformers saves it."""
        return name if name.startswith(self.outside) else self.prefix + name

    def their_names(self, name: str) -> tuple[str, ...]:
        """Returns the short names for a canonical one. Raises KeyError for what this family does not have."""
        block = _BLOCK.search(name)
        return tuple(theirs.replace("*", block[0] if block else "*") for theirs in self._rule(name).theirs)

    def with_token_head(self, kind: Kind) -> Family:
        """Returns this family with the head of its ...ForQuestionAnswering (`span`) or ...ForTokenClassification
        (`tags`).
        """
        theirs = TOKEN_HEADS[kind]
        rules = tuple(rule for rule in self.rules if not rule.ours.startswith(("head.", "pooler.")))
        rules += same("head", theirs)
        return replace(self, rules=rules, outside=(*self.outside, f"{theirs}."))

    @property
    def head_weight(self) -> str | None:
        """Returns the short name of the last matrix of its ...ForSequenceClassification; None if none is read here."""
        rule = self._table.get("head.weight")
        return None if rule is None else rule.theirs[0]

    def has(self, name: str) -> bool:
        """Returns whether files of this family have the canonical parameter."""
        return _BLOCK.sub("*", name, count=1) in self._table

    def to_theirs(self, name: str, value: Tensor, facts: Facts) -> dict[str, Tensor]:
        """Returns a parameter of ours under their short names."""
        parts = self._rule(name).transform.to_theirs(value, facts)
        return {theirs: part.contiguous() for theirs, part in zip(self.their_names(name), parts, strict=True)}

    def from_theirs(self, name: str, theirs: Mapping[str, Tensor], facts: Facts) -> Tensor:
        """Returns a parameter of ours from theirs; the inverse of `to_theirs`."""
        parts = tuple(theirs[short] for short in self.their_names(name))
        return self._rule(name).transform.to_ours(parts, facts).contiguous()

    def their_shapes(self, shapes: Mapping[str, tuple[int, ...]], facts: Facts) -> dict[str, tuple[int, ...]]:
        """Returns shapes by short name, from shapes by canonical name."""
        values = ((name, torch.empty(shape, device="meta")) for name, shape in shapes.items())
        parts = (self.to_theirs(name, value, facts).items() for name, value in values)
        return {short: tuple(part.shape) for items in parts for short, part in items}

    def _rule(self, name: str) -> Rule:
        return self._table[_BLOCK.sub("*", name, count=1)]

    @cached_property
    def _table(self) -> dict[str, Rule]:
        return {rule.ours: rule for rule in self.rules}
