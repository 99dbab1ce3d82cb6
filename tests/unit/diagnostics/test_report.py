"""The file of a self-proof: what it says, what it never holds, and what is read of a stranger's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.diagnostics.report import Ledger, Record, Report, conclude, lines, read_report, write

GOOD = Record("masks, different bits", True, 0, 0)
SEEN = Record("all-reduce of 4 MiB, GB/s", True, 12.5, None, "link unknown")
BAD = Record("block, fp32: relative error", False, 2e-3, 1e-5, "of output; is TF32 on?")


def report(*records: Record) -> Report:
    return Report("node 1/x", "2026-11-22", 8, {"node 1/x": 8}, {"torch": "2.13.0", "triton": None}, list(records))


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = report(GOOD, SEEN, BAD)
    write(found, tmp_path / found.file_name)
    assert read_report(tmp_path / "gpu-check-node_1_x-2026-11-22.json") == found
    assert json.loads((tmp_path / found.file_name).read_text())["format"] == 1
    assert found.value("all-reduce of") == 12.5
    assert found.value("nothing") is None


def test_the_terminal_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert conclude(report(GOOD, SEEN), None) == 0
    assert capsys.readouterr().out.splitlines() == [
        "torch 2.13.0",
        "ok      masks, different bits: 0 (limit 0)",
        "note    all-reduce of 4 MiB, GB/s: 12.5; link unknown",
        "all 2 checks hold (8 ranks on node 1/x)",
        "gpu-check-node_1_x-2026-11-22.json",
    ]
    assert conclude(report(GOOD, BAD), Path("mine.json")) == 2
    out = capsys.readouterr().out
    assert "problem block, fp32: relative error: 0.002 (limit 1e-05); of output; is TF32 on?" in out
    assert "1 of 2 fail" in out
    assert read_report(Path("mine.json")).failing == [BAD]


def test_a_ledger_has_each_record_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu-check.json"
    ledger = Ledger(path, later=["a step twice, deterministic"])
    ledger.write(report(), ["masks", "loss"])
    assert capsys.readouterr().out.splitlines() == ["torch 2.13.0"]
    assert read_report(path) == replace(report(), not_reached=["masks", "loss", "a step twice, deterministic"])
    ledger.write(report(GOOD), ["loss"])
    assert capsys.readouterr().out.splitlines() == ["ok      masks, different bits: 0 (limit 0)"]
    assert read_report(path) == replace(report(GOOD), not_reached=["loss", "a step twice, deterministic"])
    assert not read_report(path).holds
    Ledger(path, shown=None).write(report(GOOD, SEEN))
    assert capsys.readouterr().out == ""
    assert read_report(path).holds


def test_what_was_not_reached_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(replace(report(GOOD), not_reached=["loss"]), tmp_path / "gpu-check.json") == 2
    assert capsys.readouterr().out.splitlines()[-3:-1] == [
        "missing loss: not reached",
        "all 1 checks hold, 1 more were not reached (8 ranks on node 1/x)",
    ]


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpu-check.json"
    write(report(GOOD), path)
    raw = json.loads(path.read_text())
    assert raw.pop("not_reached") == []
    path.write_text(json.dumps(raw))
    assert read_report(path) == report(GOOD)


def test_what_a_terminal_would_obey_is_written_out() -> None:
    shown = list(lines(report(Record("a\x1b[2J", True, note="\x1b]0;"))))
    assert not any("\x1b" in line for line in shown)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"records": {}},
        {"records": [{"name": "a", "ok": "yes"}]},
        {"records": [{"name": "a", "ok": True, "value": "1"}]},
        {"records": [{"name": "a", "ok": True, "more": 1}]},
        {"devices": 8},
        {"world": None},
        {"not_reached": "loss"},
        {"not_reached": [1]},
    ],
    ids=str,
)
def test_a_file_that_is_no_report(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "gpu-check.json"
    write(report(GOOD), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match="not a self-proof"):
        read_report(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 5000, " " * (1 << 20) + "{}"], ids=lambda text: text[:3])
def test_a_file_of_something_else(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpu-check.json").write_text(text)
    with pytest.raises(DataError, match="not a self-proof"):
        read_report(tmp_path / "gpu-check.json")
