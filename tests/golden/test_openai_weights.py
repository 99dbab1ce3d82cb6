"""The release of 2018: files of its shapes, order and number format, filled with random numbers."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpt1_ds.architecture.layer import NORMAL
from gpt1_ds.checkpoint import manifest
from gpt1_ds.common.errors import CheckpointError
from gpt1_ds.data.tokenizers.openai_bpe import MERGES, VOCABULARY
from gpt1_ds.interop import hf_export, openai
from tests.helpers.foreign import import_openai, master
from tests.helpers.shared_data import shared_data

NUMBERS = 116_534_784


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text files as they are; the ten pieces as `numpy.array_split` cuts a vector, with values N(0, 0.02)."""
    folder = tmp_path_factory.mktemp("release")
    for name in (VOCABULARY, MERGES, openai.SHAPES):
        shutil.copy(shared_data("gpt1_bpe") / name, folder / name)
    vector = np.random.default_rng(0).standard_normal(NUMBERS, dtype=np.float32) * np.float32(NORMAL.value)
    for name, piece in zip(openai.PIECES, np.array_split(vector, 10), strict=True):
        np.save(folder / name, piece)
    return folder


@pytest.fixture
def files(release: Path, tmp_path: Path) -> Path:
    """Hard links to the files of the release, which a test may replace."""
    (tmp_path / "source").mkdir()
    for path in release.iterdir():
        os.link(path, tmp_path / "source" / path.name)
    return tmp_path / "source"


@pytest.fixture(scope="module")
def imported(release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("imported")
    return folder / "checkpoint", import_openai(release, folder / "checkpoint", folder)


def test_the_published_shapes_are_the_ones_we_know() -> None:
    listed = json.loads((shared_data("gpt1_bpe") / openai.SHAPES).read_text())
    assert listed == [list(shape) for _, shape in openai.layout()]
    assert len(listed) == 146
    assert sum(math.prod(shape) for shape in listed) == NUMBERS


def test_arrays_land_where_they_belong(release: Path, imported: tuple[Path, list[str]]) -> None:
    """Against a literal reading: join, split by the published shapes, take them one by one."""
    shapes = json.loads((release / openai.SHAPES).read_text())
    vector = np.concatenate([np.load(release / name, allow_pickle=False) for name in openai.PIECES])
    arrays = iter(np.split(vector, np.cumsum([math.prod(shape) for shape in shapes])[:-1]))
    arrays = iter([array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)])

    def ours(name: str) -> np.ndarray:
        return master(imported[0], name).numpy()

    assert np.array_equal(ours("positions.weight"), next(arrays))
    assert np.array_equal(ours("tokens.weight")[:40478], next(arrays))
    for layer in range(12):
        qkv, bias = next(arrays)[0], next(arrays)
        for part in range(3):
            rows = ours(f"blocks.{layer}.attention.qkv.weight").reshape(12, 3, 64, 768)[:, part].reshape(768, 768)
            assert np.array_equal(rows, qkv[:, 768 * part : 768 * part + 768].T)
            rows = ours(f"blocks.{layer}.attention.qkv.bias").reshape(12, 3, 64)[:, part].reshape(768)
            assert np.array_equal(rows, bias[768 * part : 768 * part + 768])
        for name in ("attention.out", "attention_norm", "mlp.up", "mlp.down", "mlp_norm"):
            weight, bias = next(arrays), next(arrays)
            assert np.array_equal(ours(f"blocks.{layer}.{name}.weight"), weight[0].T if weight.ndim == 3 else weight)
            assert np.array_equal(ours(f"blocks.{layer}.{name}.bias"), bias)
    assert next(arrays, None) is None


def test_added_rows_are_those_of_a_new_model_and_this_is_said(imported: tuple[Path, list[str]]) -> None:
    checkpoint, remarks = imported
    added = master(checkpoint, "tokens.weight")[40478:]
    assert added.shape == (4, 768)
    assert added.std() == pytest.approx(NORMAL.value, rel=0.1)
    added = "40478 (start), 40479 (delimiter), 40480 (extract), 40481 (end of document)"
    assert f"token ids {added} had no rows; theirs begin untrained, as in a new model" in remarks


