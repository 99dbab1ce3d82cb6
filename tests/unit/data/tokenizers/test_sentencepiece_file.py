"""What is read of a SentencePiece file is what the library says; damaged ones are refused."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import sentencepiece

from gpt1_ds.data.tokenizers import sentencepiece_model
from gpt1_ds.data.tokenizers.sentencepiece_model import check_charsmap, read
from tests.unit.data.tokenizers.t5_files import spiece_model


def test_pieces_and_scores_are_the_librarys() -> None:
    found, library = read(spiece_model()), sentencepiece.SentencePieceProcessor(model_proto=spiece_model())
    assert [piece.text for piece in found.pieces] == [library.IdToPiece(number) for number in range(120)]
    assert [piece.score for piece in found.pieces] == [library.GetScore(number) for number in range(120)]
    assert [piece.type for piece in found.pieces[:4]] == [3, 3, 2, 1]
    assert found.model_type == sentencepiece_model.UNIGRAM
    assert found.usual_spaces
    assert len(found.charsmap) > 200_000


@pytest.mark.parametrize(
    "setting",
    [{"add_dummy_prefix": False}, {"remove_extra_whitespaces": False}, {"treat_whitespace_as_suffix": True}],
    ids=str,
)
def test_other_spaces(setting: dict[str, bool]) -> None:
    assert not read(spiece_model(**setting)).usual_spaces


def test_another_kind_of_model_without_a_map() -> None:
    found = read(spiece_model(model_type="bpe", normalization_rule_name="identity"))
    assert (found.model_type, found.charsmap) == (2, b"")


def test_files_that_are_cut_off() -> None:
    whole = spiece_model()
    for size in random.Random(0).sample(range(len(whole)), 200):
        with suppress(ValueError):
            assert len(read(whole[:size]).pieces) <= 120  # cut between two fields
    for content, message in (
        (b"", "no pieces"),
        (b"\x0a", "ends within a number"),
        (b"\x0a\x05a", "ends within a field"),
        (b"\x0b", "begins no field"),
        (b"\x0a\x06\x0a\x01a\x12\x01b", "score is no number"),
        (b"\x08\x01", "a number where bytes belong"),
        (b"\x0a" + b"\xff" * 11, "begins no number"),
        (b"\x0a\x03\x0a\x01\xff", "invalid start byte"),
    ):
        with pytest.raises(ValueError, match=message):
            read(content)


def test_maps_that_would_be_read_past_their_end() -> None:
    whole = read(spiece_model()).charsmap
    check_charsmap(whole)
    size = int.from_bytes(whole[:4], "little")
    draw, outside = random.Random(0), b"\xff\xff\xff\x7f"
    for at in draw.sample(range(len(whole)), 50):
        with pytest.raises(ValueError, match="its map of characters"):
            check_charsmap(whole[:at])
    for bad, message in (
        (whole[:4] + outside + whole[8:], "outside itself"),
        (whole[:4] + b"\xff\xff\xff\xff" + whole[8:], "outside its texts"),
        (whole[: 4 + size], "outside its texts"),
        (b"", "cut off"),
    ):
        with pytest.raises(ValueError, match=message):
            check_charsmap(bad)
    with pytest.raises(UnicodeDecodeError):
        check_charsmap(whole + b"\xff")
