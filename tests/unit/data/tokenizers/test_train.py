from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sentencepiece

from gpt1_ds.common.errors import DataError
from gpt1_ds.data.tokenizers import wordpiece
from gpt1_ds.data.tokenizers.base import METADATA
from gpt1_ds.data.tokenizers.registry import load_tokenizer
from gpt1_ds.data.tokenizers.sentencepiece_bpe import learn_sentencepiece
from gpt1_ds.data.tokenizers.train import Model, _cut_lines, reservoir, train_tokenizer
from tests.unit.data.corpora import sentences


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences(500)))
    return path


def test_compression_makes_no_difference(text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    assert (
        train_tokenizer([text], tmp_path / "a", 400).fingerprint
        == train_tokenizer([packed], tmp_path / "b", 400).fingerprint
    )


def test_a_size_below_1_is_named_itself(text: Path, tmp_path: Path) -> None:
    """Not the number of sentinels, which nobody gave."""
    with pytest.raises(DataError, match=r"^--vocab-size=-5 must be at least 1"):
        train_tokenizer([text], tmp_path / "out", -5)


def test_no_text(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="no text to learn"):
        train_tokenizer([tmp_path / "empty.txt"], tmp_path / "out", 400)


def test_rows_without_text_are_counted(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"text": text.read_text()}), '{"text": null}', '{"other": 1}', '{"text": NaN}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    train_tokenizer([tmp_path / "rows.jsonl"], tmp_path / "out", 400)
    assert "--input: leaves out 3 rows without text (no `text`, null, NaN or empty)" in capsys.readouterr().err
    train_tokenizer([text], tmp_path / "whole", 400)
    assert "leaves out" not in capsys.readouterr().err


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_text_without_a_blank(model: Model, tmp_path: Path) -> None:
    (tmp_path / "genomes.txt").write_text("\n".join("ACGT"[n % 4] * (n % 7 + 1) + "GATTACA" for n in range(500)))
    train_tokenizer([tmp_path / "genomes.txt"], tmp_path / "out", 268, model=model)
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("GATTACA and a  blank")) == "GATTACA and a  blank"


def test_other_text_is_learned_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model holds the options it was learned with, also empty ones: its bytes, and a run's draws, depend on them."""
    options: list[dict[str, object]] = []
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "Train", lambda **given: options.append(given))
    for text in ("a b", "ab"):
        learn_sentencepiece([text], 300)
    assert ["required_chars" in given for given in options] == [False, True]


