"""trackio's end of its sink: one trackio run per training run, in trackio's own database, steps as the x axis."""

from __future__ import annotations

import warnings
from typing import IO, Any

from gpt1_ds.tracking import worker


class TrackioSegment:
    """From one start of a run to its end. trackio removes no points: what it has of an earlier segment is kept, and is
    not written again. Where trackio cannot write it warns and continues: people see the first warning.
    """

    def __init__(self, start: dict[str, Any], people: IO[str]) -> None:
        import trackio

        self.people: IO[str] | None = people
        shown: Any = self._tell
        warnings.showwarning = shown
        keys = ("project", "name", "group", "config")
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = trackio.init(resume="allow", **{key: start[key] for key in keys}, **quiet)
        self.known = {(entry["step"], key) for entry in _entries(start) for key in entry}

    def _tell(self, message: Warning | str, category: type[Warning], *_: Any) -> None:
        if self.people is not None and category is UserWarning:
            print(f"trackio: {str(message).partition(chr(10))[0]}", file=self.people, flush=True)
            self.people = None

    def log(self, values: dict[str, float], step: int) -> None:
        new = {key: value for key, value in values.items() if (step, key) not in self.known}
        if new:
            self.run.log(new, step=step)

    def finish(self, summary: dict[str, Any], failed: bool) -> None:
        self.run.finish()


def _entries(start: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what trackio's local database has of the run."""
    from trackio.sqlite_storage import SQLiteStorage

    entries: list[dict[str, Any]] = SQLiteStorage.get_logs(start["project"], start["name"])
    return entries


if __name__ == "__main__":
    worker.run("trackio", TrackioSegment)
