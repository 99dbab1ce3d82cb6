"""A build that is killed, for real, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpt1_ds.data.build import build
from gpt1_ds.data.verify import verify
from tests.unit.data.corpora import sentences

UNIT_BYTES = 1 << 16
SCRIPT = f"""
import sys
from gpt1_ds.data.build import build
if __name__ == "__main__":
    build([sys.argv[1]], sys.argv[2], sys.argv[3], workers=int(sys.argv[4]), validation=0.1, unit_bytes={UNIT_BYTES})
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty units of text: a few seconds of work."""
    folder = tmp_path_factory.mktemp("corpus")
    text = "\n".join(sentences(2000)) + "\n"
    for number in range(20):
        (folder / f"{number:02d}.txt").write_text(text * 4 if number % 2 else text)
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "out"
    build([corpus], tokenizer_folder, out, workers=1, validation=0.1, unit_bytes=UNIT_BYTES)
    return content(out)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(script: Path, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen([sys.executable, str(script), *map(str, arguments)], env=environment)


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGTERM)])
def test_a_killed_build_goes_on_and_gives_the_same_bytes(
    corpus: Path, expected: dict[str, bytes], tokenizer_folder: Path, tmp_path: Path, workers: int, number: int
) -> None:
    script, out = tmp_path / "main.py", tmp_path / "out"
    script.write_text(SCRIPT)
    for parts in (2, 9):  # killed twice
        process = start(script, corpus, tokenizer_folder, out, workers)
        while len(list((out / ".parts").glob("*/[0-9]*/part.json"))) < parts:
            assert process.poll() is None, "the build ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(number)
        assert process.wait() == -number
        assert not (out / "dataset.json").exists()
    assert start(script, corpus, tokenizer_folder, out, 2).wait() == 0
    assert content(out) == expected
    verify(out)


def test_ctrl_c_ends_everything_quietly_and_keeps_finished_parts(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    script, out = tmp_path / "main.py", tmp_path / "out"
    script.write_text(SCRIPT)
    arguments = [sys.executable, script, corpus, tokenizer_folder, out, "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen(
        arguments,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores Ctrl-C
    )
    while not list((out / ".parts").glob("*/[0-9]*/part.json")):
        assert process.poll() is None, "the build ended before it could be interrupted"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors  # Python's own for the script; the workers say nothing
    assert list((out / ".parts").glob("*/[0-9]*/part.json"))
