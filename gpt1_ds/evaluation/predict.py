"""`predict`: a fine-tuned model on lines, as they come and in their order, in memory that does not grow with them.

Lines are worked on in windows: what has arrived, at most WINDOW lines. A file, or a pipe that is full, gives whole
windows, whose examples are sorted by length so that batches hold little padding; a pipe that gives a line now and then
has its answer at once. Every window is written before the next is read.

Shapes: N examples of C sequences, B rows, T positions, K classes or choices.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from gpt1_ds.checkpoint.manifest import step_of
from gpt1_ds.common.errors import CheckpointError, DataError
from gpt1_ds.common.files import naming
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.evaluation.load import Loaded
from gpt1_ds.evaluation.sampling import sampling_of
from gpt1_ds.evaluation.text_scores import pair_batch, row_scores
from gpt1_ds.evaluation.token_scores import with_refusals
from gpt1_ds.evaluation.written_scores import write_targets
from gpt1_ds.objectives.base import row_facts
from gpt1_ds.objectives.source_target import TextToText
from gpt1_ds.objectives.supervised import Supervised
from gpt1_ds.tasks.base import Task, probabilities
from gpt1_ds.tasks.batches import build_batch
from gpt1_ds.tasks.encoding import Encoded, length_limit
from gpt1_ds.tasks.example import Example
from gpt1_ds.tasks.lines import LONGEST, LineReader
from gpt1_ds.tasks.registry import class_names
from gpt1_ds.tasks.rows import BadRowError
from gpt1_ds.tasks.sequences import encode_examples
from gpt1_ds.tasks.target_rows import TargetRows
from gpt1_ds.tasks.text import encode_answers, text_limits
from gpt1_ds.tasks.token_rows import TokenRows
from gpt1_ds.tracking.record import of_own_data, read_entries, read_records

WINDOW = 256  # lines that are sorted and written together
TOKENS = 8192  # of a batch, padding included; bounds the memory of a forward pass
CHUNK = 1 << 16  # bytes read at a time
PLACES = 6  # digits of a probability


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """`label` is the likeliest class or choice, and `probabilities` has all of them by their names. Of a task that
    gives a number `score` is that, and `probabilities` are those of its steps, by their numbers, where it has some.
    `text` is the answer of a model that answers in text, or the piece [start, stop) of a context, empty where it has no
    answer. `tags` are those of the words of a text.
    """

    label: str | None = None
    score: float | None = None
    probabilities: Mapping[str, float]
    text: str | None = None
    start: int | None = None
    stop: int | None = None
    tags: tuple[str, ...] | None = None

    @property
    def is_text(self) -> bool:
        """Returns whether the answer is a text, and none of classes or scores."""
        return self.text is not None and self.label is None and self.score is None

    def as_tsv(self) -> str:
        """Returns `label<TAB>probability`, the score, the tags with blanks between, or the answer on one line."""
        if self.tags is not None:
            return " ".join(self.tags)
        if self.is_text:
            return " ".join(str(self.text).split())
        if self.label is None:
            return f"{self.score:.{PLACES}f}"
        return f"{self.label}\t{self.probabilities[self.label]:.{PLACES}f}"

    def as_json(self) -> str:
        if self.tags is not None:
            return json.dumps({"tags": self.tags}, ensure_ascii=False)
        if self.is_text and self.start is None:
            return json.dumps({"text": self.text}, ensure_ascii=False)
        if self.is_text:
            return json.dumps({"text": self.text, "start": self.start, "stop": self.stop}, ensure_ascii=False)
        rounded = {name: round(one, PLACES) for name, one in self.probabilities.items()}
        found: dict[str, object]
        if self.score is not None:
            found = {"score": round(self.score, PLACES), **({"scores": [*rounded.values()]} if rounded else {})}
        else:
            found = {"label": self.label, "probability": rounded[str(self.label)], "scores": rounded}
        if self.text is not None:
            found["text"] = self.text
        return json.dumps(found, ensure_ascii=False)


class Predictor:
    """A fine-tuned model, in fp32 whatever it was trained in. `cut` counts the examples that were longer than `limit`
    tokens. Raises CheckpointError for one that has no task.
    """

    def __init__(self, loaded: Loaded) -> None:
        if loaded.task is None or loaded.config.task is None:
            raise CheckpointError(
                f"{loaded.folder}: was not fine-tuned on a task; `gpt1-ds finetune` makes what predicts"
            )
        if loaded.config.task.makes_vectors:
            raise CheckpointError(f"{loaded.folder}: makes sentence vectors, no classes; use gpt1-ds embed or search")
        self.task: Task = loaded.task
        self._names = class_names(self.task)
        self.settings = loaded.config.task
        self._folder = loaded.folder
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self.limit = length_limit(self.settings, loaded.config.model.context)
        self.cut, self._longest, model = 0, 0, loaded.config.model
        if self.task.answers:
            answers = encode_answers(self.task, loaded.tokenizer)
            self._texts = TextToText.of(model.stacks, answers, loaded.tokenizer.pad_id, self.limit, multiple=1)
        if self.task.is_text_to_text:
            limits = text_limits(self.task, self.settings, loaded.tokenizer, self.limit, model.stacks)
            self.limit, self._longest = limits
            self._sampling = sampling_of(self.settings, model, self._longest)
        elif not self.task.reads_tokens:
            self._reads = Supervised(self.task.head(self.settings, model)).reads

    @torch.inference_mode()
    def scores(self, examples: Sequence[Example]) -> NDArray[np.float32]:
        """Returns [N, K] of the classes or choices of each example, before the softmax; in text, log-likelihoods of
        answers.
        """
        encoded = self._encoded(examples)
        scores_NK = np.zeros((len(encoded), self.task.classes), dtype=np.float32)
        for numbers in _batches(encoded, self.task):
            scores_NK[numbers] = self._of_answers(encoded, numbers) if self.task.answers else self._of(encoded, numbers)
        if not np.isfinite(scores_NK).all():
            raise CheckpointError(f"{self._folder}: its weights give no finite numbers: this is not a trained model")
        return scores_NK

    def check(self, example: Example) -> None:
        """Raises BadRowError for an example that is longer than the model reads, where none is to be cut."""
        if self.settings.too_long == "raise":
            try:
                self._encoded([example])
            except DataError:
                problem = f"is longer than {self.limit} tokens, and the model cuts nothing (task.too_long=raise)"
                raise BadRowError(f"{problem}; shorten it") from None

    def _encoded(self, examples: Sequence[Example]) -> Encoded:
        found = encode_examples(self.task, examples, self._tokenizer, self.settings, self.limit, self._longest)
        self.cut += found.truncated
        return found

    def _of(self, encoded: Encoded, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns scores [E, K] of these examples, by the head."""
        device = next(self._model.parameters()).device
        batch = build_batch(encoded, numbers, multiple=1)
        tokens_BT = torch.from_numpy(batch.tokens.reshape(-1, batch.tokens.shape[-1]).astype(np.int64))
        at_B, spans = self._reads(batch.lengths.reshape(-1), batch.seconds.reshape(-1))
        facts_BF = row_facts(np.zeros_like(at_B), spans)
        inputs = (tokens_BT.T, torch.from_numpy(at_B), torch.from_numpy(facts_BF))
        found: NDArray[np.float32] = self._model.scores(*(part.to(device) for part in inputs)).cpu().numpy()
        return found

    def _of_answers(self, encoded: Encoded, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        K = len(self.task.answers)
        pair_B = (numbers[:, None] * K + np.arange(K)).reshape(-1)
        batch = pair_batch(encoded, pair_B, K, multiple=1)
        host = self._texts.batch(batch.tokens[:, 0], batch.lengths[:, 0], batch.labels, batch.weights)
        return row_scores(self._model, host)[:, 0].reshape(-1, K)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Returns what the model says of each example."""
        if self.task.reads_tokens:
            return self._of_tokens(examples)
        if self.task.writes_text:
            return self._of_sources(examples)
        scores_NK = self.scores(examples)
        found = self.task.predictions(scores_NK).tolist()
        return [self._said(value, row.tolist()) for value, row in zip(found, probabilities(scores_NK), strict=True)]

    @torch.inference_mode()
    def _of_tokens(self, examples: Sequence[Example]) -> list[Prediction]:
        rows = self._encoded(examples)
        assert isinstance(rows, TokenRows), "such a task has no others"
        device = next(self._model.parameters()).device
        scores: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(rows)
        for numbers in _batches(rows, self.task):
            batch = build_batch(rows, numbers, multiple=1)
            length_B = batch.lengths[:, 0]
            facts_BF = row_facts(np.zeros_like(length_B), (length_B, batch.seconds[:, 0]))
            tokens_SB = torch.from_numpy(batch.tokens[:, 0].T.astype(np.int64))
            found_BSO = self._model.token_scores(tokens_SB.to(device), torch.from_numpy(facts_BF).to(device)).cpu()
            for number, length, row_SO in zip(numbers.tolist(), length_B.tolist(), found_BSO.numpy(), strict=True):
                scores[number] = row_SO[:length]
        if not all(np.isfinite(one).all() for one in scores):
            raise CheckpointError(f"{self._folder}: its weights give no finite numbers: this is not a trained model")
        answered = rows.answers(scores)
        if answered.places is None:
            return [Prediction(probabilities={}, tags=tags) for tags in answered.found.tolist()]
        threshold = self._threshold if self.task.has_unanswerable else 0.0
        found = with_refusals(self.task, answered, threshold)
        return [
            Prediction(probabilities={}, text=text, start=start if text else 0, stop=stop if text else 0)
            for text, (start, stop) in zip(found.tolist(), answered.places.tolist(), strict=True)
        ]

    def _of_sources(self, examples: Sequence[Example]) -> list[Prediction]:
        rows = self._encoded(examples)
        assert isinstance(rows, TargetRows), "such a task has no others"
        sources = [rows.source_of(number) for number in range(len(rows))]
        texts = write_targets(self._model, self._tokenizer, sources, self._sampling, name=str(self._folder))
        return [Prediction(probabilities={}, text=text) for text in texts]

    @cached_property
    def _threshold(self) -> float:
        """Returns how much likelier no answer has to be (logits): what was best on the run's own dev at this step, as
        its metrics.jsonl says; eval.json knows it of steps at which the run did not measure.
        """
        folder = self._folder.absolute()
        run_dir, step = RunDir(folder.parent.parent), step_of(folder)
        if step is not None and folder.parent == run_dir.checkpoints:
            measured = [line for line in read_records(run_dir.metrics) if line["kind"] == "task"]
            for one in [*measured, *of_own_data(read_entries(run_dir.evaluation))]:
                found = one["metrics"].get("null_threshold")
                if (one["task"], one["split"], one["step"]) == (self.task.name, "dev", step) and found is not None:
                    return float(found)
        say(
            f"{self._folder}: no run beside it says its null_threshold: 0.0 is assumed; to use the one that is best on "
            "dev, name the run folder that it was trained in, like --checkpoint runs/NAME"
        )
        return 0.0

    def _said(self, value: float, probabilities: list[float]) -> Prediction:
        task = self.task
        text = task.answers[int(np.argmax(probabilities))] if task.answers else None
        if task.has_scores:
            names = map(str, range(len(probabilities))) if task.outputs > 1 else ()
            return Prediction(score=value, probabilities=dict(zip(names, probabilities, strict=False)), text=text)
        named = dict(zip(self._names, probabilities, strict=True))
        return Prediction(label=self._names[int(value)], probabilities=named, text=text)

    def lines(self, examples: Sequence[Example], as_json: bool) -> list[str]:
        """Returns a line for each example: `label<TAB>probability` or the score, or with `as_json` a JSON object."""
        return [one.as_json() if as_json else one.as_tsv() for one in self.predict(examples)]


def _batches(encoded: Encoded, task: Task) -> Iterator[NDArray[np.int64]]:
    """Yields the numbers of the examples of every batch, the longest first."""
    longest_N = encoded.lengths.max(axis=1)
    order = np.argsort(-longest_N, kind="stable")
    while len(order):
        rows = len(task.answers) or encoded.sequences
        size = max(1, TOKENS // (rows * int(longest_N[order[0]])))
        yield order[:size]
        order = order[size:]


def windows(descriptor: int) -> Iterator[list[bytes]]:
    """Yields the lines of a file or pipe, without their line feeds. Waits for more only where no line is left to
    give.
    """
    lines: list[bytes] = []
    rest = b""
    while chunk := os.read(descriptor, CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        while len(lines) >= WINDOW:
            yield lines[:WINDOW]
            del lines[:WINDOW]
        if len(rest) > LONGEST:  # whoever reads it refuses it; more of it need not be held
            break
        if lines and (sum(map(len, lines)) > LONGEST or not _has_more(descriptor)):
            yield lines
            lines = []
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _has_more(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def predict_lines(
    predictor: Predictor, reader: LineReader, source: str, arriving: Iterable[list[bytes]], as_json: bool
) -> Iterator[list[str]]:
    """Yields a line of output for every line of input, window by window. Raises DataError at the first line that is no
    example, or one that is too long, naming it, when the lines before it have been given.
    """
    number = 0
    for window in arriving:
        examples: list[Example] = []
        problem = ""
        for line in window:
            number += 1
            try:
                example = reader.example(line, number)
                predictor.check(example)
                examples.append(example)
            except BadRowError as error:
                problem = f"{source} line {number}: {error}"
                break
        if examples:
            yield predictor.lines(examples, as_json)
        if problem:
            raise DataError(problem)


def write_lines(lines: Iterable[str], output: IO[bytes]) -> None:
    """Writes lines and passes them on at once."""
    with naming(getattr(output, "name", "standard output")):
        output.write("".join(f"{line}\n" for line in lines).encode())
        output.flush()