def test_what_was_verified_is_said(imported: tuple[Path, list[str]]) -> None:
    text = "\n".join(imported[1])
    assert f"known by git blob id: {VOCABULARY}, {MERGES}, {openai.SHAPES}" in text
    assert f"NOT the released files, taken as they are (--unverified): {', '.join(openai.PIECES)}" in text


def test_the_logits_are_transformers(imported: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Through the export: our import, our logits, their logits. The loss is also the probe of the manifest."""
    import transformers

    from gpt1_ds.checkpoint.probe import probe_batch
    from gpt1_ds.evaluation.load import load_checkpoint
    from gpt1_ds.objectives.causal import Causal

    hf_export.export(imported[0], tmp_path / "hf")
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "hf").eval()
    loaded = load_checkpoint(imported[0])
    batch = probe_batch(Causal(), loaded.config.model)
    with torch.no_grad():
        wanted = theirs(batch.inputs[0].T).logits[0]
        found = loaded.model.logits(*batch.inputs)[:, 0, :40482]
    assert (found - wanted).abs().max() <= 1e-5
    loss = torch.nn.functional.cross_entropy(wanted, batch.labels[0][:, 0])
    assert manifest.read(imported[0])["probe"]["loss"] == pytest.approx(float(loss), abs=1e-5)


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()  # the other end of a hard link keeps its bytes
    path.write_bytes(content)


def saved(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def floats(kind: str, count: int = 11653479) -> bytes:
    return saved(np.zeros(count, dtype=kind))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("params_3.npy", lambda: floats("<f4")[:-4], "params_3.npy: .* do not hold the shape"),
        ("params_3.npy", lambda: floats("<f4", 11653478), "116,534,783 numbers, the release has 116,534,784"),
        ("params_4.npy", lambda: floats("<f8", 10), "params_4.npy: numbers of type <f8"),
        ("params_5.npy", lambda: floats(">f4", 10), "params_5.npy: numbers of type >f4"),
        ("params_6.npy", lambda: saved(np.array([print], dtype=object)), "params_6.npy: holds pickled objects"),
        ("params_7.npy", lambda: b"\x80\x04.", "params_7.npy: not a .npy file"),
        (openai.SHAPES, lambda: b"[[512, 768]]", "does not list the release's 146 shapes"),
        (openai.SHAPES, lambda: b"[" * 70_000, "too large"),
        (VOCABULARY, lambda: b"{}", "not the released vocabulary"),
    ],
)
def test_pieces_that_are_not_the_releases(
    name: str, content: Callable[[], bytes], message: str, files: Path, tmp_path: Path
) -> None:
    rewrite(files / name, content())
    with pytest.raises(Exception, match=message) as caught:
        import_openai(files, tmp_path / "out", tmp_path)
    assert len(caught.value.problems) == 1  # type: ignore[attr-defined]
    assert not (tmp_path / "out").exists()


def test_a_missing_piece_and_a_link_outside(files: Path, tmp_path: Path) -> None:
    (files / "params_8.npy").rename(tmp_path / "elsewhere.npy")
    with pytest.raises(CheckpointError, match=r"params_8.npy: no such file"):
        import_openai(files, tmp_path / "out", tmp_path)
    (files / "params_8.npy").symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(CheckpointError, match=r"params_8.npy: a link to"):
        import_openai(files, tmp_path / "out", tmp_path)


def test_another_blob_id_is_refused_unless_told_otherwise(release: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"params_0.npy: not the released file: .* 84d83ac1f1cc.* --unverified"):
        openai.read(release, None, tmp_path)


def test_a_tokenizer_of_another_kind_is_refused(release: Path, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not the tokenizer of 2018"):
        openai.read(release, tiny_data.parent / "tokenizer", tmp_path, unverified=True)
