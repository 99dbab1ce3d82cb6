"""metrics.jsonl and eval.json: the truth of a run. One JSON object a line, units in the keys, floats never rounded; as
a table for notebooks. eval.json is a list of {task, split, step, metrics}, and `data`, a hash, where it is known.

Controls of a task (tasks/controls.py) have the task `control/NAME/TASK` and step 0: they are of no checkpoint.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt1_ds.common.errors import DataError, UserError
from gpt1_ds.common.files import append, is_there, write_atomic, write_json
from gpt1_ds.common.lock import one_at_a_time
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir, check_types, no_run, read_jsonl

if TYPE_CHECKING:
    import pandas

# not there where they are null
WATCHED = (  # of training steps, with train.watch
    *("gradient_norms", "weight_norms", "update_norms"),
    *(
        "noise_scale",
        "gradient_square",
        "gradient_variance",
        "largest_activations",
        "loss_by_position",
        "loss_by_source",
    ),
)
OPTIONAL = ("loss_scale", "predicted", "masked_accuracy", "pair_loss", "pair_accuracy", "signature", *WATCHED)


@dataclass(frozen=True, kw_only=True)
class TrainRecord:
    """One logged optimizer step. Throughput and waits are of the interval since the last logged step."""

    step: int  # 1 is the first update
    tokens: int  # trained on so far
    predicted: int | None = None  # masked text only: tokens that the loss of this step counts
    loss: float  # nats per predicted token of the global batch (and per pair), under the weights before this step
    learning_rate: float
    grad_norm: float  # global, before clipping; null when the update was skipped
    clipped: float = (
        0.0  # fraction of the steps since the last logged one whose gradient was longer than optimizer.clip
    )
    applied: bool  # false: gradients were not finite and the update was skipped
    tokens_per_second: float  # all ranks together, without evaluation and saves
    step_seconds: float
    data_wait_seconds: float  # per step, waiting for the next batch
    model_tflops_per_rank: float  # PaLM convention, recomputation not counted
    mfu: float | None  # fraction of the device's peak; null where the peak is unknown
    peak_memory_gib: float  # largest of all ranks
    batch_fingerprint: str  # hash over the tokens that all ranks consumed in this step
    loss_scale: float | None = None  # fp16 only
    # in fine-tuning, of the batch of this step, with dropout
    task_loss: float | None = None  # the part of the loss that is the task's, mean over examples
    language_loss: float | None = None  # the other part, nats per token, before task.lm_coefficient
    accuracy: float | None = None  # fraction of examples (tags: of words) that are right; null for scores and spans
    # with train.watch, by kind of layer
    gradient_norms: dict[str, float | None] | None = None  # before clipping; their squares add up to grad_norm's
    weight_norms: dict[str, float | None] | None = None  # of the fp32 weights after this step
    update_norms: dict[str, float | None] | None = None  # of what this step changed of them
    # with train.watch=all
    noise_scale: float | None = None  # sequences: gradient_variance / gradient_square, means of the last logged steps
    gradient_square: float | None = None  # unbiased estimate of the true gradient's |G|^2; negative where noise is more
    gradient_variance: float | None = None  # unbiased estimate of tr(Sigma), the variance of one sequence's gradient
    largest_activations: dict[str, float | None] | None = None  # largest absolute value by kind of output
    loss_by_position: dict[str, float | None] | None = None  # nats per predicted token, by position in the row
    loss_by_source: dict[str, float | None] | None = None  # the same by dataset, where data.path has several
    kind: str = "train"


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """Held-out loss under the weights after `step` updates."""

    step: int
    tokens: int
    loss: float  # nats per predicted token; a pair's loss is no part of it
    perplexity: float  # per predicted token
    bits_per_byte: float | None  # of the text's UTF-8 bytes; null where not every token is predicted once
    masked_accuracy: float | None = None  # masked text only: fraction of predicted tokens with the highest logit
    pair_loss: float | None = None  # next-sentence prediction only: nats per pair
    pair_accuracy: float | None = None
    kind: str = "eval"

    @property
    def metrics(self) -> dict[str, float | None]:
        """Returns what eval.json keeps: without those of other objectives."""
        found = {key: value for key, value in asdict(self).items() if key not in ("step", "tokens", "kind")}
        return {key: value for key, value in found.items() if key not in OPTIONAL or value is not None}

    def __str__(self) -> str:
        parts = [f"held-out loss {self.loss:.4f}", f"perplexity {self.perplexity:.2f}"]
        if self.bits_per_byte is not None:
            parts.append(f"{self.bits_per_byte:.4f} bits per byte")
        if self.masked_accuracy is not None:
            parts.append(f"masked accuracy {self.masked_accuracy:.4f}")
        if self.pair_loss is not None and self.pair_accuracy is not None:
            parts.append(f"pairs: loss {self.pair_loss:.4f}, accuracy {self.pair_accuracy:.4f}")
        return "  ".join(parts)


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """A task's scores under the weights after `step` updates."""

    step: int
    tokens: int
    task: str
    split: str
    loss: float  # of the task and, by its coefficient, the language model, as in training
    metrics: dict[str, float | None]  # by name; null: not defined
    signature: str | None = None  # of BLEU: how sacrebleu counted
    kind: str = "task"

    def __str__(self) -> str:
        scores = (f"{name} {'not defined' if x is None else f'{x:.4f}'}" for name, x in self.metrics.items())
        return f"{self.task} {self.split}: {', '.join(scores)}, loss {self.loss:.4f}"


