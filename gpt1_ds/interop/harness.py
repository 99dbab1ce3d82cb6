"""EleutherAI's lm-evaluation-harness on a model of ours: its model class `gpt1-ds`, its tasks, its results as ours.

This file needs the extra `lm-eval`; import it where it is used. Its caller passes what scores and writes text
(evaluation/continuations.py). The harness's numbers are those of its own `hf` model on an export.

**No code from a hub is run**: a task whose data set needs `trust_remote_code` is refused, as is one that runs what a
model writes (`unsafe_code`). A task file of your own may name Python functions beside it; those are yours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from lm_eval import evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from gpt1_ds.common.errors import ConfigError, DataError, UserError
from gpt1_ds.data.remote import limit_hub_clients

PREFIX = "lm-eval/"  # of a task's name in eval.json
MAX_TOKENS = 256  # written by a task that does not say how many; the harness's own default
SUFFIXES = (".yaml", ".yml")
_WRITING = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")  # of a task's generation_kwargs
_NEUTRAL = {"num_beams": 1}  # what changes nothing
_BOOTSTRAPS = 1000  # draws for the standard error of what is no mean


class Scorer(Protocol):
    """What a model has to do. A `context` may be empty: the continuation then begins a text."""

    @property
    def writes(self) -> int:
        """Returns how many tokens of a text it writes at most; 0 where it only scores texts."""

    def continuations(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """Returns for each (context, continuation) the log-likelihood in nats, and whether greedy decoding gives it."""

    def texts(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-likelihood of each whole text in nats, however long it is."""

    def written(self, prompts: Sequence[tuple[str, dict[str, Any], Sequence[str]]]) -> list[str]:
        """Returns what follows each (prompt, settings, stops). The settings are `tokens`, `temperature`, `top_k` and
        `top_p`; what comes after one of the stops is not needed.
        """


