"""A server that accepts and never answers ends in one line, within the limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import fsspec
import huggingface_hub.constants
import pytest

from gpt1_ds.common import deadline
from gpt1_ds.common.errors import UserError
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.remote import limit_hub_clients
from gpt1_ds.data.tokenizers import hf_folder as tokenizers_hub
from gpt1_ds.interop import hub
from gpt1_ds.tracking import sync

LIMIT = 2.0  # seconds, in the place of a minute; on a busy machine a question is not even asked within one


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, which is also that of the hubs."""
    for name in ("ANSWER_SECONDS", "SILENCE_SECONDS", "LISTING_SECONDS"):
        monkeypatch.setattr(deadline, name, LIMIT)
    fsspec.filesystem("http")  # loading what asks counts, too
    open_connections = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    open_connections.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_nobody")
        monkeypatch.setenv("WANDB_BASE_URL", address)
        yield address
        assert open_connections, "it was asked"
    for connection in open_connections:
        connection.close()


QUESTIONS: dict[str, Callable[[str], object]] = {
    "text of a web server": lambda address: find_inputs([f"{address}/a.txt"]),
    "dataset of the hub": lambda _: find_inputs(["hf:me/data"]),
    "tokenizer of the hub": lambda _: tokenizers_hub.download("me/model"),
    "upload to the hub": lambda _: hub.find("me/model", update=False),
    "W&B": lambda _: sync.reach_server(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_ends(question: str, silent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sync, "ANSWER_SECONDS", LIMIT)
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        QUESTIONS[question](silent)
    assert time.monotonic() - began < 20 * LIMIT, "of which it waits at most two, on a machine that has time"
    (line,) = caught.value.problems
    assert "\n" not in line
    assert any(text in line for text in ("no answer within", "TimeoutError", "timed out")), line


def test_libraries_that_ask_many_times_have_a_limit_for_each() -> None:
    """Tasks of the hub and of lm-evaluation-harness, whose downloads are of any size."""
    limit_hub_clients()
    session = huggingface_hub.utils.get_session()
    assert {getattr(session.timeout, kind) for kind in ("connect", "read", "write", "pool")} == {
        deadline.SILENCE_SECONDS
    }


def test_a_commit_to_a_hub_that_stops_answering_ends(silent: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    repository = hub.Repository("me/model", True, huggingface_hub.HfApi(endpoint=silent))
    with pytest.raises(UserError, match="--push-to-hub me/model: the hub is not reached"):
        repository.push(tmp_path, public=False)