@dataclass(frozen=True, kw_only=True)
class ScoreRecord:
    """What the language model scores under the weights after `step` updates, of one of train.evaluations. `task`,
    `split` and `metrics` are those that eval.json has of a checkpoint.
    """

    step: int
    tokens: int
    task: str
    split: str
    metrics: dict[str, float | None]  # by name, the one that decides first
    kind: str = "score"

    def __str__(self) -> str:
        return f"{self.task} {self.split}: {shown_metrics(self.metrics)}"


def shown_metrics(metrics: dict[str, float | None]) -> str:
    """Returns the metric that decides, and beside it what the control has and what chance gives, where they are."""
    first, *others = metrics
    kept = [first, *(key for key in others if key in ("control", "chance"))]
    return ", ".join(f"{key} {'not defined' if (x := metrics[key]) is None else f'{x:.4g}'}" for key in kept)


_KINDS = {  # of fields, by their types
    **{"int": "count", "int | None": "number", "float": "number", "float | None": "number"},
    **{"str": "text", "str | None": "text", "bool": "truth", "dict[str, float | None]": "numbers"},
    "dict[str, float | None] | None": "numbers",
}
_RECORDS = {  # kind -> the kinds of its fields by their names, and those fields that older versions lack
    record.kind: (
        {field.name: _KINDS[str(field.type)] for field in fields(record)},
        [field.name for field in fields(record) if field.default is not MISSING],
    )
    for record in (TrainRecord, EvalRecord, TaskRecord, ScoreRecord)
}


