"""A figure of scores: every score is a dot in the panel of its task, at the height of its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpt1_ds.scaling.tables import read_table
from tools import score_dots


def test_every_score_is_a_dot_in_its_panel(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("set,row,value\na,first,0.25\na,first,0.5\na,second,\nb,second,1\n")
    figure = score_dots.draw(read_table(tmp_path / "scores.csv", ["set", "row", "value"]), "set", "row", "value")
    dots = {
        (axes.get_title(), float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() == "o"
    }
    assert dots == {("a", 25.0, 0.0), ("a", 50.0, 0.0), ("b", 100.0, 1.0)}


def test_a_column_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.csv").write_text("set,row,value\na,first,0.25\n")
    words = [str(tmp_path / "scores.csv"), *("--panel", "task", "--row", "row", "--value", "value", "--out", "x.png")]
    monkeypatch.setattr("sys.argv", ["score_dots", *words])
    with pytest.raises(SystemExit, match="2"):
        score_dots.main()
    assert "no column task among set, row, value" in capsys.readouterr().err
