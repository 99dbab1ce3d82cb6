"""The page of a profile is made from profile/summary.json alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.report import profile_page
from gpt1_ds.report.page import write_report
from gpt1_ds.report.profile_page import write_profile
from gpt1_ds.tracking.phases import combine, rank_summary
from tests.unit.report.test_page import run  # noqa: F401
from tests.unit.tracking.test_phases import recording


def summary(ranks: int, device: str = "cpu") -> dict[str, object]:
    shares = [
        {"rank": rank, "stage": rank, "replica": 0, "host": "<b>node", **rank_summary(recording(("save", 1.0)))}
        for rank in range(ranks)
    ]
    whole = combine(shares, {"tensor": 1, "pipeline": ranks, "data": 1}, 3)
    return {**whole, "device": device, "threads": 1}


def write(folder: Path, value: object) -> None:
    (folder / "profile").mkdir(parents=True, exist_ok=True)
    (folder / "profile" / "summary.json").write_text(json.dumps(value))
    for rank in (0, 10, 2):
        (folder / "profile" / f"rank-{rank}.trace.json.gz").touch()


def test_a_pipeline(tmp_path: Path) -> None:
    write(tmp_path / "r", summary(2))
    page = write_profile(tmp_path / "r")
    assert page == tmp_path / "r" / "profile" / "summary.html"
    text = page.read_text()
    assert text.count("<svg") == 4, "one step, all steps, all ranks, memory"
    for words in ("7 to 8", "9000 ms, mean of steps and ranks, 9500 ms with evaluation and saves", "2 (pipeline 2)"):
        assert words in text
    assert "0.0% of the pipeline&#39;s time without work; 25.0% is the least" in text, "both ranks work at once here"
    assert "2x3  3x4" in text
    assert "<b>node" not in text
    places = [text.index(f"rank-{rank}.trace.json.gz") for rank in (0, 2, 10)]
    assert places == sorted(places)
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ), "the page needs no network"


def test_one_rank_on_a_gpu(tmp_path: Path) -> None:
    write(tmp_path, summary(1, "NVIDIA H100"))
    text = write_profile(tmp_path).read_text()
    assert text.count("<svg") == 3
    for words in ("NVIDIA H100", "on the device", "tensors on the device"):
        assert words in text
    assert "bubble" not in text


def test_of_many_ranks_some_are_drawn() -> None:
    ranks = [{"rank": number} for number in range(100)]
    drawn = [rank["rank"] for rank in profile_page.shown(ranks)]
    assert len(drawn) == profile_page.RANKS_SHOWN
    assert drawn[0] == 0
    assert drawn[-1] >= 90
    assert profile_page.shown(ranks[:3]) == ranks[:3]


def test_a_section_of_the_report(run: Path) -> None:  # noqa: F811
    write(run, summary(2))
    text = write_report([run]).read_text()
    assert text.count("<svg") == 8
    assert "<h2>Profile</h2>" in text


@pytest.mark.parametrize("value", [[], {"steps": [1]}, "text"])
def test_what_is_no_summary(value: object, tmp_path: Path) -> None:
    write(tmp_path, value)
    with pytest.raises(DataError, match=r"summary\.json: not a profile's summary"):
        write_profile(tmp_path)
    with pytest.raises(DataError, match="no profile"):
        write_profile(tmp_path / "elsewhere")
