"""Vectors of sentences, from any checkpoint whatever layout wrote it: what is nearest to what, and how well their
cosines agree with people's scores of pairs (`evaluate --sts`).

Shapes: N texts, S positions, B rows, D width.

Each rank holds the whole model and takes its part of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.architecture.head import Pooling
from gpt1_ds.checkpoint.restore import same_manifest
from gpt1_ds.common import log
from gpt1_ds.common.errors import ArgumentError, CheckpointError, ConfigError
from gpt1_ds.config import Config
from gpt1_ds.engine.agreement import digest
from gpt1_ds.engine.process_groups import ProcessGroups
from gpt1_ds.engine.session import distributed_session
from gpt1_ds.evaluation.load import Loaded, load_checkpoint
from gpt1_ds.evaluation.probes import frame_of
from gpt1_ds.model.heads import pooled
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.tasks.encoding import ROLES, length_limit
from gpt1_ds.tasks.example import Examples, hash_examples
from gpt1_ds.tasks.kinds.sentences import STS, Sentences
from gpt1_ds.tasks.metrics import measure
from gpt1_ds.tasks.questions import Frame
from gpt1_ds.tasks.reading import read_scored
from gpt1_ds.tracking.record import entry_key, merge, read_entries
from gpt1_ds.tracking.wandb import show_evaluation

Float32s = NDArray[np.float32]
Pooled = Literal[Pooling, "words"]
BATCH_TOKENS = 8192  # positions of one forward pass, padding included


class Embedder:
    """Vectors as `pooling` says: `words` is the mean of the text's token rows, without a look at the blocks; the others
    pool the last states, control symbols included. None: as the checkpoint was trained or imported, with all that
    sentence-transformers does after pooling, else mean. `cut` counts texts that were longer than the model reads.
    Raises ConfigError for a model that has no vectors, ArgumentError for one that has none of this kind.
    """

    def __init__(self, loaded: Loaded, pooling: Pooled | None = None) -> None:
        self.loaded, model = loaded, loaded.config.model
        if model.kind == "encoder_decoder" or model.mask == "prefix":
            what = f"model.kind={model.kind}, model.mask={model.mask}"
            raise ConfigError(
                f"{loaded.folder} ({what}): sentence vectors are those of causal and bidirectional models"
            )
        self.default = own_pooling(loaded)
        self.pooling: str = pooling or self.default
        self._whole = loaded.sentence if pooling is None else None  # that of sentence-transformers
        self.frame = _frame(loaded)
        if self._whole is None and self.pooling == "cls" and (model.mask == "causal" or not self.frame.first):
            why = "its first token sees no other" if model.mask == "causal" else "it has seen text without <cls>"
            raise ArgumentError(f"pooling=cls: {loaded.folder} has no such state: {why}; use mean or max")
        self.cut = 0

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], show: Callable[[int], None] = lambda _: None) -> Float32s:
        """Returns fp32 [N, D]; `show` is called with how many are done."""
        rows = [self._row(text) for text in texts]
        vectors_ND = np.zeros((len(rows), self._size), dtype=np.float32)
        order, done = np.argsort([-len(row) for row in rows], kind="stable"), 0
        while done < len(order):
            size = max(1, BATCH_TOKENS // max(1, len(rows[order[done]])))
            batch = order[done : done + size]
            vectors_ND[batch] = self._vectors([rows[number] for number in batch])
            done += len(batch)
            show(done)
        if not np.isfinite(vectors_ND).all():
            raise CheckpointError(f"{self.loaded.folder}: its weights give no finite numbers: this is no trained model")
        return vectors_ND

    @property
    def _size(self) -> int:
        """Returns the number of features of a vector."""
        width: int = self.loaded.config.model.width
        return width if self._whole is None else self._whole.size(width)

    def _row(self, text: str) -> NDArray[np.int32]:
        prompt = self._whole.prompt if self._whole is not None else ""
        tokens, frame = self.loaded.tokenizer.encode(prompt + text), self.frame
        self.cut += len(tokens) > frame.most
        tokens = tokens[: frame.most]
        return tokens if self.pooling == "words" else frame.around(frame.before, tokens)

    def _vectors(self, rows: Sequence[NDArray[np.int32]]) -> Float32s:
        """Returns [B, D] of the rows of one batch."""
        model = self.loaded.model
        device = next(model.parameters()).device
        length_B = np.array([len(row) for row in rows], dtype=np.int64)
        tokens_SB = np.zeros((max(1, length_B.max()), len(rows)), dtype=np.int64)
        for column, row in enumerate(rows):
            tokens_SB[: len(row), column] = row
        tokens, lengths = torch.from_numpy(tokens_SB).to(device), torch.from_numpy(length_B).to(device)
        if self.pooling == "words":
            states_SBD = model.tokens.weight[tokens]
            found_BD = pooled(states_SBD, lengths.clamp(min=1), "mean", model.tokens.tensor)
            return (found_BD * (lengths > 0).unsqueeze(-1)).cpu().numpy()  # a text without tokens has no words
        facts_BF = torch.from_numpy(row_facts(np.zeros_like(length_B), (length_B, length_B))).to(device)
        hidden_SBD = model.hidden(tokens, facts_BF)
        if self._whole is not None:
            return self._whole.of_states(hidden_SBD, lengths, model.tokens.tensor).cpu().numpy()
        mode: Pooling = self.pooling  # type: ignore[assignment]  # the others were dealt with above
        return pooled(hidden_SBD, lengths, mode, model.tokens.tensor).cpu().numpy()


def shared_vectors(
    embedder: Embedder, texts: Iterable[str], groups: ProcessGroups, watched: bool = True
) -> dict[str, Float32s]:
    """Returns text -> its vector [D], the same on every rank; each takes its part of the different texts. A bar shows
    it where it is `watched`.
    """
    order = sorted(set(texts), key=lambda text: (len(text), text))
    groups.compare({"texts": digest(text.encode() for text in order)})
    with log.bar(len(order) // groups.world, unit="{:,.0f} texts".format, watched=watched and groups.rank == 0) as show:
        mine = groups.agree(lambda: embedder.vectors(order[groups.rank :: groups.world], show))
    vectors: dict[str, Float32s] = {}
    for rank, found in enumerate(groups.gather(mine)):
        vectors |= dict(zip(order[rank :: groups.world], found, strict=True))
    return vectors


def own_pooling(loaded: Loaded) -> str:
    """Returns what the checkpoint's vectors were trained with; mean for a model that was not trained for them."""
    if loaded.sentence is not None:
        return str(loaded.sentence)
    if loaded.task is not None and loaded.config.task is not None and loaded.config.task.makes_vectors:
        return loaded.config.task.pooling
    return "mean"


