"""The scripts of `completion`, asked as a shell asks them."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from gpt1_ds.cli import main
from gpt1_ds.config.presets import presets

ASK = {
    "bash": "COMP_WORDS=(gpt1-ds {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _gpt1_ds; "
    "printf '%s\\n' \"${{COMPREPLY[@]}}\"",
    "zsh": "words=(gpt1-ds {words}); CURRENT=${{#words}}; _gpt1_ds",
}
PREPARE = {
    "bash": "",
    "zsh": "compdef() {}; _files() {}\n"
    "compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- ${(M)@:#${words[CURRENT]}*} }\n",
}


@pytest.fixture(params=["bash", "zsh"])
def complete(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """What the shell offers for a command line, whose last word is not finished."""
    shell = request.param
    if shutil.which(shell) is None:
        assert "CI" not in os.environ, f"CI has {shell}"
        pytest.skip(f"needs {shell}")
    assert main(["completion", shell]) == 0
    script = PREPARE[shell] + capsys.readouterr().out

    def offered(*words: str) -> list[str]:
        asked = ASK[shell].format(words=" ".join(f"'{word}'" for word in words))
        done = subprocess.run([shell, "-c", f"{script}\n{asked}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pre"], ["pretrain", "predict"]),
        (["slurm", ""], ["submit", "status", "check"]),
        (["finetune", "st"], ["study"]),
        (["finetune", "study", "--"], ["--help", "--jobs", "--dry-run", "--rehearse"]),
        (["checkpoint", "export", "runs/r", "--to", ""], ["hf"]),
        (["predict", "--format", "t"], ["text", "tsv"]),
        (["pretrain", "a.b=c", "--dr"], ["--dry-run"]),
        (["pretrain", "-c", "x", "--config", "pretrain/tiny"], ["pretrain/tiny_cpu"]),
        (["evaluate", "-c", ""], presets()),
        (["completion", "z"], ["zsh"]),
        (["pretrain", "-c", "pretrain/tiny_cpu", "model.la"], ["model.layers="]),
        (["slurm", "submit", "pretrain", "slurm.ti"], ["slurm.time="]),
        (["predict", "model.la"], []),
        (["pretrain", "--nproc", ""], []),  # any value: the shell offers files
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else None,
)
def test_what_is_offered(complete, words: list[str], expected: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert complete(*words) == expected


def test_the_script_for_bash_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("shellcheck") is None:
        assert "CI" not in os.environ, "CI has shellcheck"
        pytest.skip("needs shellcheck")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run(["shellcheck", "-s", "bash", "-"], input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
