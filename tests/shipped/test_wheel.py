"""A built wheel carries everything: presets, scripts, guides, the report's page; it works from an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import gpt1_ds
from gpt1_ds.commands import doctor

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source archive, and checked as a registry does."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, str(ROOT / "tools" / "package.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_every_file_is_in_it(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "gpt1_ds").rglob("*.py")}
    wanted |= {f"gpt1_ds/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    wanted |= {f"gpt1_ds/{path.relative_to(ROOT)}" for path in (ROOT / "configs").glob("*.md")}
    wanted |= {
        f"gpt1_ds/{path.relative_to(ROOT)}"
        for path in (ROOT / "launch").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "gpt1_ds" / "guides").iterdir()}
    pages = (path for path in (ROOT / "gpt1_ds" / "report").iterdir() if path.suffix in (".html", ".css", ".js"))
    wanted |= {f"gpt1_ds/report/{path.name}" for path in pages}
    wanted |= {"gpt1_ds/py.typed", "gpt1_ds/report/page.html"}
    assert wanted <= held, wanted - held


def test_a_registry_can_show_it(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel)
    metadata = message_from_bytes(held.read(next(name for name in held.namelist() if name.endswith("/METADATA"))))
    assert metadata["Version"] == gpt1_ds.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert metadata["Keywords"]
    assert len(metadata.get_all("Classifier")) > 5
    source = dict(url.split(", ") for url in metadata.get_all("Project-URL"))["Source"]
    for image, link in re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", metadata.get_payload()):
        kind, _, path = link.removeprefix(f"{source}/").partition("/main/")
        path = path.partition("#")[0]
        assert link.startswith("https://")
        assert not link.startswith(source) or (kind == ("raw" if image else "blob") and (ROOT / path).exists()), link


def test_extras_are_named_as_they_are() -> None:
    """What a message tells people to install is there; what developers need does not come with `all`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [*(ROOT / "gpt1_ds").rglob("*.py"), *(ROOT / "gpt1_ds").rglob("*.md"), ROOT / "README.md"]
    named = {name for path in files for name in re.findall(r"gpt1-ds\[(\w+)\]", path.read_text())}
    assert named
    assert named | {extra for _, extra in doctor.OPTIONAL.values()} <= extras.keys()
    of_users = re.fullmatch(r"gpt1-ds\[(.*)\]", *extras["all"])
    assert of_users is not None
    assert extras.keys() - set(of_users[1].split(",")) == {"all", "site", "package", "dev"}


def test_every_package_is_named() -> None:
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in (ROOT / "gpt1_ds").rglob("__init__.py")}
    assert named == found | {"gpt1_ds.configs", "gpt1_ds.launch"}


@pytest.mark.slow
def test_it_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own; the libraries it needs are borrowed from this one."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    site = next((tmp_path / "env").glob("lib/python*/site-packages"))
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    zipfile.ZipFile(wheel).extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    python = tmp_path / "env" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*arguments: str) -> str:
        command = [str(python), "-P", "-m", "gpt1_ds", *arguments]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    command = [str(python), "-P", "-c", "import gpt1_ds; print(gpt1_ds.__file__)"]
    where = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert str(site) in where.stdout, "the wheel's own code runs"
    found = run("doctor")
    assert "training works here" in found
    reference = found.partition("every configuration key and preset: ")[2].splitlines()[0]
    assert Path(reference).is_relative_to(site)
    assert "`optimizer.lr`" in Path(reference).read_text()
    assert run("guide", "concepts").startswith("# Concepts")
    assert "116,537,856 parameters" in run("plan", "-c", "pretrain/gpt1_117m")
    found = run("pretrain", "train.steps=2", "model.layers=1", "train.eval_batches=1")
    assert "building the embedded corpus" in found
    assert (empty / "runs" / "run" / "DONE").exists()
