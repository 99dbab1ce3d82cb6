"""`gpt1_ds.load`: a checkpoint for people who work in Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpt1_ds.common.errors import CheckpointError, ConfigError
from gpt1_ds.common.units import count
from gpt1_ds.evaluation.answer import answer
from gpt1_ds.evaluation.embed import Embedder, Float32s, Pooled
from gpt1_ds.evaluation.generate import generate
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.probes import frame_of, log_likelihoods
from gpt1_ds.evaluation.sampling import Sampling


class LanguageModel(Loaded):
    """A model and its tokenizer: `model, tokenizer = gpt1_ds.load(CKPT)`, or the methods of the whole.

    `model(ids_BS)` gives fp32 logits [B, S, V] of integers [B, S] (of an encoder-decoder `model(source_BS, target_BT)`
    gives [B, T, V]); `model.logits(tokens_SB)` is the same with positions first; of a fine-tuned one
    `model.scores(tokens_SB, extract_B)` is what its head says of each example [E, K]. `tokenizer(text)` gives ids.
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

    def generate(self, text: str, tokens: int = 100, **sampling: Any) -> str:
        """What follows `text` (which is not repeated); of an encoder-decoder what it answers. `sampling`: temperature
        (0.8; 0 takes the likeliest token), top_k (0: all), top_p (1: all), seed (0).

        Raises UserError for values out of range and for a masked model, which continues no text.
        """
        known = [field.name for field in fields(Sampling)]
        ConfigError.raise_all(
            f"generate: there is no {name}={value!r}; choose {', '.join(known)}"
            for name, value in sampling.items()
            if name not in known
        )
        write = answer if self.config.model.kind == "encoder_decoder" else generate
        return write(self, text, Sampling(tokens, **sampling))

    def score(self, text: str) -> float:
        """Log-likelihood of the whole text, nats: of each token given those before it, and of a masked model given all
        others (pseudo-log-likelihood). A document begins with the text.

        Raises ConfigError for a text without tokens, or with more than the model sees at once.
        """
        frame, tokens = frame_of(self), self.tokenizer.encode(text)
        if not 0 < len(tokens) <= frame.most:
            raise ConfigError(
                f"score: {text!r:.60} has {len(tokens)} tokens; {self.folder} scores 1 to {frame.most} at a time"
            )
        ((found, _),) = log_likelihoods(self, frame, [frame.around(frame.before, tokens)], [len(tokens)])
        if not math.isfinite(found):
            raise CheckpointError(f"{self.folder}: its weights give no finite numbers: this is no trained model")
        return float(found)

    def embed(self, texts: Sequence[str], pooling: Pooled | None = None) -> Float32s:
        """fp32 [N, width]: a vector of each text; `pooling` is mean, max, cls or words (null: as it was trained, else
        mean). A text that is longer than the model reads is cut.

        Raises ConfigError for a model that has no such vectors.
        """
        if isinstance(texts, str):
            raise ConfigError(f"embed: {texts!r:.60} is one text; give a list of texts")
        return Embedder(self, pooling).vectors(texts)


def load(path: Path | str, device: str | None = None) -> LanguageModel:
    """The model of CKPT: a checkpoint folder, or of a run folder its best or newest; on `device`, or on the GPU where
    there is one. Unpacks into (model, tokenizer). Raises CheckpointError.
    """
    loaded = load_checkpoint(path, device)
    return LanguageModel(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})
