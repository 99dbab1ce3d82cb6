"""An exported folder as a repository of a hub of models (huggingface.co, or HF_ENDPOINT), by huggingface_hub.

The token is the library's own: HF_TOKEN, or what `hf auth login` has saved. It is sent to the hub and goes nowhere
else. Every problem is one line, a HubError; what was exported stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.text import byte_size

T = TypeVar("T")
_PART = r"[\w](?:[\w.-]{0,94}[\w])?"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)


class HubError(UserError):
    """A hub that is not reached, or that does not let this token do what was asked."""


def check_name(repository: str) -> None:
    """Raise ConfigError for what no hub takes as a name, without asking it."""
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
        """Make the repository unless it exists, upload the folder in one commit; its address. Raises HubError."""
        with _told(self.name):
            if not self.exists:
                _asked(lambda: self._api.create_repo(self.name, private=not public))
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            upload = partial(self._api.upload_folder, repo_id=self.name, folder_path=folder)
            seconds = deadline.ANSWER_SECONDS + size / deadline.SLOWEST
            deadline.within(seconds, lambda: upload(commit_message="Export of gpt1-ds"))
        return f"{self._api.endpoint}/{self.name}"


def find(repository: str, update: bool) -> Repository:
    """Ask the hub who we are and whether the repository is there, before anything is done. Raises HubError for a token
    that is missing or not accepted, a hub that does not answer, and a repository that exists, unless `update`.
    """
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise HubError(f"--push-to-hub {repository}: no token: log in with `hf auth login`, or set HF_TOKEN")
    api = huggingface_hub.HfApi()
    with _told(repository):
        name = repository if "/" in repository else f"{_asked(api.whoami)['name']}/{repository}"
        exists = bool(_asked(lambda: api.repo_exists(name)))
    if exists and not update:
        raise HubError(f"--push-to-hub {name}: exists already; choose another name, or add --update")
    if update and not exists:
        raise HubError(f"--push-to-hub {name}: --update: there is no such repository; leave --update out to make it")
    return Repository(name, exists, api)


def _asked(question: Callable[[], T]) -> T:
    return deadline.within(deadline.ANSWER_SECONDS, question)


def listed(folder: Path) -> list[str]:
    """One line per file that an upload would take, with its size, and their sum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    lines = [f"{byte_size(size):>10}  {path.relative_to(folder)}" for path, size in zip(files, sizes, strict=True)]
    return [*lines, f"{byte_size(sum(sizes)):>10}  in {len(files)} files"]


@contextlib.contextmanager
def _told(repository: str) -> Iterator[None]:
    """Turn what the client raises into one line, without what a server or a library may quote."""
    from huggingface_hub import errors
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except (OSError, RuntimeError, ValueError, _http_error()) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        why = f"the hub is not reached or not understood ({type(cause).__name__}); try again when the network is there"
        if isinstance(cause, errors.OfflineModeIsEnabled):
            why = "HF_HUB_OFFLINE is set; unset it to upload"
        elif isinstance(cause, errors.HfHubHTTPError):
            why = _why(cause.response.status_code if cause.response is not None else 0)
        raise HubError(f"--push-to-hub {repository}: {why}") from None
    finally:
        if not shown:
            enable_progress_bars()


def _http_error() -> type[Exception]:
    """What the client's HTTP library raises, also for a connection that fails."""
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
