"""Weights & Biases' end of its sink. One W&B run per training run, tokens as the x axis."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, Any, Literal

from gpt1_ds.tracking import worker
from gpt1_ds.tracking.worker import first_line

INIT_SECONDS = 20  # for a server to answer


class Segment:
    """From one start of a run to its end. Each message calls one method; methods raise what W&B raises."""

    def __init__(self, start: dict[str, Any], people: IO[str]) -> None:
        self.start, self.people = start, people
        self.folder, self.tokens = Path(start["folder"]), 0
        self.run = self._begin()
        self.run.define_metric("tokens")
        self.run.define_metric("*", step_metric="tokens")

    def _begin(self) -> Any:
        """A W&B run; offline when its server cannot be reached or does not let us in."""
        if self.start["mode"] == "offline":
            return self._init("offline")
        before = set(self.folder.glob("wandb/run-*"))
        try:
            return self._init("online")
        except Exception as error:
            import wandb

            wandb.teardown()  # or it would try again what has just failed
            for left in set(self.folder.glob("wandb/run-*")) - before:
                shutil.rmtree(left, ignore_errors=True)
            run = self._init("offline")
            self.say(
                f"W&B cannot be reached ({first_line(error)}): this segment is written offline; "
                f"gpt1-ds tracking sync {self.folder} uploads it"
            )
            return run

    def _init(self, mode: Literal["offline", "online"]) -> Any:
        import wandb

        start = self.start
        settings = wandb.Settings(
            **{"init_timeout": INIT_SECONDS, "finish_timeout": start["upload_seconds"], "finish_timeout_raises": True},
            **{"console": "off", "disable_git": True, "disable_code": True, "x_stats_pid": start["pid"]},
        )
        keys = ("id", "name", "entity", "project", "group", "tags", "job_type", "config")
        chosen = {key: start[key] for key in keys}
        return wandb.init(dir=start["folder"], mode=mode, resume="allow", settings=settings, **chosen)

    def say(self, line: str) -> None:
        print(line, file=self.people, flush=True)

    def log(self, values: dict[str, Any], step: int, tokens: int) -> None:
        """No `step=`: W&B drops points whose step goes back, as it does after a rollback."""
        self._check_space()
        self.tokens = tokens
        self.run.log({**values, "tokens": tokens})

    def _check_space(self) -> None:
        """On a full disk W&B's service continues, says nothing and leaves gaps."""
        place = self.folder / "wandb"
        if not os.statvfs(place).f_bavail:
            raise OSError(f"no space left in {place}")

    def table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        import wandb

        table = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        self.run.log({name: table, "tokens": self.tokens})

    def reference(self, name: str, place: str, aliases: list[str], metadata: dict[str, Any]) -> None:
        import wandb

        artifact = wandb.Artifact(name, type="model", metadata=metadata)
        artifact.add_reference(place, checksum=False)
        self.run.log_artifact(artifact, aliases=aliases)

    def finish(self, summary: dict[str, Any], failed: bool) -> None:
        self._check_space()
        self.run.summary.update(summary)
        online, file = not self.run.offline, Path(self.run.settings.sync_file)
        try:
            self.run.finish(exit_code=int(failed))
        except TimeoutError:
            self.say(f"W&B has not taken everything in time; gpt1-ds tracking sync {self.folder} uploads the rest")
            return
        if online:
            file.with_suffix(".wandb.synced").touch()  # `tracking sync` passes it over


if __name__ == "__main__":
    worker.run("W&B", Segment)
