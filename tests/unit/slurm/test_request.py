"""Values on their way to sbatch and to the script: literally, or refused."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.common.files import shipped
from gpt1_ds.common.rundir import RunDir
from gpt1_ds.config import Config, load
from gpt1_ds.slurm.submit import job_settings, layout_problems, prepare, sbatch_options, submit

PIECES = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned #',
    "${HOME}",
    "a b",
    "*",
    "\\",
    "é",
    "--",
]
HOSTILE = [a + b for a, b in product(PIECES, PIECES)]


def told(config: Config) -> list[str]:
    return sbatch_options(config, RunDir(Path("runs/a")))


@pytest.mark.parametrize("value", ["20:00:00", "no", "012", "1e3", "on", "a b", "it's", '"x"', "$(touch pwned)"])
def test_values_stay_what_they_are(value: str) -> None:
    key = "time" if value == "20:00:00" else "account"
    assert f"--{key}={value}" in told(load([], [f"slurm.{key}={value}"]))


def test_values_of_a_file_stay_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("slurm: {time: 20:00:00, account: no, partition: 012, environment: {NCCL_IB_HCA: on, X: 012}}\n")
    config = load([str(file)])
    assert {"--time=20:00:00", "--account=no", "--partition=012"} <= set(told(config))
    assert config.slurm.environment == {"NCCL_IB_HCA": "on", "X": "012"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["slurm.gpus_per_node=8"], ["--gpus-per-node=8", "--cpus-per-gpu=4"]),
        (["slurm.gpus_per_node=a100:8"], ["--gpus-per-node=a100:8", "--cpus-per-gpu=4"]),
        (["slurm.gpus_per_node=a100:8", "slurm.gpus_by=gres"], ["--gres=gpu:a100:8", "--cpus-per-task=32"]),
        (["slurm.gpus_per_node=4", "slurm.gpus_by=gres", "slurm.launcher=srun"], ["--gres=gpu:4", "--cpus-per-task=4"]),
        (
            ["slurm.gpus_per_node=h100:2", "slurm.gpus_by=gpus-per-task"],
            ["--gpus-per-task=h100:2", "--cpus-per-task=8"],
        ),
        (["slurm.requeue=false"], ["--no-requeue"]),
        (["slurm.nodes=4", "slurm.spare_nodes=1"], ["--nodes=5", "--no-kill"]),
    ],
    ids=lambda value: value[0] if value and "=" in value[0] else None,
)
def test_sites_ask_in_different_ways(arguments: list[str], expected: list[str]) -> None:
    config = load([], arguments)
    found = told(config)
    assert set(expected) <= set(found)
    assert config.slurm.ranks == max(1, config.slurm.gpus)
    assert len([argument for argument in found if "gpu" in argument]) == (1 if config.slurm.gpus else 0) + (
        "--cpus-per-gpu=4" in found
    )


@pytest.mark.parametrize(
    ("runtime", "first"), [("singularity", ["singularity", "exec", "--nv"]), ("podman", ["podman", "run", "--rm"])]
)
def test_containers(runtime: str, first: list[str]) -> None:
    """Words for the site's own program; no such program is here."""
    arguments = ["slurm.container=image", f"slurm.container_runtime={runtime}", "slurm.gpus_per_node=a100:2"]
    (line,) = (line for line in job_settings(load([], arguments), []) if line.startswith("prefix="))
    assert shlex.split(line.partition("(")[2].rstrip(")"))[: len(first)] == first
    assert line.endswith(" image)")


def test_enroot_gets_the_variables_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of its name notes its words, then starts the command with the variables that it was told alone."""
    stand_in = tmp_path / "bin" / "enroot"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"""#!{sys.executable}
import os, sys
words = sys.argv[2:]
given = {{"PATH": "/image:/usr/bin:/bin"}}
while words[0] in ("--env", "--mount"):
    option, value, *words = words
    given |= {{value: os.environ[value]}} if option == "--env" else {{}}