def test_an_existing_folder_is_not_overwritten(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    train_tokenizer([text], out, 400)
    before = load_tokenizer(out).fingerprint
    with pytest.raises(DataError, match="is there already"):
        train_tokenizer([text], out, 500)
    assert load_tokenizer(out).fingerprint == before
    with pytest.raises(DataError, match="is there already"):
        train_tokenizer([tmp_path / "gone.txt"], out, 500)  # said before anything is read


def test_corpora_that_spell_control_symbols() -> None:
    lines = [f"{line} <eod><start> <0x0A> <unk> \u2581 \u2047" for line in sentences(300)]
    assert learn_sentencepiece(lines, 400)


def test_the_terminal_stays_quiet(text: Path, tmp_path: Path) -> None:
    code = (
        "from gpt1_ds.data.tokenizers.train import train_tokenizer; from gpt1_ds.common.errors import DataError\n"
        f"t = train_tokenizer([{str(text)!r}], {str(tmp_path / 'out')!r}, 400); t.encode('x')\n"
        f"try: train_tokenizer([{str(text)!r}], {str(tmp_path / 'no')!r}, 10**6)\n"
        "except DataError: pass\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("", "")


def test_long_lines_are_cut_not_dropped() -> None:
    line = " ".join(sentences(50)) + " " + "x" * 1000
    pieces = list(_cut_lines(["short\n", f"{line}\n\n"]))
    assert "".join(pieces) == "short" + line
    assert max(map(len, pieces)) <= 256


def test_the_time_to_cut_a_line_grows_with_its_length() -> None:
    """With its square these would take more than ten seconds."""
    begin = time.perf_counter()
    assert sum(map(len, _cut_lines(["kalo " * 1_600_000]))) == 8_000_000
    assert time.perf_counter() - begin < 3


def test_a_reservoir_is_a_fair_sample() -> None:
    assert reservoir("abc", 5) == ["a", "b", "c"]
    chosen = [int(item) for item in reservoir(map(str, range(10_000)), 1000)]
    assert len(set(chosen)) == 1000
    assert 4500 < sum(chosen) / 1000 < 5500


@pytest.mark.parametrize("model", ["bpe", "gpt2-bpe", "wordpiece"])
def test_the_same_text_gives_the_same_bytes_in_another_process(text: Path, tmp_path: Path, model: Model) -> None:
    here = train_tokenizer([text], tmp_path / "here", 360, model=model, sample=400)
    code = (
        "from gpt1_ds.data.tokenizers.train import train_tokenizer\n"
        f"train_tokenizer([{str(text)!r}], 'there', 360, model={model!r}, sample=400)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert load_tokenizer(tmp_path / "there").fingerprint == here.fingerprint


@pytest.mark.parametrize("model", ["bpe", "gpt2-bpe", "wordpiece"])
@pytest.mark.parametrize(("size", "which"), [(100_000, "at most"), (20, "at least")])
def test_a_size_the_text_cannot_support_names_one_that_works(
    text: Path, tmp_path: Path, model: Model, size: int, which: str
) -> None:
    with pytest.raises(DataError, match=rf"--vocab-size={size} .*{which} \d+") as caught:
        train_tokenizer([text], tmp_path / "out", size, model=model)
    named = int(re.findall(r"at \w+ (\d+)", str(caught.value))[0])
    assert train_tokenizer([text], tmp_path / "out", named, model=model).vocab_size == named


def test_symbols_of_masked_models(text: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer([text], tmp_path / "out", 400, masks=True)
    expected = {"unknown": 0, "eod": 1, "start": 2, "delimiter": 3, "extract": 4}
    expected |= {"cls": 5, "separator": 6, "pad": 7, "mask": 8}
    assert tokenizer.special_ids.present() == expected
    spelled = "<mask> <cls>\n<sep><pad>\u2581"
    ids = tokenizer.encode(spelled)
    assert not (ids < 9).any()
    assert tokenizer.decode(ids) == spelled
    assert tokenizer.token_bytes()[ids].sum() == len(spelled.encode())
    assert json.loads((tmp_path / "out" / METADATA).read_text())["format"] == 2


def test_without_them_the_folder_is_of_the_first_format(text: Path, tmp_path: Path) -> None:
    train_tokenizer([text], tmp_path / "out", 400)
    values = json.loads((tmp_path / "out" / METADATA).read_text())
    assert values["format"] == 1
    assert values["special_ids"] == {"unknown": 0, "eod": 1, "start": 2, "delimiter": 3, "extract": 4}


def test_wordpiece_lower_cases_unless_cased(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Éa éa EA\n" * 50)
    for cased, expected in ((False, ["##a", "##e", "a", "e"]), (True, ["##A", "##E", "##a", "##É"])):
        folder = tmp_path / str(cased)
        train_tokenizer([tmp_path / "text.txt"], folder, 15 if cased else 9, model="wordpiece", cased=cased)
        assert set(expected) <= set((folder / "vocab.txt").read_text().split("\n"))


def test_cased_is_of_wordpiece(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--cased is for --model wordpiece"):
        train_tokenizer([text], tmp_path / "out", 400, model="gpt2-bpe", cased=True)


def test_rare_characters_at_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "MOST_LETTERS", 3)
    assert wordpiece.alphabet(["aaa bb", "cdx aÁ"], cased=False) == ["a", "b"]
