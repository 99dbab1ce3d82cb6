"""Weights & Biases' end of a sink, the W&B run of a run folder, that of its evaluations, and that which an agent of a
W&B sweep starts. Tokens are the x axis."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import IO, Any, Literal

from gpt1_ds.common import log
from gpt1_ds.common.errors import ConfigError, UserError
from gpt1_ds.common.files import write_atomic
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import RunDir, read_jsonl
from gpt1_ds.config import Config
from gpt1_ds.tracking import worker
from gpt1_ds.tracking.record import Entry, read_entries
from gpt1_ds.tracking.sinks import Ending, SegmentStart, Table, WandbLogger
from gpt1_ds.tracking.worker import error_line

SWEEP, RUN = "WANDB_SWEEP_ID", "WANDB_RUN_ID"


def trial_id() -> str | None:
    """Returns the W&B id that the agent of a sweep gives to this run; None outside a sweep. Raises ConfigError for one
    that cannot name a folder.
    """
    found = os.environ.get(RUN, "")
    if not os.environ.get(SWEEP) or not found:
        return None
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", found):
        raise ConfigError(f"{RUN}={found!r:.80} is no id of a W&B run; start the run with `wandb agent`")
    return found


def as_trial(config: Config) -> Config:
    """In a sweep every trial has a run folder of its own, `<run.name>/<W&B id>`, so that no two meet in one, and a
    trial that the agent starts again resumes.
    """
    trial = trial_id()
    if trial is None or config.run.name.rpartition("/")[2] == trial:
        return config
    if config.tracking.wandb == "off":
        say(f"{SWEEP}={os.environ[SWEEP]}: the sweep sees nothing of this run; set tracking.wandb=online")
    return replace(config, run=replace(config.run, name=f"{config.run.name}/{trial}"))


def run_id(run_dir: RunDir) -> str:
    """Returns drawn once and kept in the run folder, so it survives restarts, other spellings of the path and moving. A
    trial of a W&B sweep has the id that its agent gave.
    """
    file = run_dir.wandb / "id"
    if not file.exists():
        run_dir.wandb.mkdir(parents=True, exist_ok=True)
        write_atomic(file, (trial_id() or uuid.uuid4().hex[:16]) + "\n")
    return file.read_text(encoding="utf-8").strip()


def start(config: Config, run_dir: RunDir, job_type: str, shown: dict[str, Any]) -> SegmentStart:
    """Returns how a segment of the run folder begins; `shown` is its configuration in W&B."""
    tracking, suffix = config.tracking, "-eval" if job_type == "eval" else ""
    return SegmentStart(
        mode=tracking.wandb,
        id=run_id(run_dir) + suffix,
        name=config.run.name + suffix,
        folder=str(run_dir.path.resolve()),
        entity=tracking.entity,
        project=tracking.project,
        group=tracking.group,
        tags=tracking.tags,
        job_type=job_type,
        config=shown,
        pid=os.getpid(),
    )


def tables(run_dir: RunDir, entries: Sequence[Entry]) -> dict[str, Table]:
    """Returns the results and the samples of a run folder."""
    named = [{**{key: entry[key] for key in ("task", "split", "step")}, **entry["metrics"]} for entry in entries]
    return {"evaluation": named, "samples": list(read_jsonl(run_dir.path / "samples.jsonl"))}


def show_evaluation(config: Config, out: Path | None) -> None:
    """What `evaluate` wrote to a run's eval.json, and the run's samples, as a W&B run beside that of the training."""
    run_dir = RunDir(Path() if out is None else out.parent)
    if config.tracking.wandb == "off" or out is None or not run_dir.config.is_file():
        return
    try:
        logger = WandbLogger(start(config, run_dir, "eval", asdict(config)))
        entries = read_entries(out)
        scores = {f"{e['task']}/{e['split']}/{key}": value for e in entries for key, value in e["metrics"].items()}
        logger.close(Ending(summary=scores, tables=tables(run_dir, entries)))
    except (OSError, UserError) as error:
        log.say(f"W&B does not show this evaluation ({error}); {out} has everything")


INIT_SECONDS = 20  # for a server to answer


class WandbSegment:
    """From one start of a run to its end. Each message calls one method; methods raise what W&B raises."""

    def __init__(self, start: dict[str, Any], people: IO[str]) -> None:
        self.start, self.people = start, people
        os.environ.pop("WANDB_SERVICE", None)  # of the program that started the run: our own ends with the run
        self.folder, self.tokens = Path(start["folder"]), 0
        self.run = self._begin()
        self.run.define_metric("tokens")
        self.run.define_metric("*", step_metric="tokens")

    def _begin(self) -> Any:
        """Returns a W&B run; offline when its server cannot be reached or does not let us in."""
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
                f"W&B cannot be reached ({error_line(error)}): this segment is written offline; "
                f"gpt1-ds tracking sync {quote(str(self.folder))} uploads it"
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

    def image(self, name: str, file: str) -> None:
        import wandb

        self.run.log({name: wandb.Image(file), "tokens": self.tokens})

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
            rest = f"gpt1-ds tracking sync {quote(str(self.folder))} uploads the rest"
            self.say(f"W&B has not taken everything in time; {rest}")
            return
        if online:
            file.with_suffix(".wandb.synced").touch()  # `tracking sync` passes it over


if __name__ == "__main__":
    worker.run("W&B", WandbSegment)