def read_records(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a metrics.jsonl in the order of the file. Raises DataError for one that is not as this
    program writes it.
    """
    found = list(read_jsonl(path))
    for one in found:
        if (known := _RECORDS.get(one["kind"])) is not None:
            given = {key: value for key, value in one.items() if value is not None or key not in OPTIONAL}
            check_types(path, f"the {one['kind']} record of step {one['step']}", given, *known)
    return found


class MetricsFile:
    """Appends records; rank 0 only. What a full disk does not take is kept and written when there is space again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[str] = []

    def rewind(self, step: int, evaluated: int) -> None:
        """Drops what lies after `step`, and evaluations after step `evaluated`: a run that resumes there writes those
        lines again.
        """
        if not self.path.exists():
            return
        lines = [*read_jsonl(self.path), *map(json.loads, self._pending)]
        last = {"train": step}
        kept = [line for line in lines if line["step"] <= last.get(line["kind"], evaluated)]
        write_atomic(self.path, "".join(_line(record) for record in kept))
        self._pending.clear()

    def add(self, record: TrainRecord | EvalRecord | TaskRecord | ScoreRecord) -> None:
        self._pending.append(_line(asdict(record)))
        if (why := self._written()) and len(self._pending) == 1:
            say(f"{self.path}: {why}: metrics are kept in memory until there is space")

    def finish(self) -> None:
        """Writes what is kept; says how much of it is lost where there is still no space."""
        if self._pending and (why := self._written()):
            say(f"{self.path}: {why}: its last lines ({len(self._pending)}) could not be written")
            self._pending.clear()

    def _written(self) -> str | None:
        """Returns why the lines that are kept could not be written; None where they are."""
        try:
            append(self.path, "".join(self._pending))
        except OSError as error:
            return error.strerror or str(error)
        self._pending.clear()
        return None


def _line(record: dict[str, Any]) -> str:
    """Returns one JSON line; JSON has no infinity, so what is not finite is null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
        if key not in OPTIONAL or value is not None
    }
    return json.dumps({"kind": finite.pop("kind"), **finite}) + "\n"


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record whose values by name are values of their own: gradient_norms/head for example."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        found |= {f"{key}/{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
    return found


def read_metrics(run: str | os.PathLike[str]) -> pandas.DataFrame:
    """Returns a row per line of the run folder's metrics.jsonl, in the order of its writing. `kind` is train, eval,
    task or score; scores of the last two are columns by their names, those of train.watch are named like
    gradient_norms/head; what a kind does not have is NaN. Units are those of the file.

    Raises DataError for a folder that is no run folder, UserError where pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UserError("pandas is not installed: pip install 'gpt1-ds[notebooks]'") from None
    run_dir = RunDir(Path(run))
    if not run_dir.config.is_file():
        raise DataError(f"{run}: {no_run(run_dir.path)}")
    rows = []
    for line in read_records(run_dir.metrics):
        scores = line.pop("metrics", {})
        rows.append({**flat(line), **scores})
    return pandas.DataFrame(rows, columns=None if rows else ["kind", "step"])


CONTROL = "control/"  # before the names of a control and its task
Entry = dict[str, Any]
KINDS = {"task": "text", "split": "text", "step": "count", "metrics": "numbers", "data": "text"}


def merge(path: Path | None, *entries: Entry, first: bool = False) -> None:
    """Puts results into an eval.json list, each in place of an older one for the same task, split, step and data. New
    ones come last; `first` is for a run's own, by which of_run knows them. Without a path nothing is written.
    """
    if path is None:
        return
    new = {entry_key(entry): entry for entry in entries}
    with one_at_a_time(path.parent):
        there = {entry_key(entry): entry for entry in read_entries(path)}
        write_json(path, [*((new | there if first else there) | new).values()])


def score_entry(record: TaskRecord, data: str) -> Entry:
    """Returns a task's scores as eval.json has them; `data` is the hash of the examples."""
    values = {key: value for key, value in asdict(record).items() if key not in ("kind", "tokens")}
    return {**{key: value for key, value in values.items() if key not in OPTIONAL or value is not None}, "data": data}


def read_entries(path: Path | None) -> list[Entry]:
    """Returns the results in an eval.json; none where there is no file. Raises DataError for another file."""
    if path is None or not is_there(path):
        return []
    try:
        entries: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        entries = {}
    if not isinstance(entries, list):
        raise DataError(f"{path}: not a list of results; remove it and evaluate again, or choose another --out")
    for number, entry in enumerate(entries, 1):
        check_types(path, f"result {number}", entry, KINDS, optional=("data",))
    results: list[Entry] = entries
    return results


def of_models(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the results of checkpoints, without the controls beside them."""
    return [entry for entry in entries if not entry["task"].startswith(CONTROL)]


def of_own_data(entries: Iterable[Entry]) -> list[Entry]:
    """Returns of each task and split the results of the data that it was scored on first; controls are of their task's
    data. Old results do not say their data: they are taken for those.
    """
    data: dict[tuple[str, str], str] = {}
    found: dict[tuple[str, str, int], Entry] = {}
    kept = list(entries)
    for entry in sorted(kept, key=lambda one: one["task"].startswith(CONTROL)):
        task, split, step, own = entry_key(entry)
        name = task.rpartition("/")[2] if task.startswith(CONTROL) else task
        if own in ("", data.setdefault((name, split), own)) or not data[name, split]:
            data[name, split] = data[name, split] or own
            found.setdefault((task, split, step), entry)
    return [entry for entry in kept if found.get(entry_key(entry)[:3]) is entry]


def of_run(entries: Iterable[Entry]) -> list[Entry]:
    """Returns what a fine-tuning run scored itself: its task, by the checkpoint that it chose, on its own data."""
    models = of_models(of_own_data(entries))
    return [entry for entry in models if all(entry[key] == models[0][key] for key in ("task", "step"))]


def entry_key(entry: Entry) -> tuple[str, str, int, str]:
    """Returns (task, split, step, data); old results and those of probes say no data."""
    return entry["task"], entry["split"], entry["step"], entry.get("data", "")
