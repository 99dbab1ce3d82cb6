"""`gpt1_ds.load`: a checkpoint for people who work in Python."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Unpack, get_args, overload

import numpy as np
import torch

from gpt1_ds.common.errors import ArgumentError, CheckpointError
from gpt1_ds.common.text import count
from gpt1_ds.evaluation.embed import Embedder, Float32s, Pooled, nearest
from gpt1_ds.evaluation.generate import Filling, fill, written
from gpt1_ds.evaluation.load import Loaded, check_device, load_checkpoint
from gpt1_ds.evaluation.predict import Prediction, Predictor
from gpt1_ds.evaluation.probes import frame_of, log_likelihoods
from gpt1_ds.evaluation.sampling import Sampling, SamplingArguments
from gpt1_ds.tasks.lines import LineReader
from gpt1_ds.tasks.rows import BadRowError
from gpt1_ds.tasks.tables import unusable

Texts: TypeAlias = list[str] | tuple[str, ...]
OneExample: TypeAlias = str | tuple[str, ...] | Mapping[str, Any]
Alike = TypeVar("Alike", bound=OneExample)  # a variable that holds a list is a list of texts, or of pairs


class LanguageModel(Loaded):
    """A model and its tokenizer: `model, tokenizer = gpt1_ds.load(CKPT)`, or the methods of the whole, which take one
    text or a list of them.

    `model` is a torch module: `model(ids_BS)` gives, with gradients, fp32 logits [B, S, V] of integers [B, S] (of an
    encoder-decoder `model(source_BS, target_BT)` gives [B, T, V]); `model.logits(tokens_SB)` is the same with positions
    first; of a fine-tuned one `model.scores(tokens_SB, extract_B)` is what its head says of each example [E, K].
    `tokenizer(text)` gives ids.
    """

    def __repr__(self) -> str:  # a notebook shows it: the modules and all keys would fill pages
        size = count(sum(weight.numel() for weight in self.model.parameters()))
        return f"{type(self).__name__}({str(self.folder)!r}, kind={self.config.model.kind!r}, {size} parameters)"

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.tokenizer))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Any:
        return (self.model, self.tokenizer)[place]

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> LanguageModel:
        """Returns this object, its model moved to `device`. Raises ArgumentError for a device that cannot be used."""
        check_device(device)
        self.model.to(device)
        return self

    @overload
    def generate(self, text: str, tokens: int | None = ..., **choice: Unpack[SamplingArguments]) -> str: ...
    @overload
    def generate(self, text: Texts, tokens: int | None = ..., **choice: Unpack[SamplingArguments]) -> list[str]: ...
    def generate(
        self, text: str | Texts, tokens: int | None = None, **choice: Unpack[SamplingArguments]
    ) -> str | list[str]:
        """Returns what follows `text` (which is not repeated), at most `tokens` tokens (100); of an encoder-decoder its
        answer. Of a list, a list, from batches: each text as if it came alone.

        `temperature` 0 takes the likeliest token (0.8); `top_k` (0: all) and `top_p` (1: all) say what is drawn from,
        `seed` (0) is that of the draws. `beams` above 1 look for the likeliest text instead. `min_tokens`,
        `repetition_penalty`, `length_penalty`, `length_alpha` and `early_end` are described in sampling.py. Raises
        ArgumentError for values out of range and a text that is too long, ConfigError for a masked model, which
        continues no text.
        """
        texts = _texts("text", text)
        sampling = Sampling(tokens, **choice)
        try:
            found = written(self, texts, sampling)
        except ArgumentError as error:
            raise error.renamed(source="text") from None
        return found[0] if isinstance(text, str) else found

    @overload
    def score(self, text: str) -> float: ...
    @overload
    def score(self, text: Texts) -> list[float]: ...
    def score(self, text: str | Texts) -> float | list[float]:
        """Returns the log-likelihood of the whole text, nats: of each token given those before it, and of a masked
        model given all others (pseudo-log-likelihood). A document begins with the text. Of a list, a list, from
        batches.

        Raises ArgumentError for a text without tokens, or with more than the model sees at once, CheckpointError where
        the model gives no finite numbers.
        """
        frame, encoded = frame_of(self), [self.tokenizer.encode(one) for one in _texts("text", text)]
        ArgumentError.raise_all(
            f"text={one!r:.60} has {len(tokens)} tokens; {self.folder} scores 1 to {frame.most} at a time"
            for one, tokens in zip(_texts("text", text), encoded, strict=True)
            if not 0 < len(tokens) <= frame.most
        )
        order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))  # neighbours share a batch
        rows = [frame.around(frame.before, encoded[number]) for number in order]
        found_N2 = log_likelihoods(self, frame, rows, [len(encoded[number]) for number in order])
        if not np.isfinite(found_N2).all():
            raise CheckpointError(f"{self.folder}: its weights give no finite numbers: this is no trained model")
        of = dict(zip(order, found_N2[:, 0].tolist(), strict=True))
        return of[0] if isinstance(text, str) else [of[number] for number in range(len(encoded))]

    def embed(self, text: str | Texts, pooling: Pooled | None = None) -> Float32s:
        """Returns fp32 [width]: the vector of a text; of a list [N, width], from batches. `pooling` is mean, max, cls
        or words (None: as it was trained, else mean). A text that is longer than the model reads is cut.

        Raises ArgumentError for a pooling that the model does not have, ConfigError for a model without such vectors.
        """
        if pooling is not None and pooling not in get_args(Pooled)[1:] + get_args(get_args(Pooled)[0]):
            raise ArgumentError(f"pooling={pooling!r} is not known; choose mean, max, cls or words")
        vectors_ND = Embedder(self, pooling).vectors(_texts("text", text))
        one: Float32s = vectors_ND[0] if isinstance(text, str) else vectors_ND
        return one

    @overload
    def fill(self, text: str, top: int = ...) -> list[Filling]: ...
    @overload
    def fill(self, text: Texts, top: int = ...) -> list[list[Filling]]: ...
    def fill(self, text: str | Texts, top: int = 5) -> list[Filling] | list[list[Filling]]:
        """Returns the `top` likeliest tokens for each `<mask>` of the text, likeliest first: mask, token, probability
        and the text with it. Of a list, a list: each text by itself.

        Raises ArgumentError for a text without a mask or longer than the context, ConfigError for a model that
        continues text.
        """
        _at_least_one("top", top)
        found = [fill(self, one, top) for one in _texts("text", text)]
        return found[0] if isinstance(text, str) else found

    @overload
    def predict(self, example: list[OneExample]) -> list[Prediction]: ...
    @overload
    def predict(self, example: list[Alike]) -> list[Prediction]: ...
    @overload
    def predict(self, example: OneExample) -> Prediction: ...
    def predict(self, example: OneExample | list[OneExample] | list[Alike]) -> Prediction | list[Prediction]:
        """Returns what a fine-tuned model says: label, probabilities, or score; of a span its text, start and stop;
        tags. An example is its text, a tuple of its texts and choices in the task's order, or a mapping with text,
        text2 and choices, or question and context, or tokens. Of a list, a list, from batches.

        Raises ArgumentError for what is no example of the task, CheckpointError for a model without a task.
        """
        predictor = Predictor(self)
        reader = LineReader(predictor.task, predictor.settings, "jsonl")
        examples = []
        for number, one in enumerate(example if isinstance(example, list) else [example], start=1):
            try:
                if isinstance(one, Mapping):
                    examples.append(reader.of_values(one, number))
                elif isinstance(one, (str, tuple)):
                    examples.append(reader.of_fields([one] if isinstance(one, str) else one, number))
                else:
                    raise BadRowError("no text, tuple of texts or mapping")
                predictor.check(examples[-1])
            except BadRowError as problem:
                raise ArgumentError(f"example={one!r:.60}: {problem}") from None
        found = predictor.predict(examples)
        return found if isinstance(example, list) else found[0]

    @overload
    def search(
        self, query: str, documents: Texts | Float32s, top: int = ..., pooling: Pooled | None = ...
    ) -> list[Hit]: ...
    @overload
    def search(
        self, query: Texts, documents: Texts | Float32s, top: int = ..., pooling: Pooled | None = ...
    ) -> list[list[Hit]]: ...
    def search(
        self, query: str | Texts, documents: Texts | Float32s, top: int = 10, pooling: Pooled | None = None
    ) -> list[Hit] | list[list[Hit]]:
        """Returns the `top` documents that are nearest to the query by the cosine of their vectors, nearest first.
        `documents` are texts, or their vectors fp32 [N, width] (of `embed`), which are then not computed again. Of a
        list of queries, a list.

        Raises ArgumentError and ConfigError as `embed` does.
        """
        _at_least_one("top", top)
        vectors_ND = (
            documents if isinstance(documents, np.ndarray) else self.embed(_texts("documents", documents), pooling)
        )
        queries_QD = self.embed(_texts("query", query), pooling)
        if vectors_ND.ndim != 2 or vectors_ND.shape[1] != queries_QD.shape[1]:
            shape = list(vectors_ND.shape)
            raise ArgumentError(f"documents has the shape {shape}; vectors are [documents, {queries_QD.shape[1]}]")
        if not np.isfinite(vectors_ND).all():
            raise ArgumentError("documents has a vector with nan or inf, which is near to nothing; leave it out")
        found = [[Hit(*one) for one in nearest(query_D, vectors_ND, top)] for query_D in queries_QD]
        return found[0] if isinstance(query, str) else found


@dataclass(frozen=True)
class Hit:
    """A document that was found: its number, from 0, and its cosine with the query."""

    number: int
    cosine: float


def _texts(name: str, given: str | Texts) -> list[str]:
    """Returns the texts of an argument that is one or many."""
    found = [given] if isinstance(given, str) else list(given) if isinstance(given, (list, tuple)) else [given]
    ArgumentError.raise_all(
        f"{name}={one!r:.60} is no text; give a str, or a list of them" for one in found if not isinstance(one, str)
    )
    ArgumentError.raise_all(f"{name}={one!r:.60} {problem}" for one in found if (problem := unusable(one)))
    return found


def _at_least_one(name: str, value: int) -> None:
    if not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name}={value!r:.60} must be a whole number")
    if value < 1:
        raise ArgumentError(f"{name}={value} must be at least 1")


_LOADING = threading.Lock()  # torch's process group and the hook for errors are one for all threads


def load(path: str | os.PathLike[str], device: str | None = None) -> LanguageModel:
    """Returns the model of CKPT: a checkpoint folder, or of a run folder its best or newest; on `device`, or on the GPU
    where there is one. Unpacks into (model, tokenizer). Raises CheckpointError, or ArgumentError for a device that
    cannot be used.
    """
    if device is not None:
        check_device(device)
    with _LOADING:
        hook = sys.excepthook
        try:
            loaded = load_checkpoint(Path(path), device)
        finally:
            sys.excepthook = hook  # torch's own, of a process group, writes the rank before every line
    return LanguageModel(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})