def _frame(loaded: Loaded) -> Frame:
    """Returns what stands around a text: of a fine-tuned model the symbols of its task, and of sentence-transformers
    those of its tokenizer. All of a row is input here.
    """
    if (vector := loaded.sentence) is not None:
        return Frame(min(vector.limit, loaded.config.model.context), first=vector.first, last=vector.last)
    if loaded.task is None or loaded.config.task is None:
        frame = frame_of(loaded)
        return replace(frame, size=min(frame.size, loaded.config.model.context))
    first, _, last = ROLES[loaded.task.symbols]
    ids = loaded.tokenizer.special_ids
    begin, end = (ids.require(role, f"task.name={loaded.task.name}") for role in (first, last))
    limit = length_limit(loaded.config.task, loaded.config.model.context)
    return Frame(limit, first=(begin,), last=(end,))


def normalised(vectors_ND: Float32s) -> Float32s:
    """Returns [N, D], each of length 1; zeros stay."""
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    unit_ND: Float32s = (vectors_ND / np.maximum(lengths_N1, np.finfo(np.float32).tiny)).astype(np.float32)
    return unit_ND


def nearest(query_D: Float32s, documents_ND: Float32s, top: int) -> list[tuple[int, float]]:
    """Returns (number, cosine) of the `top` documents that are nearest to the query, nearest first; of equals the
    first.
    """
    cosine_N = normalised(documents_ND) @ normalised(query_D[None])[0]
    order = np.argsort(-cosine_N, kind="stable")[:top]
    return [(int(number), float(cosine_N[number])) for number in order]


def evaluate_sts(
    config: Config,
    checkpoints: Sequence[Path],
    out: Path | None,
    pairs: str,
    pooling: Pooled | None,
    missing: bool = False,
) -> int:
    """Scores `checkpoints` by the scored `pairs` (task.sts); rank 0 prints the results and merges them into
    `out` (eval.json) as task `sts`, or with another `pooling` than the checkpoint's own as `sts-words`. `missing`
    leaves out what `out` has already.
    """
    arguments = {"checkpoints": checkpoints, "pairs": pairs, "pooling": pooling, "missing": missing}
    with distributed_session(config, command="evaluate --sts", **arguments) as groups:
        splits = groups.agree(lambda: read_scored(pairs))
        there = groups.on_rank_0(lambda: read_entries(out))
        done = {entry_key(entry) for entry in there} if missing else set()
        for checkpoint in checkpoints:
            same_manifest(groups, checkpoint)
            embedder = groups.agree(lambda path=checkpoint: Embedder(load_checkpoint(path), pooling))  # type: ignore[misc]
            task = STS if embedder.pooling == embedder.default else f"{STS}-{embedder.pooling}"
            for split, examples in splits.items():
                entry = {"task": task, "split": split, "step": embedder.loaded.step, "data": hash_examples(examples)}
                if entry_key(entry) in done:
                    continue
                metrics = sts_metrics(embedder, examples, groups)
                if groups.rank:
                    continue
                shown = ", ".join(f"{name} {'not defined' if x is None else f'{x:.4f}'}" for name, x in metrics.items())
                log.say(f"{checkpoint}: {task} {split} ({embedder.pooling}): {shown}")
                merge(out, {**entry, "metrics": metrics})
        if groups.rank == 0:
            show_evaluation(config, out)
    return 0


def sts_metrics(embedder: Embedder, examples: Examples, groups: ProcessGroups) -> dict[str, float | None]:
    """Returns Spearman's and Pearson's correlation of the cosine with the score, the same on every rank."""
    vectors = shared_vectors(embedder, (text for example in examples for text in example.texts), groups)
    pairs = ([vectors[text] for text in one.texts] for one in examples)
    first, second = (normalised(np.stack(side)) for side in zip(*pairs, strict=True))
    cosines = (first * second).sum(axis=1, dtype=np.float64)
    gold = np.array([one.score for one in examples], dtype=np.float64)
    return {metric: measure(metric, gold, cosines) for metric in Sentences.fitting_metrics}
