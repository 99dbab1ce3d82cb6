from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def change(folder: Path, **values: object) -> Path:
    path = folder / METADATA
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def test_a_folder_loads_with_its_ids(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    ids = (tokenizer.unknown_id, tokenizer.eod_id, tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id)
    assert ids == (0, 1, 2, 3, 4)
    assert tokenizer.vocab_size == 600
    assert tokenizer.kind == "sentencepiece-bpe"


def test_the_fingerprint_is_that_of_the_ids_not_of_the_place(tokenizer_folder: Path, tmp_path: Path) -> None:
    there, here = load_tokenizer(tokenizer_folder), load_tokenizer(copy(tokenizer_folder, tmp_path))
    assert there.fingerprint == here.fingerprint
    assert len(here.fingerprint) == 64


def test_the_fingerprint_of_an_old_folder_is_what_it_was() -> None:
    step = Path(__file__).parents[3] / "golden" / "format-1" / "step-00000003"
    recorded = json.loads((step / "manifest.json").read_text())["hashes"]["tokenizer"]
    tokenizer = load_tokenizer(step / "tokenizer")
    assert tokenizer.fingerprint == recorded
    assert tokenizer.special_ids.mask is None


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a tokenizer folder .* `gpt1-ds tokenizer train`"):
        load_tokenizer(tmp_path)


def test_a_changed_model_file(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = copy(tokenizer_folder, tmp_path)
    (folder / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(DataError, match=r"tokenizer.model: differs from the sha256"):
        load_tokenizer(folder)


def test_a_missing_model_file(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = copy(tokenizer_folder, tmp_path)
    (folder / "tokenizer.model").unlink()
    with pytest.raises(DataError, match=r"tokenizer.model: this file of the tokenizer is missing"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 3}, "format 3 is newer"),
        ({"kind": "unigram"}, "kind 'unigram'"),
        ({"files": {"../secret": "0"}}, "outside the folder"),
        ({"special_ids": {"eod": 1}}, "damaged"),
        ({"vocab_size": None}, "damaged"),
        ({"vocab_size": 601}, "has 600 pieces, not 601"),
    ],
)
def test_bad_metadata(tokenizer_folder: Path, tmp_path: Path, values: dict[str, object], message: str) -> None:
    folder = change(copy(tokenizer_folder, tmp_path), **values)
    with pytest.raises(DataError, match=message) as caught:
        load_tokenizer(folder)
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_metadata_that_is_no_json(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = copy(tokenizer_folder, tmp_path)
    (folder / METADATA).write_text("{")
    with pytest.raises(DataError, match="damaged"):
        load_tokenizer(folder)


def test_ids_are_checked(tokenizer: Tokenizer) -> None:
    assert tokenizer.checked([0, 599]) == [0, 599]
    for wrong in ([600], [-1]):
        with pytest.raises(ValueError, match="not in the vocabulary of 600"):
            tokenizer.decode(wrong)


def test_importing_the_face_is_cheap() -> None:
    heavy = "{'numpy', 'torch', 'sentencepiece', 'spacy', 'ftfy', 'zstandard'}"
    code = f"import sys, gpt1_ds.data.tokenizers.registry; print({heavy} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
