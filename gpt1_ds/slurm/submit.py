"""From a configuration to a job: the run folder gets everything the job needs, sbatch tries it, then takes it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpt1_ds.common.errors import ConfigError, LaunchError
from gpt1_ds.common.files import shipped, write_atomic
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, to_yaml
from gpt1_ds.slurm.request import job_settings, sbatch_options

SCRIPTS = shipped("launch")
COMMANDS = ("pretrain", "finetune")  # what a job may run


@dataclass(frozen=True)
class Submission:
    """Files to write into `place`, a folder of its own, so that jobs that wait already keep theirs."""

    run_dir: RunDir
    place: Path
    script: str
    options: list[str]
    files: dict[str, str]

    def command(self, *more: str) -> list[str]:
        return ["sbatch", *more, *self.options, str(self.place / self.script), "-c", str(self.place / "config.yaml")]


def prepare(command: str, config: Config) -> Submission:
    """What `submit` will do; touches nothing."""
    run_dir = RunDir(Path(config.run.dir) / config.run.name)
    options = sbatch_options(config, run_dir)
    script = f"{command}.sbatch"
    files = {**scripts(script, config, options), "config.yaml": to_yaml(config)}
    return Submission(run_dir, next_place(run_dir.slurm), script, options, files)


def next_place(slurm: Path) -> Path:
    """The folder of a submission, numbered above all that `slurm` holds."""
    numbers = [path.name.removeprefix("submission-") for path in slurm.glob("submission-*")]
    return slurm.resolve() / f"submission-{1 + max((int(x) for x in numbers if x.isdecimal()), default=0)}"


def scripts(script: str, config: Config, options: Sequence[str]) -> dict[str, str]:
    """Name -> text of a launch script and of what it reads."""
    return {
        **{name: (SCRIPTS / name).read_text() for name in (script, "env.sh", "life.sh", "next.sh")},
        "job.sh": "\n".join(job_settings(config, options)) + "\n",
    }


def layout_problems(config: Config) -> Iterator[str]:
    """What SLURM would accept and the ranks would not."""
    ranks = config.slurm.ranks
    if config.parallel.tensor > ranks:
        yield (
            f"parallel.tensor={config.parallel.tensor} reaches over nodes of {ranks} ranks, where it is slow beyond "
            f"use; use parallel.tensor={ranks} or less, or more slurm.gpus_per_node"
        )
    seconds, warning = config.slurm.seconds, config.slurm.warning
    if seconds < 2 * warning:
        yield (
            f"slurm.time={config.slurm.time} leaves {max(0, seconds - warning)} s of each job before "
            f"slurm.warning={warning} (seconds before its end) asks it to save and hand over; give it {2 * warning} s "
            f"or more, or slurm.warning={max(1, seconds // 4)}"
        )


def submit(submission: Submission, share: str) -> str:
    """The job's number. Raises ConfigError when SLURM would never run such a job, LaunchError when it takes none."""
    require_sbatch()
    call(["sbatch", "--test-only", *submission.options, str(SCRIPTS / submission.script)], {}, ConfigError)
    submission.run_dir.create(share, job=True)
    submission.place.mkdir()
    for name, text in submission.files.items():
        write_atomic(submission.place / name, text)
    answer = call(submission.command("--parsable"), {"GPT1_DS_LAUNCH": str(submission.place)}, LaunchError)
    return answer.strip().partition(";")[0]


def require_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise LaunchError("sbatch is not here; submit on a host of the cluster, or look with --dry-run")


def call(command: list[str], variables: dict[str, str], error: type[ConfigError] | type[LaunchError]) -> str:
    """What one of SLURM's commands prints; `error` with what it says when it fails."""
    # without what a surrounding job (an interactive one, say) would hand down to the new one as its options
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    ours = {name: x for name, x in os.environ.items() if name in kept or not name.startswith(("SBATCH_", "SLURM_"))}
    environment = {**ours, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise error(f"{' '.join(done.stderr.split())}; see the keys slurm.*")
    return done.stdout
