"""A build that is killed, for real, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gpt1_ds.data.build import build
from gpt1_ds.data.verify import verify_dataset
from tests.helpers.processes import command_of
from tests.unit.data.corpora import content, sentences

ROOT = Path(__file__).parents[3]
UNIT_BYTES = 1 << 16
SCRIPT = f"""
import sys
from gpt1_ds.data.build import build
if __name__ == "__main__":
    build([sys.argv[1]], sys.argv[2], sys.argv[3], workers=int(sys.argv[4]), validation=0.1, unit_bytes={UNIT_BYTES})
"""
PROGRAM = f"""
import sys
from gpt1_ds import cli
from gpt1_ds.data.build import build
build.__kwdefaults__["unit_bytes"] = {UNIT_BYTES}
if __name__ == "__main__":
    sys.exit(cli.main())
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


def start(script: Path, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(script), *map(str, arguments)], env=environment)


@pytest.mark.parametrize(("workers", "number"), [(1, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGTERM)])
def test_a_killed_build_continues_and_gives_the_same_bytes(
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
    verify_dataset(out)


STATES: dict[str, Callable[[psutil.Process, Path], object]] = {
    "the first worker starts": lambda process, _: len(workers_of(process)) >= 1,
    "the second worker starts": lambda process, _: len(workers_of(process)) >= 2,
    "a part is finished": lambda _, out: list((out / ".parts").glob("*/[0-9]*/part.json")),
}


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if "spawn_main" in command_of(child)]


def never_sees_ctrl_c(process: psutil.Process) -> bool:
    """Whether it has the signal blocked, for as long as it lives."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    blocked = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(blocked, 16) >> (signal.SIGINT - 1) & 1)


def program(corpus: Path, tokenizer_folder: Path, folder: Path) -> subprocess.Popen[str]:
    """`gpt1-ds data build` with two workers into `folder`/out, in a process group of its own."""
    script = folder / "main.py"
    script.write_text(PROGRAM)
    words = ["data", "build", "--input", corpus, "--tokenizer", tokenizer_folder, "--out", folder / "out"]
    return subprocess.Popen(
        [sys.executable, script, *words, "--workers", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores Ctrl-C
    )


def test_a_build_that_is_asked_to_end_is_to_be_continued(corpus: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    """As the script of its job asks it."""
    process, out = program(corpus, tokenizer_folder, tmp_path), tmp_path / "out"
    workers: list[psutil.Process] = []
    while not STATES["a part is finished"](psutil.Process(process.pid), out):
        assert process.poll() is None, "the build ended before it could be interrupted"
        workers = workers_of(psutil.Process(process.pid)) or workers
    process.terminate()
    _, errors = process.communicate(timeout=240)
    asked, continued = errors.splitlines()
    assert asked == f"{out}: asked to end; finished parts are kept"
    assert continued.startswith("to continue: ")
    assert process.returncode == 75
    assert not psutil.wait_procs(workers, 10)[1], "no worker outlives it"
    assert list((out / ".parts").glob("*/[0-9]*/part.json"))


@pytest.mark.parametrize("state", STATES)
def test_ctrl_c_is_one_quiet_line_and_keeps_finished_parts(
    state: str, corpus: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    process, out = program(corpus, tokenizer_folder, tmp_path), tmp_path / "out"
    seen = psutil.Process(process.pid)
    while not STATES[state](seen, out):
        assert process.poll() is None, "the build ended before it could be interrupted"
    assert all(map(never_sees_ctrl_c, workers_of(seen)))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert errors == "gpt1-ds: interrupted: finished parts are kept; run the same command again\n"
    assert process.returncode == 130
    assert not (out / "dataset.json").exists()
    if state == "a part is finished":
        assert list((out / ".parts").glob("*/[0-9]*/part.json"))
