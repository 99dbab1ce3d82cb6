"""The byte-level BPE on a small vocabulary learned here; tests/golden compares it with transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpt1_ds.common.errors import ConfigError, DataError
from gpt1_ds.data import reading
from gpt1_ds.data.inputs import find_inputs
from gpt1_ds.data.reading import read_unit
from gpt1_ds.data.tokenizers.base import METADATA, Tokenizer
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.train import train_tokenizer
from gpt1_ds.data.units import plan_units
from tests.helpers.hard_texts import CUTS, TEXTS, encode_in_parts
from tests.unit.data.corpora import sentences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gpt2")
    (place / "text.txt").write_text("\n".join(sentences(2000, seed=7)))
    train_tokenizer([place / "text.txt"], place / "out", 600, model="gpt2-bpe")
    return place / "out"


@pytest.fixture(scope="module")
def gpt2(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def test_the_symbols_follow_the_pieces(gpt2: Tokenizer) -> None:
    assert gpt2.vocab_size == 600
    assert gpt2.special_ids.present() == {"eod": 596, "start": 597, "delimiter": 598, "extract": 599}
    assert gpt2.decode(range(596, 600)) == ""
    sizes = gpt2.token_bytes()
    assert sizes.shape == (600,)
    assert (sizes[:256] == 1).all()
    assert (sizes[256:596] > 1).all()
    assert (sizes[596:] == 0).all()


def test_a_role_that_is_missing_is_named(gpt2: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"^objective.kind=masked needs a token <mask>: .* train one with --masks"):
        gpt2.special_ids.require("mask", "objective.kind=masked")
    with pytest.raises(ConfigError, match=r"needs a token <unknown>"):
        _ = gpt2.unknown_id


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
@example(text="a\n\nb\n \nc")
def test_every_text_comes_back(gpt2: Tokenizer, text: str) -> None:
    ids = gpt2.encode(text)
    assert gpt2.decode(ids) == text
    assert gpt2.token_bytes()[ids].sum() == len(text.encode())
    assert not (ids >= 596).any()  # text never makes a control symbol


@settings(max_examples=300, deadline=None)
@given(text=TEXTS | st.text("a1. \n\t\u3000", max_size=30), places=CUTS)
@example(text="a\n\nb \n \nc   d", places=[0, 1, 2])
def test_ids_do_not_depend_on_cuts(gpt2: Tokenizer, text: str, places: list[int]) -> None:
    assert encode_in_parts(gpt2, text, places) == gpt2.encode(text).tolist()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("abc.  \n\n\t\r\u3000", min_size=1, max_size=200), unit=st.integers(1, 60), unwrap=st.booleans())
def test_ids_do_not_depend_on_units(gpt2: Tokenizer, tmp_path: Path, text: str, unit: int, unwrap: bool) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(f"a b\n{text} c".encode())  # whatever the unit, there is a place to cut
    whole, parts = (
        [
            gpt2.encode_part(piece.text, piece.previous, not piece.ends_document)
            for one in plan_units(find_inputs([path]), size, unwrap)
            for piece in read_unit(one, unwrap)
        ]
        for size in (1 << 24, unit)
    )
    assert len(whole) == 1
    assert np.concatenate(parts).tolist() == whole[0].tolist()


def test_ids_do_not_depend_on_pieces(gpt2: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n\n".join(["  ".join(sentences(5, seed=seed)) + "\n\t" for seed in range(50)])
    monkeypatch.setattr(reading, "PIECE_LETTERS", 64)
    (tmp_path / "a.txt").write_text(text)
    (unit,) = plan_units(find_inputs([tmp_path]))
    pieces = list(read_unit(unit))
    assert len(pieces) > 50
    ids = [gpt2.encode_part(piece.text, piece.previous, not piece.ends_document) for piece in pieces]
    assert np.concatenate(ids).tolist() == gpt2.encode(text).tolist()


def test_encode_gives_writable_int32(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("kalo miren")
    ids[0] = 7
    assert ids.dtype == np.int32
    assert gpt2.encode("").shape == (0,)


def test_a_folder_that_does_not_fit_its_metadata(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    values = json.loads((copy / METADATA).read_text())
    for size in (599, 602, 2**31 - 1):  # nothing of that size is made
        roles = {"eod": 596, "mask": size - 1}
        (copy / METADATA).write_text(json.dumps({**values, "vocab_size": size, "special_ids": roles}))
        with pytest.raises(DataError, match=rf"has 600 ids, not {size}"):
            load_tokenizer(copy)
