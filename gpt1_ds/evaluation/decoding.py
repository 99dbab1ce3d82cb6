"""Token ids after token ids, for many rows at once: what models of one stack continue, and what decoders answer.

    write ─ one batch at a time ─ _draw     token by token (drawing.py); a row's neighbours do not change its draws
                                └ _search   beams; those of a prompt are rows next to one another
    both work on rows that grow by a token at a time, `_Continued` or `_Answered`

The rows of a batch end in the same column (model/caches.py); one that has ended leaves the batch.

Shapes: R rows, S positions, V vocabulary rows of the model (padded).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from gpt1_ds.common.errors import ArgumentError, CheckpointError
from gpt1_ds.data.tokenizers.base import Tokenizer, control_ids, most_beams
from gpt1_ds.evaluation.drawing import chosen
from gpt1_ds.evaluation.graphed_steps import GraphedSteps, graphed_steps
from gpt1_ds.evaluation.sampling import TOKENS, Sampling
from gpt1_ds.model.build import DenseModel
from gpt1_ds.model.caches import Caches, selected
from gpt1_ds.objectives.base import row_facts

PROMPTS = 32  # of a batch


@torch.no_grad()
def write(
    model: DenseModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    seeds: Sequence[int] | None = None,
    stopped: Callable[[list[int]], bool] | None = None,
    name: str = "model",
    lock: AbstractContextManager[object] | None = None,
) -> list[list[int]]:
    """Returns what the model writes after each of `prompts`, ids of any number: a continuation, or of an
    encoder-decoder its answer to a source. The end token (`tokenizer.eod_id`) ends a text and is no part of it; control
    symbols are never written. Each row draws with its own seed (`seeds`, one each; None: `sampling.seed` for all), as
    if it came alone. `stopped` is asked after every token of a row, and ends it. `lock` keeps other threads of this
    process from copying to its GPU, where there are any.

    The model is in evaluation mode. Raises ArgumentError for too many beams and for a source or a number of tokens that
    the context does not hold, ConfigError for a model that reads in both directions, CheckpointError (with the `name`)
    where its numbers are not finite.
    """
    if sampling.beams > max(1, most := most_beams(tokenizer)):
        raise ArgumentError(f"beams={sampling.beams} must be at most {most}, half of the tokens that can be written")
    ways, lock = _Ways(tokenizer, sampling, name, model.tokens.weight.device), lock or nullcontext()
    found: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))  # neighbours are alike in length
    for begin in range(0, len(order), PROMPTS):
        numbers = order[begin : begin + PROMPTS]
        given = [prompts[number] for number in numbers]
        rows: _Rows
        if model.stacks == 2:
            most = min(TOKENS, model.context - 1) if sampling.tokens is None else sampling.tokens
            if sampling.min_tokens > most:
                raise ArgumentError(
                    f"min_tokens={sampling.min_tokens} must be at most {most}, what a decoder writes with "
                    f"model.context={model.context}"
                )
            rows = _Answered(model, lock, given, tokenizer.pad_id, most)
        else:
            most = TOKENS if sampling.tokens is None else sampling.tokens
            rows = _Continued(model, lock, given, tokenizer.eod_id, most)
        if sampling.beams > 1:
            texts = _search(rows, ways, most)
        else:
            texts = _draw(rows, ways, most, [sampling.seed if seeds is None else seeds[n] for n in numbers], stopped)
        for number, text in zip(numbers, texts, strict=True):
            found[number] = text
    return found


@dataclass(frozen=True)
class _Row:
    prompt: int  # its number in the batch
    ids: list[int]
    begin: int  # where what is written begins
    first: int = 0  # the first id that the model still sees
    until: int = 0  # every token sees the ids before this one

    @property
    def written(self) -> list[int]:
        return self.ids[self.begin :]


class _Rows(ABC):
    """Rows that grow by a token at a time."""

    def __init__(self, model: DenseModel, lock: AbstractContextManager[object], rows: list[_Row]) -> None:
        self.model, self.lock, self.rows = model, lock, rows
        self.device = model.tokens.weight.device
        self.caches: Caches | None = None
        self.graphs: GraphedSteps | None = None  # of these caches

    @abstractmethod
    def logits(self) -> Tensor:
        """Returns [R, V] of each row's next token; the last token that `follow` has added is read now."""

    @abstractmethod
    def step(self, tokens_1R: Tensor) -> Tensor:
        """Returns [R, V] of the tokens after these, which follow those that the caches hold."""

    def keep(self, caches: Caches) -> None:
        """From now on the model sees what these caches hold."""
        self.caches, self.graphs = caches, graphed_steps(self.model, self.step, caches, self.lock)

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """From now on there is a row for each of `parents`, the number of a row, with one of `tokens` at its end."""
        rows = [self.rows[parent] for parent in parents]
        if self.caches is not None and [*parents] != [*range(len(self.rows))]:
            moved = [row.prompt for row in rows] != [row.prompt for row in self.rows]
            self._select(torch.tensor(parents, device=self.device), moved)
        self.rows = [replace(row, ids=[*row.ids, token]) for row, token in zip(rows, tokens, strict=True)]

    def _select(self, rows_R: Tensor, moved: bool) -> None:
        assert self.caches is not None, "there is something to select"
        self.caches.select(rows_R, len(self.rows), moved)
        if self.graphs is not None and len(rows_R) != len(self.rows):
            self.graphs.forget()

    def _next_logits(self) -> Tensor:
        """Returns [R, V] after the last token of each row."""
        tokens_1R = torch.tensor([[row.ids[-1] for row in self.rows]], device=self.device)
        return self.step(tokens_1R) if self.graphs is None else self.graphs.run(tokens_1R)


