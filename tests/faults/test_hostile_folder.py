"""Python files of the folder in which the program is started never run, whatever they are called: each of these writes
its name into a file when it is executed.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import runs

ROOT = Path(__file__).parents[2]
MODULE = re.compile(r"""(-P["',\s]+)?-m["',\s]+(gpt1_ds|torch\.|wandb|module)\b""")  # a start by a module's name


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a module in the place of each of Python's, of each installed package, and of this one."""
    folder = tmp_path / "here"
    folder.mkdir()
    installed = importlib.metadata.packages_distributions()
    for name in {*sys.stdlib_module_names, *installed, "sitecustomize", "usercustomize", "gpt1_ds", "tools"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(
                f"open({str(tmp_path / 'ran')!r}, 'a').write({name + chr(10)!r})\nraise ImportError('hostile {name}')\n"
            )
    for name in ("deepspeed", "torch", "json"):
        (folder / name).mkdir()
        (folder / f"{name}.py").rename(folder / name / "__init__.py")
    return folder


def run(folder: Path, command: Sequence[str | Path], code: int = 0, **variables: str) -> str:
    """What it prints; none of the folder's files has run."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(argument) for argument in command],
        **{"cwd": folder, "env": {**clean, "PATH": path, **variables}, "capture_output": True, "text": True},
    )
    ran = folder.parent / "ran"
    assert not ran.exists(), f"{command}: {ran.read_text().split()}"
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_no_process_of_a_command_runs_them(hostile: Path, tiny_data: Path) -> None:
    """The fork server and its ranks, workers that read text, and trackers."""
    texts = [hostile.parent / f"{number}.txt" for number in range(2)]  # two inputs are two units of work
    for text in texts:
        text.write_text("This is a text.\n" * 50)
    arguments = ["--input", *texts, "--tokenizer", tiny_data.parent / "tokenizer", "--out", "data"]
    theirs = hostile.parent / "theirs"  # what a person's own PYTHONPATH names is found as before
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text(f"open({str(theirs / 'found')!r}, 'a').write('x')")
    build = ["gpt1-ds", "data", "build", *arguments, "--workers", "2", "--validation", "0.4"]
    run(hostile, build, PYTHONPATH=str(theirs))
    assert len((theirs / "found").read_text()) >= 3, "in the program and two workers"
    trackers = ["tracking.wandb=offline", "tracking.tensorboard=true", "tracking.trackio=true"]
    told = [*runs.TINY, f"data.path={tiny_data}", "train.steps=2", "train.eval_every=1", *trackers]
    said = run(hostile, ["gpt1-ds", "pretrain", *told, "--nproc", "2"], TRACKIO_DIR=str(hostile.parent / "trackio"))
    assert "is off for the rest" not in said
    assert (hostile / "runs" / "run" / "DONE").exists()


@pytest.mark.slow
def test_no_launcher_runs_them(hostile: Path, tiny_data: Path) -> None:
    """The scripts of launch/, a node of a job with torchrun and without, and submitit."""
    arguments = ["pretrain", *runs.TINY, f"data.path={tiny_data}", "train.steps=2", "--dry-run"]
    launch = ROOT / "launch"
    assert "parameters" in run(hostile, ["bash", launch / "local.sh", *arguments], NPROC="2")
    assert "parameters" in run(hostile, ["bash", launch / "pretrain.sbatch", *arguments[1:]], NPROC="2")
    node = ["python", "-P", "-m", "gpt1_ds", "slurm", "node", "--ranks", "2", *arguments]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29613", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    assert run(hostile, node, **meeting).count("parameters") > 1, "torchrun's two ranks"
    assert "parameters" in run(hostile, node, **meeting, SLURM_NTASKS="2", SLURM_PROCID="1")
    submitit = ["python", "-P", launch / "submitit_run.py", "--cluster", "local", "--ranks", "1"]
    assert "job " in run(hostile, [*submitit, *arguments])


def test_a_library_of_the_folder_does_not_run_without_safe_path(tmp_path: Path) -> None:
    """`python -m gpt1_ds`, as people type it: Python itself has then read two modules of its own and this package."""
    (tmp_path / "numpy.py").write_text("open('ran', 'w')")
    (tmp_path / "yaml.py").write_text("open('ran', 'w')")
    done = subprocess.run([sys.executable, "-m", "gpt1_ds", "plan", "--world", "1"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_every_python_is_started_with_safe_path() -> None:
    """In the package, its notebooks, the launch scripts and the tools."""
    files = [path for folder in ("gpt1_ds", "launch", "tools") for path in (ROOT / folder).rglob("*") if path.is_file()]
    code = [path for path in files if path.suffix in (".py", ".sh", ".sbatch", ".ipynb")]
    started = {
        f"{path.relative_to(ROOT)}:{number}": line
        for path in code
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := MODULE.search(line)) and not found[1]
    }
    elsewhere = (
        "gpt1_ds/commands/slurm_job.py:",  # its -P stands before both of its lines, and is tested above
        "gpt1_ds/cli.py:",  # what a person typed, to be shown
    )
    assert [place for place in started if not place.startswith(elsewhere)] == []
