"""An exported folder as a repository of a hub of models (huggingface.co, or HF_ENDPOINT), and what its README.md says
besides how to load the model: its licence, data, training.

Results are in the metadata (`model-index`), in the form that huggingface_hub writes.

The token is the library's own: HF_TOKEN, or what `hf auth login` has saved. It is sent to the hub and goes nowhere
else. Every problem is one line, a HubError; what was exported stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.remote import asked
from gpt1_ds.common.text import amount, byte_size
from gpt1_ds.config import Config

CURVES = "curves.png"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_SECTIONS = ("model", "objective", "task", "train", "optimizer", "schedule")
_PRIVATE = ("path", "sts", "tokenizer")  # places on the machine that trained
_COUNTS = (  # metrics that are no result
    *("examples", "fitted", "paradigms", "threshold", "shots", "tokens", "perplexity_control"),
    *(f"{area}{name}" for area in ("", "auc_") for name in ("chance", "control", "control_low", "control_high")),
    *("low", "high", "auc_low", "auc_high", "above_control", "above_control_low", "above_control_high"),
)

_TRAINING = """
## Training

{facts[step]} steps, {facts[tokens]} tokens, seed {facts[seed]}, {facts[precision]},
by gpt1-ds {facts[hashes][version]}.

| hash of | |
| --- | --- |
{hashes}
{curves}
```yaml
{config}```
"""
_RESULTS = """
## Results

