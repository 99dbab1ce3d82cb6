"""A full disk stops no run and damages nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpt1_ds.checkpoint import manifest
from gpt1_ds.checkpoint.folders import steps_in
from gpt1_ds.checkpoint.verify import verify_files
from gpt1_ds.common.errors import CheckpointError, UserError
from gpt1_ds.common.files import append, explain, write_json
from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import read_jsonl
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.monitoring.heartbeat import HeartbeatFile
from gpt1_ds.report.figures import save
from gpt1_ds.report.scaling_axes import subplots
from gpt1_ds.sweep import runner
from gpt1_ds.tracking.record import EvalRecord, MetricsFile
from tests.helpers.finetuning_trials import FILE, behave, planned
from tests.helpers.processes import wait_for
from tools import runs


def fill(disk: Path, leave: int = 0) -> Path:
    filler = disk / "filler"
    with open(filler, "wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - leave)))
    return filler


def assert_whole(folder: Path) -> None:
    """A checkpoint that the run has not removed meanwhile, which it may, as it keeps one."""
    try:
        verify_files(folder, manifest.read(folder))
    except (OSError, CheckpointError):
        assert not folder.exists(), f"{folder} is damaged"


@pytest.mark.parametrize(
    ("background", "leave"), [("on", 0), ("off", 0), ("on", 100_000), ("off", 200_000), ("on", 350_000)]
)
def test_training_continues_and_saves_again_when_there_is_space(
    background: str,
    leave: int,
    small_disk,
    tiny_data: Path,  # type: ignore[no-untyped-def]
) -> None:
    """Whatever the save was writing when the space ran out."""
    disk = small_disk("4m")  # a handful of these checkpoints
    arguments = [
        *(f"data.path={tiny_data}", f"run.dir={disk}", f"checkpoint.background={background}"),
        *("train.steps=100000", "checkpoint.keep=1", "checkpoint.every=5"),
    ]
    run = runs.Background(arguments, 2)
    run.wait_for(lambda: bool(runs.events(run.run_dir, "saved")))
    filler = fill(disk, leave)
    kept = steps_in(run.run_dir.checkpoints)[-1]
    reached = runs.last_step(run.run_dir)
    log = run.run_dir.rank_log(0)
    run.wait_for(
        lambda: "was not saved" in log.read_text(errors="replace") or runs.last_step(run.run_dir) > reached + 30
    )
    for folder in steps_in(run.run_dir.checkpoints):
        assert_whole(folder)
    assert steps_in(run.run_dir.checkpoints)[-1] >= kept
    filler.unlink()
    before = len(steps_in(run.run_dir.checkpoints)) and steps_in(run.run_dir.checkpoints)[-1]
    run.wait_for(lambda: steps_in(run.run_dir.checkpoints)[-1] != before)
    run.run_dir.stop.touch()
    run.join()
    assert run.error is None
    assert not list(run.run_dir.checkpoints.glob(".*")), "nothing is left behind"
    lines = [line["step"] for line in read_jsonl(run.run_dir.metrics) if line["kind"] == "train"]
    assert lines == list(range(1, lines[-1] + 1)), "no line of the metrics is lost"
    kinds = [event["event"] for event in read_jsonl(run.run_dir.events)]
    assert kinds[-1] == "stopped"


def test_a_best_that_cannot_be_named_stops_no_run(tiny_data: Path, tmp_path: Path) -> None:
    """As where its checkpoint took the last space: what lies in the way of the small file here refuses it, too."""
    words = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=4", "train.eval_every=2"]
    words += ["checkpoint.best=eval.loss", "checkpoint.every=0"]
    run_dir = runs.folder(words)
    run_dir.best.mkdir(parents=True)
    assert runs.pretrain(words, 1) == 0
    assert [folder.name for folder in steps_in(run_dir.checkpoints)] == ["step-00000002", "step-00000004"]
    said = run_dir.rank_log(0).read_text()
    assert f"checkpoint of step 2 was not named the best: {run_dir.best}: a folder, not a file" in said


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(small_disk) -> None:  # type: ignore[no-untyped-def]
    """Its beginning fits into the file's last page, and its rest would when the beginning is taken back."""
    disk = small_disk("1m")
    file = disk / "lines"
    append(file, "whole\n")
    filler = fill(disk)
    with pytest.raises(OSError):
        append(file, "x" * 5000 + "\n")
    assert file.read_text() == "whole\n"
    filler.unlink()
    append(file, "next\n")
    assert file.read_text() == "whole\nnext\n"


