"""What is read, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

EMBEDDED = "python-docs"  # the corpus inside every Python: its documentation


@dataclass(frozen=True, kw_only=True)
class DataSource:
    path: str  # a folder that `gpt1-ds data build` made
    weight: float = 1.0  # share of the sequences, relative to the other sources


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: list[DataSource] = field(default_factory=lambda: [DataSource(path=EMBEDDED)])  # a folder, or {path, weight}s
    text: Literal["windows", "full_sentences", "pairs"] = "windows"  # of a row: tokens, whole sentences, two texts
    unique_tokens: int | None = None  # train on this many distinct tokens only (per source); null: all
    offsets: Literal["fixed", "epoch"] = "fixed"  # windows begin at the same tokens in every pass; or elsewhere in each
    verify: bool = True  # compare the hash of every shard before training, on every host's disk
    epochs_limit: float | None = None  # refuse to pass over the data more often than this; null: no limit

    def problems(self) -> Iterator[str]:
        if not self.path:
            yield "data.path is empty; name a folder made by `gpt1-ds data build`"
        for source in self.path:
            if not source.weight > 0:
                yield f"data.path: weight={source.weight} of {source.path} must be above 0; or leave the source out"
        if self.unique_tokens is not None and self.unique_tokens < 1:
            yield f"data.unique_tokens={self.unique_tokens} must be at least 1; leave it out to use all"
        if self.unique_tokens is not None and self.offsets == "epoch":
            yield "data.unique_tokens takes whole windows, data.offsets=epoch cuts others in each pass; leave one out"
        if self.text != "windows" and self.offsets == "epoch":
            yield f"data.offsets=epoch moves windows; data.text={self.text} has whole sentences: leave data.offsets out"
        if self.text == "pairs" and self.unique_tokens is not None:
            yield "data.unique_tokens cannot cap data.text=pairs, which differ in each pass; build a smaller dataset"
        if self.epochs_limit is not None and not self.epochs_limit > 0:
            yield f"data.epochs_limit={self.epochs_limit} must be above 0; leave it out for no limit"