print(sys.argv[1], words[0], flush=True)
os.execvpe(words[1], words[1:], given)
"""
    )
    stand_in.chmod(0o755)
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = load([], ["slurm.container=image.sqsh", "slurm.container_runtime=enroot"])
    (line,) = (line for line in job_settings(config, []) if line.startswith("prefix="))
    script = f'{line}\n"${{prefix[@]}}" sh -c \'pwd; echo "$A"; echo "$PATH"\''
    variables = {**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}", "A": "two  words", "PYTHONPATH": "x"}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["start image.sqsh", str(folder), "two  words", "/image:/usr/bin:/bin"], (
        done.stderr
    )


@pytest.mark.parametrize(
    "argument",
    [
        "slurm.container_runtime=docker",
        "slurm.gpus_per_node=a100:",
        "slurm.gpus_per_node=-1",
        "slurm.gpus_per_node='8;touch pwned'",
        "slurm.time=72000",
        "slurm.time=soon",
        "slurm.time=1:2:3:4",
        "slurm.partition=a\n#SBATCH --wrap=touch",
        "slurm.nodes=0",
        "slurm.spare_nodes=-1",
        "slurm.options=[-p x]",
        "slurm.options=[--wrap=touch pwned]",
        "slurm.options=[--output=/etc/passwd]",
        "slurm.environment={WANDB_API_KEY: x}",
        "slurm.environment={'A=1;touch pwned': x}",
        "slurm.container_mounts=[/a]",
        "run.name=$(touch pwned)",
        "run.name=a b",
    ],
)
def test_refused(argument: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([], [argument])
    assert len(caught.value.problems) == 1


def test_nothing_is_the_default() -> None:
    assert load([], ["slurm.account="]).slurm.account is None


def test_no_value_runs_in_the_script(tmp_path: Path) -> None:
    """Bash reads the settings of a hundred hostile strings at once, and has every one of them as it was."""
    values = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    config = load([], ["slurm.container_runtime=apptainer"])
    slurm = config.slurm.__class__(environment=values, container="$(touch pwned).sif", container_runtime="apptainer")
    config = config.__class__(slurm=slurm, run=config.run)
    options = [f"--comment={value}" for value in HOSTILE]
    settings = tmp_path / "job.sh"
    settings.write_text("\n".join(job_settings(config, options)) + "\n")
    names = " ".join(f'"${name}"' for name in values)
    script = f'set -eu; . "$1"; printf "%s\\0" "${{options[@]}}" {names} "${{prefix[@]: -1}}"'
    done = subprocess.run(["bash", "-c", script, "bash", str(settings)], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [*options, *HOSTILE, "$(touch pwned).sif"]
    assert not (tmp_path / "pwned").exists()


def test_a_line_of_setup_that_fails_ends_the_job(tmp_path: Path) -> None:
    """As the batch scripts read it, where bash forgets `set -e`; a name that nobody set passes."""
    for name in ("env.sh", "nodes.sh", "stage.sh", "life.sh", "next.sh"):
        shutil.copy(shipped("launch") / name, tmp_path)
    script = '. "$1/env.sh" || exit 9; echo "${MADE:-} trains"'
    for lines, code, says in (
        (["inner() { false; true; }; inner", ': "$NOBODY"', "export MADE=it"], 0, ""),
        (["true", "module load cuda/99"], 2, "slurm.setup: line 2 ended with status 127; correct it, or add || true"),
    ):
        settings = "\n".join(job_settings(load([], [f"slurm.setup={json.dumps(lines)}"]), []))
        (tmp_path / "job.sh").write_text(settings + "\n")
        done = subprocess.run(
            ["bash", "-c", script, "bash", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (code, "" if code else "it trains\n"), done.stderr
        assert says in done.stderr


def test_a_percent_of_a_folder_stays_one() -> None:
    """SLURM would put the job's name in its place, find no such folder, and end the job without a word."""
    (output,) = (argument for argument in sbatch_options(load(), RunDir(Path("/disk/100%x/a"))) if "output" in argument)
    assert output == "--output=/disk/100%%x/a/slurm/%j.out"


def test_two_that_are_submitted_at_the_same_time(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job reads a folder of its own; the second one's was a traceback."""
    sbatch = in_folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/usr/bin/env bash\n[ "$1" = --test-only ] || { echo "${@: -1}" >>told; echo 7; }\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=":")
    for submission in [prepare("pretrain", load([], ["run.name=a"])) for _ in range(2)]:
        assert submit(submission, "private") == "7"
    places = [in_folder.resolve() / "runs" / "a" / "slurm" / f"submission-{number}" for number in (1, 2)]
    assert (in_folder / "told").read_text().splitlines() == [str(place / "config.yaml") for place in places]
    assert all((place / "config.yaml").is_file() for place in places)


def test_launchers() -> None:
    assert "--ntasks-per-node=1" in told(load([], ["slurm.gpus_per_node=8"]))
    assert "--ntasks-per-node=8" in told(load([], ["slurm.gpus_per_node=8", "slurm.launcher=srun"]))
    assert "--gpus-per-node=8" in told(load([], ["slurm.gpus_per_node=8"]))
    assert not [argument for argument in told(load()) if "gpus" in argument]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("20:00:00", 72000),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-1:30", 91800),
        ("90:00", 5400),
        ("0:01:05", 65),
    ],
)
def test_the_limit_is_read_as_slurm_reads_it(time: str, seconds: int) -> None:
    assert load([], [f"slurm.time={time}"]).slurm.seconds == seconds


def test_a_job_that_is_warned_as_it_starts_is_refused() -> None:
    (line,) = layout_problems(load([], ["slurm.time=00:02:00"]))
    assert line.startswith("slurm.time=00:02:00 leaves 0 s of each job before slurm.warning=300")
    assert line.endswith("give it 600 s or more, or slurm.warning=30")
    assert not list(layout_problems(load([], ["slurm.time=00:02:00", "slurm.warning=30"])))
    assert not list(layout_problems(load([], [])))