| task | split | metric | value |
| --- | --- | --- | --- |
{rows}
"""


def check_licence(licence: str) -> None:
    """Raises ConfigError for what is no identifier of a licence."""
    if not LICENCE.fullmatch(licence):
        raise ConfigError(f"--license {licence!r:.60}: no identifier of a licence; write one like apache-2.0")


def complete(
    readme: str,
    name: str,
    licence: str | None,
    facts: dict[str, Any],
    config: Config,
    entries: Sequence[dict[str, Any]],
    curves: bool,
) -> str:
    """Returns the README.md of an export with what a reader elsewhere wants to know. `name` is the model's, `facts` the
    checkpoint's manifest, `entries` of eval.json those of its step; `curves`: CURVES is beside it.
    """
    from huggingface_hub import ModelCard

    card = ModelCard(readme)
    card.data.license = licence
    card.data.model_name = name
    found = [*_results(entries, str(card.data.pipeline_tag or "text-generation"))]
    if found:
        card.data.eval_results = found
    card.text = card.text.rstrip() + "\n" + _training(facts, config, curves) + (_table(entries) if found else "")
    return str(card)


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    metrics = entry["metrics"].items()
    return {key: value for key, value in metrics if isinstance(value, int | float) and key not in _COUNTS}


def _results(entries: Sequence[dict[str, Any]], tag: str) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    for entry in entries:
        for metric, value in _numbers(entry).items():
            yield EvalResult(
                task_type=tag,
                dataset_type=re.sub(r"[^\w.-]+", "-", entry["task"]),
                dataset_name=entry["task"],
                dataset_split=entry["split"],
                metric_type=metric,
                metric_value=value,
            )


def _table(entries: Sequence[dict[str, Any]]) -> str:
    rows = [
        f"| {entry['task']} | {entry['split']} | {metric} | {value:.6g} |"
        for entry in entries
        for metric, value in _numbers(entry).items()
    ]
    return _RESULTS.format(rows="\n".join(rows))


def _training(facts: dict[str, Any], config: Config, curves: bool) -> str:
    names = {name: value for name, value in facts["hashes"].items() if name != "version" and value}
    sections = {name: asdict(part) for name in _SECTIONS if (part := getattr(config, name, None)) is not None}
    kept = {name: {k: v for k, v in part.items() if not _is_private(k, v)} for name, part in sections.items()}
    return _TRAINING.format(
        facts=facts,
        hashes="\n".join(f"| {name} | `{value}` |" for name, value in names.items()),
        curves=f"\n![Losses of the run]({CURVES})\n" if curves else "",
        config=yaml.safe_dump(kept, sort_keys=False, default_flow_style=None, width=110),
    )


def _is_private(key: str, value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_private(key, one) for one in value)
    return value is None or key in _PRIVATE or isinstance(value, Path) or (isinstance(value, str) and "/" in value)


_PART = r"[\w](?:[\w.-]{0,94}[\w])?"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)


class HubError(UserError):
    """A hub that is not reached, or that does not let this token do what was asked."""


def check_name(repository: str) -> None:
    """Raises ConfigError for what no hub takes as a name, without asking it."""
    if not _REPOSITORY.fullmatch(repository) or "--" in repository or ".." in repository:
        raise ConfigError(
            f"--push-to-hub {repository}: not the name of a repository; write OWNER/NAME, of letters, digits, -, _ "
            "and . (at most 96 each)"
        )


@dataclass(frozen=True)
class Repository:
    """A repository that may be written to, not made yet unless it `exists`."""

    name: str  # OWNER/NAME
    exists: bool
    _api: Any

    def push(self, folder: Path, public: bool) -> str:
        """Makes the repository unless it exists, uploads the folder in one commit, and returns its address. Raises
        HubError.
        """
        with _hub_errors(self.name):
            if not self.exists:
                asked(lambda: self._api.create_repo(self.name, private=not public))
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            upload = partial(self._api.upload_folder, repo_id=self.name, folder_path=folder)
            asked(lambda: upload(commit_message="Export of gpt1-ds"), deadline.upload_seconds(size))
        return f"{self._api.endpoint}/{self.name}"


def find(repository: str, update: bool) -> Repository:
    """Asks the hub who we are and whether the repository is there, before anything is done. Raises HubError for a token
    that is missing or not accepted, a hub that does not answer, and a repository that exists, unless `update`.
    """
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise HubError(f"--push-to-hub {repository}: no token: log in with `hf auth login`, or set HF_TOKEN")
    api = huggingface_hub.HfApi()
    with _hub_errors(repository):
        name = repository if "/" in repository else f"{asked(api.whoami)['name']}/{repository}"
        exists = bool(asked(lambda: api.repo_exists(name)))
    if exists and not update:
        raise HubError(f"--push-to-hub {name}: exists already; choose another name, or add --update")
    if update and not exists:
        raise HubError(f"--push-to-hub {name}: --update: there is no such repository; leave --update out to make it")
    return Repository(name, exists, api)


def listed(folder: Path) -> list[str]:
    """Returns a line for each file that an upload would take, with its size, and one for their sum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    lines = [f"{byte_size(size):>10}  {path.relative_to(folder)}" for path, size in zip(files, sizes, strict=True)]
    return [*lines, f"{byte_size(sum(sizes)):>10}  in {amount(len(files), 'file')}"]


@contextlib.contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turns what the client raises into one line, without what a server or a library may quote."""
    from huggingface_hub import errors
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except (OSError, RuntimeError, ValueError, _http_error()) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        why = f"the hub is not reached, or its answer is not readable ({type(cause).__name__}); try again later"
        if isinstance(cause, errors.OfflineModeIsEnabled):
            why = "HF_HUB_OFFLINE is set; unset it to upload"
        elif isinstance(cause, errors.HfHubHTTPError):
            why = _why(cause.response.status_code if cause.response is not None else 0)
        raise HubError(f"--push-to-hub {repository}: {why}") from None
    finally:
        if not shown:
            enable_progress_bars()


def _http_error() -> type[Exception]:
    """Returns what the client's HTTP library raises, also for a connection that fails."""
    from huggingface_hub.errors import HfHubHTTPError

    found: type[Exception] = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    return found


def _why(status: int) -> str:
    reasons = {
        401: "the hub does not accept the token; make a new one with the right to write, and log in again",
        403: "the token has no right to write there; use one with the right to write, or a name of your own",
        404: "the hub does not know it, or the token may not see it; check the name and the token's rights",
        409: "exists already; choose another name, or add --update",
    }
    return reasons.get(status, f"the hub answers {status}; try again later")
