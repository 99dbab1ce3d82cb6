"""Fixtures of all tests. Ranks are forked from one server with the libraries loaded: a two-rank test takes a second."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpt1_ds.launcher import launch

os.environ.setdefault("OMP_NUM_THREADS", "1")
# a speed that somebody measured on this machine (`plan --calibrate`) is no speed of models as small as these
os.environ["XDG_CACHE_HOME"] = f"{tempfile.gettempdir()}/gpt1-ds-tests-{os.getuid()}"
os.environ.pop("GPT1_DS_MACHINE", None)
os.environ["PATH"] += ":/usr/sbin:/sbin"  # where Debian has slurmctld and ip
ROOT = Path(__file__).parents[1]
# forked ranks would otherwise import pytest's own main module again
main = sys.modules["__main__"]
main.__spec__ = None
main.__dict__.pop("__file__", None)
# what each rank would import: to run a function of a test, and, for more than a second, to score a task
launch._PRELOADED += ["pytest", "scipy.stats", "sklearn.metrics"]


# what fails fastest comes first. Jobs on SLURM wait for much of their time: one file of them at a time runs beside
# tests that compute
ORDER = (
    *("tests/guards/", "tests/slurm/test_jobs", "tests/unit/", "tests/slurm/test_failures", "tests/parallel/"),
    *("tests/slurm/test_hosts", "tests/faults/", "tests/slurm/", "tests/shipped/", "tests/golden/", ""),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort *items* by their place in ORDER, keeping the order within."""
    items.sort(key=lambda item: next(place for place, start in enumerate(ORDER) if item.nodeid.startswith(start)))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small real dataset: some of Python's own documentation, 500 pieces. One for all workers, to be read only."""
    from tools.families import make_data

    return made_once(tmp_path_factory, "tiny", make_data)


@pytest.fixture(scope="session")
def sentence_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text for masked models: their symbols in ../tokenizer, and where sentences begin."""
    from tools.families import make_data

    return made_once(tmp_path_factory, "sentences", lambda folder: make_data(folder, masks=True))


@pytest.fixture(scope="session")
def span_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text for spans and prefixes: a unigram model with sentinels in ../tokenizer."""
    from tools.families import SENTINELS, make_data

    return made_once(tmp_path_factory, "spans", lambda folder: make_data(folder, sentinels=SENTINELS))


@pytest.fixture(scope="session")
def short_documents(tmp_path_factory: pytest.TempPathFactory, sentence_data: Path, span_data: Path) -> Path:
    """Documents of one to four lines of the same text, of which a row holds several: `masks` and `spans` are datasets
    with the tokenizers of the two above.
    """
    from gpt1_ds.data.build import build

    def make(folder: Path) -> Path:
        if not (folder / "spans" / "dataset.json").exists():
            files = sorted((sentence_data.parent / "text").iterdir())
            lines = [line for file in files[:12] for line in file.read_text().splitlines() if line.strip()]
            starts = [at for start in range(0, len(lines), 10) for at in (start, start + 1, start + 3, start + 6)]
            texts = ["\n".join(lines[start:stop]) for start, stop in pairwise(starts)]
            (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            for name, other in (("masks", sentence_data), ("spans", span_data)):
                sentences = name == "masks"
                build(
                    [folder / "text.jsonl"], other.parent / "tokenizer", folder / name, workers=1, validation=0.1,
                    split_sentences=sentences,
                )  # fmt: skip
        return folder

    return made_once(tmp_path_factory, "short", make)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` gives of a folder that all workers share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make(folder)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `gpt1-ds` as a person would, in an empty folder."""

    def run(
        *arguments: str, timeout: float = 120, cwd: Path = tmp_path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        command = [sys.executable, "-m", "gpt1_ds", *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of its own: `small_disk("4m")` is its folder."""
    mounted = []

    def mount(size: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            assert "CI" not in os.environ, "CI runs as root, so that this is tested there"
            pytest.skip("mounting a small file system needs root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def fine_tuned(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a fine-tuning run on a task of the shape asked for; each is trained once."""
    from tests.helpers.served import fine_tune

    runs: dict[str, Path] = {}

    def run(shape: str) -> Path:
        if shape not in runs:
            folder = tmp_path_factory.mktemp("fine-tuned") / shape
            runs[shape] = fine_tune(shape, tiny_data.parent / "tokenizer", folder)
        return runs[shape]

    return run


@pytest.fixture
def anybody() -> Iterator[Path]:
    """A folder that all may enter; the test runs as a user who may not do everything."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o777)
        me = os.geteuid()
        os.seteuid(me or 12345)
        yield Path(made)
        os.seteuid(me)
