"""What other programs read: containers, a manifest, workflows, the citation."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import gpt1_ds
from gpt1_ds.config import load
from tests.helpers import pytorchjob

ROOT = Path(__file__).parents[2]
CONTAINERS = sorted((ROOT / "launch" / "containers").iterdir())
DOCKERFILES = [path for path in CONTAINERS if path.name.startswith("Dockerfile")]
MANIFEST = ROOT / "launch" / "pytorchjob.yaml"


def schema_errors(name: str, *files: Path) -> str:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_is_content(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_a_container_installs_as_setup_does_what_is_there(path: Path) -> None:
    text = path.read_text()
    copied = re.findall(r"^COPY (.*) \S+$", text, flags=re.MULTILINE)
    copied += re.findall(r"^    (\S+) /src/", text, flags=re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"tools/constraints.txt", "pyproject.toml", "README.md", "gpt1_ds", "configs", "launch"} <= names
    assert [name for name in names if not (ROOT / name).exists()] == []
    setup = (ROOT / "tools" / "setup.sh").read_text()
    assert "'^torch==' tools/constraints.txt" in setup
    assert "$(grep '^torch==' constraints.txt)" in text
    for arguments in ('"setuptools>=77" wheel', "--no-build-isolation --constraint"):
        assert arguments in setup
        assert arguments in text


@pytest.mark.parametrize("preset", ["pyxis", "apptainer"])
def test_a_preset_names_an_image_that_a_container_file_makes(preset: str) -> None:
    image = load([f"cluster/{preset}"], []).slurm.container
    assert image
    assert "launch/containers/" in (ROOT / "configs" / "cluster" / f"{preset}.yaml").read_text()
    assert any(f" {Path(image).name} " in path.read_text() for path in CONTAINERS)


def test_the_manifest_is_a_pytorch_job_that_trains() -> None:
    manifest = yaml.safe_load(MANIFEST.read_text())
    pytorchjob.check(manifest)
    pods = manifest["spec"]["pytorchReplicaSpecs"].values()
    for pod in pods:
        (container,) = pod["template"]["spec"]["containers"]
        name, _, preset, *overrides = container["args"]
        assert name == "pretrain"
        load([preset], overrides)
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == manifest["spec"]["nprocPerNode"]


def _number_of_ranks(manifest: dict[str, Any]) -> None:
    manifest["spec"]["nprocPerNode"] = 8


def _two_masters(manifest: dict[str, Any]) -> None:
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2


def _name_of_container(manifest: dict[str, Any]) -> None:
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "trainer"


def _key_of_pod(manifest: dict[str, Any]) -> None:
    manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["container"] = []


@pytest.mark.parametrize("spoil", [_number_of_ranks, _two_masters, _name_of_container, _key_of_pod])
def test_a_wrong_manifest_is_found(spoil: Callable[[dict[str, Any]], None]) -> None:
    manifest = yaml.safe_load(MANIFEST.read_text().replace("&pod", "").replace("*pod", "{}"))
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"]["template"] = yaml.safe_load(yaml.safe_dump(replicas["Master"]["template"]))
    pytorchjob.check(manifest)
    spoil(manifest)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError, AssertionError), match=r"."):
        pytorchjob.check(manifest)


def test_workflows_are_github_workflows_and_run_the_two_commands(tmp_path: Path) -> None:
    files = sorted((ROOT / ".github" / "workflows").iterdir())
    assert schema_errors("github-workflows", *files) == ""
    (spoiled := tmp_path / "ci.yml").write_text(files[0].read_text().replace("runs-on", "run-on"))
    assert "run-on" in schema_errors("github-workflows", spoiled)
    jobs = [job for file in files for job in yaml.safe_load(file.read_text())["jobs"].values()]
    said = [step.get("run", "") for job in jobs for step in job["steps"]]
    for command in ("bash tools/quickstart.sh", "bash tools/test.sh", "bash tools/try_install.sh"):
        assert any(command in line for line in said)


def test_the_citation_is_one_of_this_version() -> None:
    path = ROOT / "CITATION.cff"
    assert schema_errors("citation-file-format", path) == ""
    assert yaml.safe_load(path.read_text())["version"] == gpt1_ds.__version__


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert next(name for name in sections if name != "Unreleased") == gpt1_ds.__version__