def test_metrics_that_did_not_fit_are_written_at_the_end(small_disk, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """A run whose last evaluation met the full disk lost it, though there was space when it ended."""
    disk = small_disk("1m")
    file = MetricsFile(disk / "metrics.jsonl")
    record = EvalRecord(step=2, tokens=20, loss=1.5, perplexity=4.48, bits_per_byte=0.5)
    file.add(record)
    filler = fill(disk)
    for _ in range(100):  # until the file needs another block
        file.add(record)
    filler.unlink()
    file.finish()
    assert len(list(read_jsonl(file.path))) == 101
    assert capsys.readouterr().err.count("kept in memory") == 1

    filler = fill(disk)
    for _ in range(100):
        file.add(record)
    there = len(list(read_jsonl(file.path)))
    file.finish()
    assert f"its last lines ({201 - there}) could not be written" in capsys.readouterr().err
    assert len(list(read_jsonl(file.path))) == there


def test_a_figure_is_whole_or_not_there(small_disk) -> None:  # type: ignore[no-untyped-def]
    disk = small_disk("1m")
    figure, _ = subplots(1)
    filler = fill(disk, leave=8192)
    with pytest.raises(OSError) as raised:
        save(figure, disk / "loss")
    assert raised.value.filename == str(disk / "loss.png")
    assert [path.name for path in disk.iterdir()] == [filler.name]


def test_building_data(small_disk, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    """The build stops with one line, leaves no half dataset, and continues when there is space."""
    disk = small_disk("4m")
    from gpt1_ds.data.build import build

    texts, tokenizer = tiny_data.parent / "text", tiny_data.parent / "tokenizer"
    filler = fill(disk, leave=60_000)
    with pytest.raises((UserError, OSError)) as caught:
        build([texts], tokenizer, disk / "data", workers=1, validation=0.1)
    assert "space" in str(caught.value)
    assert not (disk / "data" / "dataset.json").exists()
    filler.unlink()
    build([texts], tokenizer, disk / "data", workers=1, validation=0.1)
    for path in tiny_data.iterdir():
        if path.suffix in (".bin", ".idx"):
            assert (disk / "data" / path.name).read_bytes() == path.read_bytes()


def test_a_run_folder_that_vanishes_ends_the_run(tiny_data: Path, tmp_path: Path) -> None:
    arguments = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=100000", "checkpoint.every=10"]
    run = runs.Background(arguments, 2)
    run.wait_for_step(3)
    os.rename(run.run_dir.path, tmp_path / "elsewhere")
    run.join(60)
    assert "run folder is gone" in str(run.error)


def test_a_sweep_lets_the_runs_that_fit_go_on(small_disk, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    """One cell fails; those that run beside it are not ended, and the results are written when there is space."""
    disk = small_disk("4m")
    sweep = planned(disk, FILE.replace("[full, no pre-training]", "[full]"))
    behave(sweep, cola="wait")
    results, updates = sweep.folder / "results.json", []

    def update() -> None:
        updates.append(len(sweep.left))
        if len(updates) == 2:  # a cell of rte is done; the next one of cola begins
            wait_for(sweep.trials[0].run_dir.events.exists)  # the cell that waits
            file = sweep.folder / "study.log"
            append(file, " " * (4095 - file.stat().st_size % 4096) + "\n")  # no line fits into its last page
            fill(disk)
        try:
            write_json(results, updates)
        finally:
            if len(updates) == 3:
                (disk / "filler").unlink()
                (sweep.folder / "hold").unlink()

    assert runner.run(sweep, 2, update) == 1
    assert [str(trial) for trial in sweep.left] == ["cola, full, seed 2"]
    assert json.loads(results.read_text()) == updates, "the last one was written"
    assert (len(updates), updates[:3], updates[-1]) == (5, [4, 3, 3], 1), "two cells may be done before one is counted"
    said = capsys.readouterr().err
    assert f"{results}: no space left on the device; free some; it is written again after the next cell" in said
    assert runner.run(sweep, 2, update) == 0


def test_every_line_names_what_does_not_fit(small_disk, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    """Also where Python's own error names no file, or the one that was read."""
    import numpy as np
    from matplotlib import pyplot

    from gpt1_ds.commands import embed
    from gpt1_ds.common.files import replacing
    from gpt1_ds.data import staging
    from gpt1_ds.data.shards import ShardWriter
    from gpt1_ds.data.tokenizers.registry import publish_tokenizer
    from gpt1_ds.evaluation.predict import write_lines
    from gpt1_ds.report import figures

    disk = small_disk("1m")
    fill(disk, leave=20_000)
    many, vectors = np.zeros(200_000, dtype=np.uint16), np.zeros((50_000, 2), dtype=np.float32)
    ends = np.array([len(many)])

    def embedded(path: Path) -> None:
        with replacing(path) as file:
            embed._write(file, [], vectors, path.suffix)

    def lines() -> None:
        with open(disk / "lines", "wb") as file:
            write_lines(["x" * 100_000], file)

    writes = {
        "shard": lambda: ShardWriter(disk / "shard", np.dtype(np.uint16)).write(many, ends, ends),
        "tokenizer": lambda: publish_tokenizer(disk / "tokenizer", "x", 1, SpecialIds(), {"x": bytes(many)}),
        "vectors.npy": lambda: embedded(disk / "vectors.npy"),
        "figure": lambda: figures.save(pyplot.figure(figsize=(30, 30)), disk / "figure"),
        "lines": lines,
        "stage": lambda: staging.stage([str(tiny_data)], disk / "stage"),
        "lock": lambda: RunLock(disk / "lock").__enter__(),
        "rank-0.json": lambda: HeartbeatFile(disk, 0),
    }
    for name, write in writes.items():
        if name == "lock":  # from here on it is small files that do not fit
            fill(disk)
        with pytest.raises(OSError) as caught:
            write()
        assert str(explain(caught.value)).startswith(f"{disk / name}"), (name, caught.value)
        assert "no space left on the device" in str(explain(caught.value))
        for left in disk.glob(f"*{name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
