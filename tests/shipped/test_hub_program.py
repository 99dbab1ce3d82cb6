"""`checkpoint export --push-to-hub` against a hub on this machine, through the library's own client."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from gpt1_ds.cli import main
from gpt1_ds.launcher import launch
from tests.helpers.foreign import make_checkpoint
from tests.helpers.hub_server import READER, WRITER, Hub, hub_server
from tests.helpers.program import assert_refused
from tools.runs import configuration

EXPORT = ("checkpoint", "export", "--to", "hf", "--out", "out")


@pytest.fixture(scope="module")
def finished(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps with its held-out loss in eval.json."""
    folder = tmp_path_factory.mktemp("published")
    arguments = [f"data.path={tiny_data}", f"run.dir={folder}", "run.name=r", "train.steps=6", "train.log_every=1"]
    assert launch.launch("gpt1_ds.training.pretraining:pretrain", (configuration(arguments),), 1) == 0
    assert main(["evaluate", str(folder / "r"), "--nproc", "1"]) == 0
    return folder / "r"


@pytest.fixture(scope="module")
def untrained(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("untrained") / "ckpt", tiny_data.parent / "tokenizer")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_server() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield served


def test_a_run_becomes_a_repository_with_a_whole_card(program, finished: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with hub_server() as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_TOKEN": WRITER, "HF_HUB_DISABLE_XET": "1"}
        arguments = ("--push-to-hub", "me/model", "--license", "apache-2.0", "--yes")
        done = program(*EXPORT, str(finished), *arguments, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{hub.address}/me/model: uploaded, private"
    there = hub.repositories["me/model"]
    files = {str(path.relative_to(tmp_path / "out")): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in files.items()} == there
    assert hub.private == {"me/model": True}
    assert all(name in done.stdout for name in there), "what is uploaded is listed"
    assert there["curves.png"].startswith(b"\x89PNG")
    _, front, text = there["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(front)
    (index,) = card["model-index"]
    results = {
        (one["dataset"]["name"], metric["type"]): metric["value"]
        for one in index["results"]
        for metric in one["metrics"]
    }
    assert card["license"] == "apache-2.0"
    assert results["held-out", "loss"] > 1
    assert "![Losses of the run](curves.png)" in text
    assert "| data | `" in text
    assert "global_batch:" in text
    assert str(finished.parent) not in text, "no place on this machine"
    everything = [done.stdout.encode(), done.stderr.encode(), *(p.read_bytes() for p in files.values())]
    assert not [one for one in everything if WRITER.encode() in one]


def test_a_dry_run_only_lists(gpt1, untrained: Path, hub: Hub, in_folder: Path) -> None:  # type: ignore[no-untyped-def]
    done = gpt1(*EXPORT, str(untrained), "--push-to-hub", "me/model", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "model.safetensors" in done.out
    assert not (in_folder / "out").exists()
    assert hub.requests == []


def test_public_and_update(gpt1, untrained: Path, hub: Hub) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--push-to-hub", "model", "--license", "mit", "--yes")
    assert gpt1(*EXPORT, str(untrained), *arguments, "--public").code == 0
    assert hub.private == {"me/model": False}
    hub.repositories["me/model"] = {}
    refused = gpt1(*EXPORT[:-1], "again", str(untrained), *arguments)
    assert_refused(refused, "me/model: exists already; choose another name, or add --update")
    assert not Path("again").exists(), "it is found before the export"
    assert gpt1(*EXPORT[:-1], "again", str(untrained), *arguments, "--update").code == 0
    assert "model.safetensors" in hub.repositories["me/model"]


@pytest.mark.parametrize(
    ("arguments", "token", "says"),
    [
        (["--push-to-hub", "me/model"], WRITER, "--license: is needed to upload"),
        (["--push-to-hub", "a/b/c"], WRITER, "a/b/c: not the name of a repository"),
        (["--push-to-hub", "me/model", "--license", "MIT?"], WRITER, "no identifier of a licence"),
        (["--public"], WRITER, "--public: is for uploads alone"),
        (["--push-to-hub", "me/model", "--license", "mit"], "", "no token: log in with `hf auth login`"),
        (["--push-to-hub", "me/model", "--license", "mit"], "hf_of_yesterday", "does not accept the token"),
        (["--push-to-hub", "me/model", "--license", "mit", "--update"], WRITER, "there is no such repository"),
    ],
    ids=str,
)
def test_refused_before_anything_is_written(  # type: ignore[no-untyped-def]
    gpt1, untrained: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, arguments: list[str], token: str, says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    refused = gpt1(*EXPORT, str(untrained), *arguments)
    assert_refused(refused, says)
    assert not token or token not in refused.err
    assert not Path("out").exists()
    assert hub.repositories == {}


def test_no_network(gpt1, untrained: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert_refused(gpt1(*EXPORT, str(untrained), "--push-to-hub", "me/m", "--license", "mit"), "the hub is not reached")


@pytest.mark.parametrize(
    ("arguments", "token", "broken", "says"),
    [
        (["me/model", "--yes"], READER, 0, "the token has no right to write there"),
        (["you/model", "--yes"], WRITER, 0, "the token has no right to write there"),
        (["me/model", "--yes"], WRITER, 500, "the hub answers 500"),
        (["me/model"], WRITER, 0, "not uploaded: not confirmed (--yes does)"),
    ],
    ids=str,
)
def test_what_was_exported_stays(  # type: ignore[no-untyped-def]
    gpt1,
    untrained: Path,
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    token: str,
    broken: int,
    says: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.broken = broken
    refused = gpt1(*EXPORT, str(untrained), "--license", "mit", "--push-to-hub", *arguments)
    assert_refused(refused, says, f"out stays; `hf upload {arguments[0]} out --private` sends it later")
    assert token not in refused.err + refused.out
    assert (Path("out") / "model.safetensors").exists()
    assert not any(hub.repositories.values())


def test_a_person_is_asked(gpt1, untrained: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("cc-by-4.0\ny\n"))
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert gpt1(*EXPORT, str(untrained), "--push-to-hub", "me/model").code == 0
    assert b"license: cc-by-4.0" in hub.repositories["me/model"]["README.md"]
