"""`tracking sync`: upload what runs wrote offline, segment by segment in the order of their starts."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import scratch_folder
from gpt1_ds.common.lock import is_held
from gpt1_ds.common.rundir import RunDir, no_run
from gpt1_ds.common.text import amount

SERVER = "https://api.wandb.ai"
ANSWER_SECONDS = 10.0
START_SECONDS = 60.0  # for wandb to be loaded
PREFIXES = ("offline-run-", "run-")  # the second: online segments that lost the network


def sync(runs: Sequence[Path]) -> int:
    """Uploads every segment of `runs` (or studies) that is not uploaded yet; prints what it did. Raises UserError."""
    UserError.raise_all(
        f"{run}: {no_run(run)}" for run in runs if not RunDir(run).config.is_file() and not segments(run)
    )
    waiting = {run: [folder for folder in segments(run) if not _is_synced(folder)] for run in runs}
    if any(waiting.values()):
        reach_server()
    for run, folders in waiting.items():
        live = bool(folders) and is_held(RunDir(run).lock) and folders[-1:] == segments(run)[-1:]
        if live:
            folders.pop()
            print(f"{run}: is still running; its last segment is left for later")
        if folders:
            upload(folders)
        print(
            f"{run}: {amount(len(folders), 'segment')} uploaded, {len(segments(run)) - len(folders) - live} were before"
        )
    return 0


def segments(run: Path) -> list[Path]:
    """Returns folders of a run's W&B segments, oldest first: their names continue with the time of the start."""
    found = [folder for prefix in PREFIXES for folder in RunDir(run).wandb.glob(f"{prefix}*") if _files(folder)]
    return sorted(found, key=lambda folder: folder.name.partition("run-")[2])


def command(folders: Sequence[Path]) -> list[str]:
    """Returns the command of wandb 0.31, which takes the files of one W&B run in the order of their starts."""
    return [sys.executable, "-P", "-m", "wandb", "sync", "--yes", "--include-online", *map(str, folders)]


def upload(folders: Sequence[Path]) -> None:
    """Raises UserError when one of them is not uploaded."""
    with scratch_folder() as scratch:  # it leaves logs where it is started
        places = [folder.resolve() for folder in folders]
        done = _uploaded(places, scratch)
    left = [folder for folder in folders if not _is_synced(folder)]
    if done.returncode or left:
        lines = [line.removeprefix("wandb: ") for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in lines if line.lower().startswith("error") and "detailed error logs" not in line]
        why = (wrong or lines or [f"exit code {done.returncode}"])[-1].strip()
        raise UserError(f"{(left or folders)[0]}: not uploaded: {why}; correct that and sync again")


def _uploaded(places: Sequence[Path], scratch: str) -> subprocess.CompletedProcess[str]:
    """Returns how wandb ended. Raises UserError where it takes longer than a slow network would."""
    size = sum(path.stat().st_size for place in places for path in place.rglob("*") if path.is_file())
    limit = START_SECONDS + deadline.upload_seconds(size)
    nothing, words = subprocess.DEVNULL, command(places)
    try:
        return subprocess.run(words, cwd=scratch, stdin=nothing, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        late = f"not uploaded within {limit:.0f} s; sync again when the network is well"
        raise UserError(f"{places[0]}: {late}") from None


def _files(folder: Path) -> list[Path]:
    return list(folder.glob("run-*.wandb"))


def _is_synced(folder: Path) -> bool:
    """Returns whether a run was uploaded: W&B leaves a marker beside it."""
    return all(file.with_suffix(".wandb.synced").exists() for file in _files(folder))


def reach_server() -> None:
    """Asks before W&B does: it would try for ever. Any answer will do. Raises UserError where there is none."""
    server = os.environ.get("WANDB_BASE_URL", SERVER)
    try:
        with urllib.request.urlopen(server, timeout=ANSWER_SECONDS):
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"{server}: not reachable ({reason}); sync where there is a network, or set WANDB_BASE_URL"
        ) from None
