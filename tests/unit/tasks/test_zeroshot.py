"""Reading the files of probes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.config import ProbeConfig
from gpt1_ds.tasks.probe_scores import score_probe
from gpt1_ds.tasks.questions import causal_frame, questions
from gpt1_ds.tasks.zeroshot import read_probe
from tests.helpers.shared_data import shared_data
from tests.helpers.words import WordTokenizer


def config(name: str, path: Path | str, **limits: int) -> ProbeConfig:
    return ProbeConfig(name=name, path=str(path), **limits)


def test_reading_dev_and_what_is_fitted(tmp_path: Path) -> None:
    rows = "".join(f"x\t{n % 2}\t\tsentence {n}\n" for n in range(20))
    (tmp_path / "train.tsv").write_text(rows)
    (tmp_path / "dev.tsv").write_text(rows)
    found = read_probe(config("cola", tmp_path, limit=5, train_limit=7))
    assert (found.split, len(found.examples), len(found.train)) == ("dev", 5, 7)
    assert found == read_probe(config("cola", tmp_path, limit=5, train_limit=7)), "the same ones each time"
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(DataError, match=r"holds none of train.tsv; or raw/in_domain_train.tsv"):
        read_probe(config("cola", tmp_path))


def test_a_damaged_row_and_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine\t1\nodd\n")
    with pytest.raises(DataError, match=r"dev.tsv line 3: 1 columns where 2 are expected; fix this row"):
        read_probe(config("sst2", tmp_path))
    with pytest.raises(DataError, match=r"nowhere: no such folder; give the one that holds the files of sst2"):
        read_probe(config("sst2", "nowhere"))
    with pytest.raises(DataError, match=r"no such folder; .* in probes; gpt1-ds data fetch winograd --out .* makes it"):
        read_probe(config("wsc273", tmp_path / "winograd"))


@pytest.mark.parametrize(
    ("name", "folder", "split", "count", "chance"),
    [
        ("cola", "cola", "dev", 1043, 0),
        ("sst2", "sst2/glue", "dev", 872, 1 / 2),
        ("cosmosqa", "cosmosqa", "dev", 2985, 1 / 4),
        ("copa", "copa", "train", 1000, 1 / 2),
        ("wsc273", "winograd", "test", 273, 1 / 2),
        ("pdp", "winograd", "test", 60, (45 / 2 + 12 / 3 + 1 / 4 + 2 / 5) / 60),
        ("blimp", "blimp", "test", 67_000, 1 / 2),
    ],
)
def test_official_files(name: str, folder: str, split: str, count: int, chance: float) -> None:
    found = read_probe(config(name, shared_data(folder)))
    assert (found.split, len(found.examples)) == (split, count)
    if name != "cola":
        tokenizer = WordTokenizer()
        some = found.examples if name == "pdp" else found.examples[:600]
        all_asked = questions(name, some, tokenizer, causal_frame(tokenizer, 512))
        sums = np.concatenate([question.scored for question in all_asked]) * -1.0
        scores = score_probe(found, all_asked, sums)
        assert scores["chance"] == pytest.approx(chance)
        if name not in ("sst2", "blimp"):
            assert scores["accuracy"] == pytest.approx(chance), "a model that knows nothing is at chance"