@register_model("gpt1-ds")
class HarnessModel(LM):
    """The harness's view of a scorer. Every rank runs all of the harness; only the scorer divides the work."""

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        return self.scorer.continuations([request.args for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        return self.scorer.texts([request.args[0] for request in requests])

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        prompts = [(context, *_sampling(settings)) for context, settings in (request.args for request in requests)]
        texts = self.scorer.written(prompts)
        return [_until(text, stops) for text, (_, _, stops) in zip(texts, prompts, strict=True)]


@dataclass(frozen=True)
class Tasks:
    """Tasks and groups of tasks with their data, `loaded` as the harness holds them."""

    loaded: dict[str, Any]

    @property
    def by_name(self) -> dict[str, Any]:
        """Returns all tasks by name, those of groups included."""
        tasks: dict[str, Any] = self.loaded["tasks"]
        return tasks

    def examples(self, limit: int | None) -> dict[str, int]:
        """Returns how many examples of each task are asked."""
        sizes = {name: len(task.eval_docs) for name, task in self.by_name.items()}
        return {name: size if limit is None else min(size, limit) for name, size in sizes.items()}

    def directions(self) -> dict[str, bool]:
        """Returns for each NAME.METRIC of the results whether higher is better; of groups, for what they aggregate."""
        directions = {f"{name}.{key}": up for name, task in self.by_name.items() for key, up in _directions(task)}
        for name, group in self.loaded["groups"].items():
            of_tasks = {key: up for task in group.get_all_tasks() for key, up in _directions(task)}
            metrics = [aggregate.metric for aggregate in group.aggregate_metric_list or ()]
            directions |= {f"{name}.{metric}": of_tasks[metric] for metric in metrics if metric in of_tasks}
        return directions


def load_tasks(names: Sequence[str]) -> Tasks:
    """Returns tasks and groups of tasks with their data, by the harness's names or as YAML files. Raises ConfigError
    for a task that does not exist or would run code, and DataError where its data cannot be had.
    """
    random.seed(DEFAULT_RANDOM_SEED)  # some tasks draw; as the harness's own program does
    np.random.seed(DEFAULT_OTHER_SEED)
    with _quiet():
        manager = TaskManager(include_defaults=not all(name.endswith(SUFFIXES) for name in names))
        for name in names:
            if not (Path(name).is_file() if name.endswith(SUFFIXES) else name in manager.task_index):
                raise ConfigError(f"--lm-eval {name}: {_missing(name, manager)}")
        try:
            for config in _configurations(manager, names):
                _refuse_code(config)
            limit_hub_clients()
            loaded = manager.load(list(names))
        except UserError:
            raise
        except Exception as error:  # of datasets, of the network, of a task's own code: there is no end of kinds
            raise DataError(
                f"--lm-eval {', '.join(names)}: cannot be loaded: {_first_line(error)}; without a network name a task "
                "file (.yaml) whose data_files are here"
            ) from None
        for name, task in loaded["tasks"].items():
            if getattr(task, "MULTIMODAL", False):
                raise ConfigError(f"--lm-eval {name}: shows pictures or plays sounds; choose a task of text")
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
    return Tasks(loaded)


def check(tasks: Tasks, writes: int) -> None:
    """Raises ConfigError for a task that a model which `writes` that many tokens at most cannot do."""
    for name, task in tasks.by_name.items():
        if task.OUTPUT_TYPE == "generate_until":
            _check_writing(name, task.get_config("generation_kwargs") or {}, writes)


def run(scorer: Scorer, tasks: Tasks, limit: int | None) -> list[dict[str, Any]]:
    """Returns results in the form of eval.json without `step`, of tasks and of groups that have a score, alike on every
    rank. `limit` asks this many examples of each task. Raises ConfigError for a task that the model cannot do.
    """
    check(tasks, scorer.writes)
    with _quiet():
        results = evaluate(
            lm=HarnessModel(scorer),
            task_dict=tasks.loaded,
            limit=limit,
            bootstrap_iters=_BOOTSTRAPS,
            log_samples=False,
        )
    return [*_entries(results, tasks)]


def _directions(task: Any) -> list[tuple[str, bool]]:
    """Returns (metric, whether higher is better) of a task, without metrics of which the task does not say it."""
    return [(key, bool(up)) for key, up in task.higher_is_better().items() if up is not None]


def _missing(name: str, manager: Any) -> str:
    import difflib

    if name.endswith(SUFFIXES):
        return "no such task file"
    similar = difflib.get_close_matches(name, manager.all_tasks, 3)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "see `lm-eval ls tasks`"
    return f"the harness has no such task; {hint}"


def _configurations(manager: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the configuration of every task that the names stand for; this downloads nothing."""
    from lm_eval.tasks._yaml_loader import load_yaml

    pending: list[Any] = list(names)  # names, lists of them, or configurations that stand in a group's list
    seen: set[str] = set()
    while pending:
        item = pending.pop()
        config: dict[str, Any] = item if isinstance(item, dict) else {}
        if isinstance(item, list):
            pending += item
        elif isinstance(item, str) and item not in seen:
            seen.add(item)
            if (entry := manager.task_index.get(item)) is not None:
                config = entry.cfg or {}
                pending += entry.tags if not entry.cfg else ()
            elif item.endswith(SUFFIXES):
                config = load_yaml(Path(item), resolve_func=False)
        if config:
            pending += [config.get("task"), config.get("group")]
            yield config


def _refuse_code(config: dict[str, Any]) -> None:
    """Raises ConfigError for a task that would run code of others than the harness or the person who asks."""
    name = f"--lm-eval {config.get('task')}"
    if (config.get("dataset_kwargs") or {}).get("trust_remote_code"):
        raise ConfigError(
            f"{name}: its data set {config.get('dataset_path')} runs code from a hub (trust_remote_code), which this "
            "program never does; choose another task"
        )
    if config.get("unsafe_code"):
        raise ConfigError(f"{name}: runs code that the model writes (unsafe_code); choose another task")


def _entries(results: dict[str, Any], tasks: Tasks) -> Iterator[dict[str, Any]]:
    for name, values in {**results["results"], **results.get("groups", {})}.items():
        task = tasks.by_name.get(name)
        metrics = {
            key.removesuffix(",none"): value
            for key, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and "," in key
        }
        if not metrics:
            continue
        counts = results.get("n-samples", {}).get(name, {})
        if "effective" in counts:
            metrics["examples"] = counts["effective"]
        if results.get("n-shot", {}).get(name):
            metrics["shots"] = results["n-shot"][name]
        split = "test" if task is None else _split(task)
        yield {"task": PREFIX + name, "split": split, "metrics": metrics}


def _split(task: Any) -> str:
    """Returns the split that the harness evaluates on: test where there is one."""
    return str((task.config.test_split if task.has_test_docs() else task.config.validation_split) or "test")


def _check_writing(name: str, asked: dict[str, Any], most: int) -> None:
    """Raises ConfigError for a task of generate_until that a model which writes `most` tokens at most cannot do as the
    harness means it.
    """
    if not most:
        raise ConfigError(
            f"--lm-eval {name}: wants text written (generate_until), an encoder (model.mask=bidirectional) only "
            "scores it; choose tasks of loglikelihood or multiple_choice"
        )
    settings = normalize_gen_kwargs(asked, MAX_TOKENS)
    if settings["max_gen_toks"] > most:
        raise ConfigError(
            f"--lm-eval {name}: wants up to {settings['max_gen_toks']} tokens written (max_gen_toks), which "
            f"model.context={most + 1} has no place for; choose a task that wants fewer"
        )
    for key, value in settings.items():
        if key not in _WRITING and _NEUTRAL.get(key) != value:
            raise ConfigError(
                f"--lm-eval {name}: generation_kwargs has {key}={value}, which this program does not know; it knows "
                f"{', '.join(_WRITING)}"
            )


def _sampling(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns how a task wants text drawn, greedily where it does not say how, and the texts that end it."""
    settings: dict[str, Any] = {**normalize_gen_kwargs(asked, MAX_TOKENS)}
    drawn: dict[str, Any] = {key: settings[key] for key in ("temperature", "top_k", "top_p") if key in settings}
    how: dict[str, Any] = {"temperature": 1.0, **drawn} if settings["do_sample"] else {"temperature": 0}
    return {"tokens": settings["max_gen_toks"], **how}, [stop for stop in settings["until"] if stop]


def _until(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.split(stop)[0]
    return text


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Runs the harness without its bars, notes and warnings, and without processes that draw bootstraps."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    logging.disable(logging.WARNING)
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as null,
            contextlib.redirect_stdout(null),
            contextlib.redirect_stderr(null),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
