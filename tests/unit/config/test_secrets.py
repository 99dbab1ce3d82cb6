"""What looks like a secret is refused before anything is saved, and is not repeated; what only looks a bit like it is
taken.
"""

from __future__ import annotations

import json

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load

SECRET = "s3cr3t-Value"
REFUSED = {
    "slurm.setup": (
        f"export HF_TOKEN={SECRET}",
        f"module load cuda; WANDB_API_KEY='{SECRET} x' true",
        f'export OPENAI_APIKEY="{SECRET}"',
        f"git clone https://{SECRET}@github.com/a/b",
        f"export HTTPS_PROXY=http://me:{SECRET}@proxy:8080",
        f"wandb login {SECRET}",
        f"hf auth login --token {SECRET}",
        f"mount.cifs --password={SECRET} //a /b",
        f"curl -s -u me:{SECRET} https://a/b",
        "huggingface-cli login hf_" + "a" * 34,
        "aws configure set x AKIA" + "A" * 16,
        "echo sk-proj-" + "aB3-" * 2 + "aB3x" * 5,
        "echo sk-" + "0f" * 16,
        f"curl 'https://a.blob.core.windows.net/x?sv=1&sig={SECRET}'",
    ),
    "slurm.options": (f"--comment=https://me:{SECRET}@a", f"--my-password={SECRET}"),
}
VARIABLES = ("WANDB_API_KEY", "DB_PASSWD", "AUTH", "MY_PWD", "HF_TOKEN", "aws_secret_access_key", "SSH_KEY", "COOKIE")
ELSEWHERE = (
    f"data.path=https://me:{SECRET}@host/data",
    f"run.dir=ftp://me:{SECRET}@host/runs",
    f"data.path=[{{path: a}}, {{path: 'https://host/b?token={SECRET}'}}]",
    "tracking.project=ghp_" + "a" * 36,
    f"slurm.container=docker://me:{SECRET}@registry/image",
    f"parallel.deepspeed={{a: {{b: 'http://u:{SECRET}@h'}}}}",
    f"parallel.deepspeed={{dump_state: 'http://u:{SECRET}@h'}}",
)
TAKEN = {
    "slurm.setup": (
        ". ~/secrets.sh",
        'export HF_TOKEN="$(cat ~/.token)"',
        "export HF_TOKEN=$MY_TOKEN WANDB_API_KEY=",
        "export HF_TOKEN_PATH=/home/me/.token",
        "export TOKENIZERS_PARALLELISM=false MONKEY=1 PASSES=3 AUTHOR=me",
        "export http_proxy=http://proxy:8080",
        "export HTTPS_PROXY=http://me:$PASSWORD@proxy:8080",
        "git clone ssh://git@github.com/a/b",
        "curl 'https://a/b?page=1' --silent",
        "export PWD_BEFORE=; wandb login --relogin",
        "conda activate key",
        "conda activate sk-learn-baseline-comparison",
    ),
    "slurm.options": ("--reservation=NAME", "--comment=tokens and keys", "--gres=gpu:8"),
}


def problem(argument: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load([], [argument])
    (line,) = caught.value.problems
    assert SECRET not in line
    assert "source a file of yours" in line
    return line


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in REFUSED.items() for text in texts])
def test_secrets_of_lines_and_options_are_refused(key: str, text: str) -> None:
    assert problem(f"{key}={json.dumps(['true' if key == 'slurm.setup' else '--x', text])}").startswith(f"{key}.2: ")


@pytest.mark.parametrize("name", VARIABLES)
def test_secrets_of_variables_are_refused(name: str) -> None:
    assert problem(f"slurm.environment={{A: b, {name}: {SECRET}}}").startswith(f"slurm.environment.{name}: {name} ")


@pytest.mark.parametrize("argument", [*ELSEWHERE, f"slurm.environment={{HTTPS_PROXY: 'http://u:{SECRET}@proxy'}}"])
def test_passwords_in_addresses_are_refused_anywhere(argument: str) -> None:
    key = problem(argument).partition(":")[0]
    assert key.startswith(argument.partition("=")[0])


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in TAKEN.items() for text in texts])
def test_what_is_no_secret_is_taken(key: str, text: str) -> None:
    assert getattr(load([], [f"{key}={json.dumps([text])}"]).slurm, key.removeprefix("slurm.")) == [text]


def test_variables_that_are_no_secrets_are_taken() -> None:
    arguments = "{NCCL_IB_HCA: mlx5, TOKENIZERS_PARALLELISM: 'false', SSH_AUTH_SOCK: /run/x, XAUTHORITY: /home/me/.x}"
    assert len(load([], [f"slurm.environment={arguments}"]).slurm.environment) == 4


@pytest.mark.parametrize("option", ["--wra=touch x", "--wrap=x", "--o=/etc/x", "--exp=NONE", "--job=x", "--", "--=x"])
def test_beginnings_of_options_that_are_decided_here_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="decided here"):
        load([], [f"slurm.options=['{option}']"])


@pytest.mark.parametrize("option", ["--export-file=x", "--exclusive=user", "--wait-all-nodes=1", "--open-mode=append"])
def test_options_of_their_own_are_taken(option: str) -> None:
    assert load([], [f"slurm.options=['{option}']"]).slurm.options == [option]
