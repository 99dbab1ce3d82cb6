"""Tensor files are safetensors that the library reads, and manifests notice any change."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.reader import StateReader
from gpt1_ds.checkpoint.shard import merged_index, write_shard, write_tensors
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.common.files import sha256_file, write_json
from gpt1_ds.engine.master_weights import Fragment
from gpt1_ds.model.names import ParameterInfo


def test_files_are_safetensors_and_hashed_as_written(tmp_path: Path) -> None:
    tensors = {"a/b": torch.randn(3, 5), "c": torch.arange(7.0), "empty": torch.zeros(0)}
    size, digest = write_tensors(tmp_path / "x.safetensors", tensors)
    read = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    assert size == (tmp_path / "x.safetensors").stat().st_size
    assert digest == sha256_file(tmp_path / "x.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state written by two tensor-parallel ranks."""
    weight, norm = torch.randn(6, 4), torch.randn(4)
    (tmp_path / "state").mkdir()
    shards = []
    for rank in range(2):
        info = ParameterInfo("w", (6, 4), 0, 3 * rank, 3 * rank + 3)
        fragments = [Fragment(info, 0, weight[3 * rank : 3 * rank + 3].flatten())]
        if rank == 0:
            fragments.append(Fragment(ParameterInfo("n", (4,)), 0, norm))
        shards.append(write_shard(tmp_path, f"state/rank-{rank}.safetensors", fragments))
    write_json(tmp_path / "state/index.json", merged_index(shards))
    safetensors.torch.save_file({"w": weight, "n": norm}, tmp_path / "wanted.safetensors")
    return tmp_path


def test_reading_back_whole_and_in_part(folder: Path) -> None:
    wanted = safetensors.torch.load_file(folder / "wanted.safetensors")
    reader = StateReader(folder)
    assert torch.equal(reader.whole("master", ParameterInfo("w", (6, 4), 0)), wanted["w"])
    assert torch.equal(reader.whole("master", ParameterInfo("n", (4,))), wanted["n"])
    part = reader.read("master", ParameterInfo("w", (6, 4), 0, 2, 5), 3, 6)
    assert torch.equal(part, wanted["w"][2:5].flatten()[3:9])
    assert not reader.has_moments


def test_a_model_of_another_shape_is_told_so(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"wants w \[6, 5\], the checkpoint has shape \[6, 4\]"):
        StateReader(folder).read("master", ParameterInfo("w", (6, 5), 0), 0, 30)
    with pytest.raises(CheckpointError, match="does not have it"):
        StateReader(folder).read("master", ParameterInfo("x", (6, 5)), 0, 30)


FACTS: dict[str, Any] = {
    **{"tokens": 0, "updates": 0, "seed": 1, "precision": "fp32", "loss_scaler": {}},
    "layout": {"tensor": 1, "pipeline": 1, "data": 1, "zero": 0, "pipelined": False},
    "hashes": {"code": "", "version": "", "data": "", "tokenizer": ""},
    "probe": {"loss": 1.0, "precision": "fp32"},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b").write_bytes(b"x" * 100)
    files = {name: manifest.file_facts(tmp_path / name) for name in ("a", "sub/b")}
    manifest.write(tmp_path, {**FACTS, "step": 3, "files": files, "parameters": {}})
    return tmp_path


def test_an_untouched_checkpoint_verifies(checkpoint: Path) -> None:
    facts = manifest.read(checkpoint)
    verify_files(checkpoint, facts)
    assert facts["step"] == 3


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty", "symlink"])
def test_damage_is_named(checkpoint: Path, damage: str) -> None:
    target = checkpoint / "sub" / "b"
    if damage == "flip":
        target.write_bytes(b"x" * 50 + b"y" + b"x" * 49)
    elif damage == "truncate":
        target.write_bytes(b"x" * 99)
    elif damage == "delete":
        target.unlink()
    elif damage == "empty":
        target.write_bytes(b"")
    else:
        target.rename(checkpoint / "elsewhere")
        target.symlink_to(checkpoint / "elsewhere")
    with pytest.raises(CheckpointError, match=r"sub/b: (damaged|missing)"):
        verify_files(checkpoint, manifest.read(checkpoint))


def test_a_changed_or_newer_manifest_is_refused(checkpoint: Path) -> None:
    path = checkpoint / manifest.NAME
    text = path.read_text()
    path.write_text(text.replace('"step": 3', '"step": 4'))
    with pytest.raises(CheckpointError, match="checksum does not match"):
        manifest.read(checkpoint)
    path.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(CheckpointError, match="newer than this program"):
        manifest.read(checkpoint)
    path.write_text(text[:-20])
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        manifest.read(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        manifest.read(checkpoint)


@pytest.mark.parametrize(
    "change",
    [
        *({"tokens": None}, {"seed": "1"}, {"step": True}, {"updates": -1}, {"tokens": 2**63}, {"layout": {}}),
        *({"layout": {**FACTS["layout"], "zero": "0"}}, {"hashes": {}}, {"probe": {"loss": 1, "precision": "fp8"}}),
        *({"loss_scaler": {"cur_scale": "x"}}, {"passed_over": ["x"]}, {"guard": [[1.0]]}, {"best": {"step": 1}}),
        *({"files": {"a": 1}}, {"files": {"./a": {"bytes": 1, "sha256": ""}}}, {"files": {"a": {"bytes": -1}}}),
    ],
    ids=str,
)
def test_a_signed_manifest_of_wrong_kinds_is_refused(change: dict[str, Any], checkpoint: Path) -> None:
    manifest.write(checkpoint, {**manifest.read(checkpoint), **change})
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged") as caught:
        manifest.read(checkpoint)
    assert "\n" not in str(caught.value)