class _Continued(_Rows):
    """A stack continues its prompts; one without ids begins after the end of a document. Where a row fills the context
    it continues from its later half, as learned positions end there.
    """

    def __init__(
        self,
        model: DenseModel,
        lock: AbstractContextManager[object],
        prompts: Sequence[Sequence[int]],
        end: int,
        most: int,
    ) -> None:
        given = [[*prompt] or [end] for prompt in prompts]
        context = model.context
        rows = [_Row(at, ids, len(ids), max(0, len(ids) - context), len(ids)) for at, ids in enumerate(given)]
        super().__init__(model, lock, rows)
        self.end = end
        self.size = min(context, max(len(ids) for ids in given) + most)

    def logits(self) -> Tensor:
        if self.caches is None or self.caches.columns.seen == self.size:
            return self.model.logits_of(self._read_whole()[-1:])[0]
        return self._next_logits()

    def step(self, tokens_1R: Tensor) -> Tensor:
        return self.model.logits(tokens_1R, caches=self.caches)[0]

    def _read_whole(self) -> Tensor:
        """Returns [S, R, D] of what the model sees of each row, shorter ones padded at their beginnings."""
        context = self.model.context
        for number, row in enumerate(self.rows):
            if len(row.ids) - row.first > context:
                first = len(row.ids) - max(1, context // 2)
                self.rows[number] = replace(row, first=first, until=len(row.ids))
        lengths_R = np.array([len(row.ids) - row.first for row in self.rows])
        padding_R = int(lengths_R.max()) - lengths_R
        until_R = padding_R + np.array([row.until - row.first for row in self.rows])
        facts_R3 = torch.from_numpy(row_facts(np.zeros_like(until_R), (until_R, until_R))).to(self.device)
        padded = [[self.end] * int(p) + row.ids[row.first :] for p, row in zip(padding_R, self.rows, strict=True)]
        first_R = torch.from_numpy(padding_R).to(self.device) if padding_R.any() else None
        self.keep(self.model.caches(self.size, first_R))
        return self.model.hidden(torch.tensor(padded, device=self.device).T, facts_R3, self.caches)


class _Answered(_Rows):
    """A decoder answers sources, which its encoder reads once; they are padded at their ends."""

    def __init__(
        self,
        model: DenseModel,
        lock: AbstractContextManager[object],
        sources: Sequence[Sequence[int]],
        start: int,
        most: int,
    ) -> None:
        context, longest = model.context, max(map(len, sources))
        if most >= context:
            raise ArgumentError(f"tokens={most} is too many for model.context={context}; use less than that")
        if longest > context:
            raise ArgumentError(
                f"prompts: one has {longest} tokens, the encoder reads model.context={context}; use shorter ones"
            )
        super().__init__(model, lock, [_Row(number, [start], 1) for number in range(len(sources))])
        lengths_R = np.array([len(source) for source in sources])
        facts_R3 = torch.from_numpy(row_facts(np.zeros_like(lengths_R), (lengths_R, lengths_R))).to(self.device)
        padded = [[*source, *[start] * (longest - len(source))] for source in sources]
        self.memory = model.encode(torch.tensor(padded, device=self.device).T, facts_R3)
        self.keep(model.caches(most))

    def logits(self) -> Tensor:
        return self._next_logits()

    def step(self, tokens_1R: Tensor) -> Tensor:
        assert self.caches is not None, "they are made at once"
        return self.model.logits_of(self.model.decode(self.memory, tokens_1R, self.caches))[0]

    def _select(self, rows_R: Tensor, moved: bool) -> None:
        """The encoder's states stay as they are: of them the caches hold what is read."""
        super()._select(rows_R, moved)
        self.memory = self.memory._replace(facts_BF=selected(self.memory.facts_BF, self.memory.facts_BF[rows_R]))


class _Ways:
    """Which tokens may come next, and how likely."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, name: str, device: torch.device) -> None:
        self.size, self.end, self.sampling, self.name = tokenizer.vocab_size, tokenizer.eod_id, sampling, name
        self.forbidden = torch.tensor(control_ids(tokenizer), dtype=torch.long, device=device)

    def checked(self, logits_RV: Tensor) -> Tensor:
        """Returns `logits`. Raises CheckpointError where one is not finite."""
        # the sum, as it is one pass over memory; pad rows are not finite
        if not bool(logits_RV[:, : self.size].sum(dtype=torch.float32).isfinite()):
            raise CheckpointError(f"{self.name}: its weights give no finite numbers: this is not a trained model")
        return logits_RV

    def allowed(self, scores_RV: Tensor, rows: Sequence[_Row], length: int) -> Tensor:
        """Changes the scores (logits or their logarithms of probabilities) of the next token of texts of `length`
        tokens, and returns them.
        """
        penalty = self.sampling.repetition_penalty
        if penalty != 1:
            pairs = [(number, one) for number, row in enumerate(rows) for one in sorted(set(row.ids))]
            at = tuple(torch.tensor(pairs, device=scores_RV.device).T)
            of_seen = scores_RV[at]
            scores_RV[at] = torch.where(of_seen < 0, of_seen * penalty, of_seen / penalty)
        scores_RV.index_fill_(1, self.forbidden, -torch.inf)
        scores_RV[:, self.size :] = -torch.inf
        if length < self.sampling.min_tokens:
            scores_RV[:, self.end] = -torch.inf
        return scores_RV


def _draw(
    rows: _Rows, ways: _Ways, most: int, seeds: Sequence[int], stopped: Callable[[list[int]], bool] | None
) -> list[list[int]]:
    """Returns the texts of all rows, token by token."""
    texts: list[list[int]] = [[] for _ in rows.rows]
    for length in range(most):
        logits_RV = ways.allowed(ways.checked(rows.logits()), rows.rows, length)
        tokens = chosen(logits_RV, ways.sampling, [seeds[row.prompt] for row in rows.rows], length)
        going = []
        for number, (row, token) in enumerate(zip(rows.rows, tokens, strict=True)):
            if token == ways.end:
                continue
            texts[row.prompt].append(token)
            if stopped is None or not stopped(texts[row.prompt]):
                going.append(number)
        if not going:
            break
        rows.follow(going, [tokens[number] for number in going])
    return texts


@dataclass
class _Beams:
    """The search of one prompt."""

    totals: list[float]  # log-likelihoods of the beginnings that are kept, the highest first
    whole: list[tuple[float, list[int]]] = field(default_factory=list)  # (score, ids) of whole texts, the best first


def _search(rows: _Rows, ways: _Ways, most: int) -> list[list[int]]:
    """Returns the best text of each prompt, by beam search as transformers' `generate` does it: of the 2 x beams
    likeliest next beginnings those that end are whole texts, if they are among the first `beams`; the likeliest others
    are kept.
    """
    beams = ways.sampling.beams
    searches = [_Beams([0.0]) for _ in rows.rows]
    for length in range(1, most + 1):
        logs_RV = ways.checked(rows.logits()).float().log_softmax(-1)
        ways.allowed(logs_RV, rows.rows, length - 1)
        active = [*dict.fromkeys(row.prompt for row in rows.rows)]
        logs_RV += torch.tensor([searches[prompt].totals for prompt in active], device=rows.device).view(-1, 1)
        size, each = logs_RV.shape[1], len(rows.rows) // len(active)
        best = logs_RV.view(len(active), -1).topk(2 * beams)
        parents, tokens = list[int](), list[int]()
        for at, (prompt, totals, places) in enumerate(
            zip(active, best.values.tolist(), best.indices.tolist(), strict=True)
        ):
            ways_on = [(at * each + place // size, place % size) for place in places]
            kept = _step(searches[prompt], [*zip(totals, ways_on, strict=True)], rows.rows, ways, length, most)
            parents += [parent for parent, _ in kept]
            tokens += [token for _, token in kept]
        if not parents:
            break
        rows.follow(parents, tokens)
    return [search.whole[0][1] for search in searches]


def _step(
    search: _Beams,
    candidates: list[tuple[float, tuple[int, int]]],
    rows: list[_Row],
    ways: _Ways,
    length: int,
    most: int,
) -> list[tuple[int, int]]:
    """Adds a token to a prompt's beams, by the likeliest `candidates`: (log-likelihood, (row, token)), the highest
    first. Returns (row, token) of the beginnings that are kept; none where the search is over.
    """
    sampling, beams = ways.sampling, ways.sampling.beams
    whole, kept = list[tuple[float, list[int]]](), list[tuple[float, tuple[int, int]]]()
    for rank, (total, (parent, token)) in enumerate(candidates):
        if token != ways.end and length < most:
            kept.append((total, (parent, token)))
        elif rank < beams:
            ids = rows[parent].written + ([] if token == ways.end else [token])
            whole.append((sampling.normalised(total, length), ids))
    search.whole = heapq.nlargest(beams, [*search.whole, *whole], key=lambda one: one[0])
    kept = kept[:beams]
    search.totals = [total for total, _ in kept]
    is_full = len(search.whole) == beams
    if not kept or (is_full and (sampling.early_end or _is_hopeless(search, sampling, length))):
        return []
    return [way for _, way in kept]


def _is_hopeless(search: _Beams, sampling: Sampling, length: int) -> bool:
    """Returns whether the likeliest beginning, as it is, compares to no whole text that is kept."""
    return sampling.normalised(search.totals[0], length) <= search.whole[-1][0]
