import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from gpt1_ds.common.errors import DataError
from gpt1_ds.tracking.record import EvalRecord, MetricsFile, TrainRecord, read_records


def train_record(step: int, **changes: object) -> TrainRecord:
    values = {
        **{"step": step, "tokens": step * 10, "loss": 0.1 + 0.2, "learning_rate": 1e-3, "grad_norm": 1.0},
        **{"applied": True, "tokens_per_second": 1.0, "step_seconds": 1.0, "data_wait_seconds": 0.0},
        **{"model_tflops_per_rank": 1.0, "mfu": None, "peak_memory_gib": 1.0, "batch_fingerprint": "0"},
        **changes,
    }
    return TrainRecord(**values)  # type: ignore[arg-type]


def test_lines_are_json_with_every_digit(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.add(train_record(1))
    file.add(train_record(2, grad_norm=float("inf"), applied=False))
    file.add(EvalRecord(step=2, tokens=20, loss=1.5, perplexity=4.48, bits_per_byte=0.5))
    first, second, third = map(json.loads, file.path.read_text().splitlines())
    assert first["loss"] == 0.1 + 0.2
    assert list(first)[:3] == ["kind", "step", "tokens"]
    assert "loss_scale" not in first
    assert second["grad_norm"] is None
    assert third["kind"] == "eval"


def test_what_masked_text_has_besides(tmp_path: Path) -> None:
    """Other runs' lines have no such keys."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    plain = EvalRecord(step=2, tokens=20, loss=1.5, perplexity=4.48, bits_per_byte=0.5)
    values = {"loss": 1.5, "perplexity": 4.48, "bits_per_byte": None, "masked_accuracy": 0.25}
    masked = EvalRecord(step=2, tokens=20, **values)  # type: ignore[arg-type]
    pairs = EvalRecord(step=2, tokens=20, **values, pair_loss=0.7, pair_accuracy=0.5)  # type: ignore[arg-type]
    for record in (train_record(1), train_record(2, predicted=3), plain, masked, pairs):
        file.add(record)
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [line.get("predicted") for line in lines] == [None, 3, None, None, None]
    assert list(lines[1])[:4] == ["kind", "step", "tokens", "predicted"]
    assert set(lines[2]) == {"kind", "step", "tokens", "loss", "perplexity", "bits_per_byte"}
    assert plain.metrics == {"loss": 1.5, "perplexity": 4.48, "bits_per_byte": 0.5}
    assert masked.metrics == values
    assert set(lines[4]) - set(lines[3]) == {"pair_loss", "pair_accuracy"}
    assert str(masked) == "held-out loss 1.5000  perplexity 4.48  masked accuracy 0.2500"
    assert str(pairs) == f"{masked}  pairs: loss 0.7000, accuracy 0.5000"


def test_a_resumed_run_leaves_one_line_per_step(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (10, 20, 30):
        file.add(train_record(step))
        file.add(EvalRecord(step=step, tokens=step * 10, loss=1.5, perplexity=4.48, bits_per_byte=0.5))
    with open(file.path, "a") as raw:
        raw.write('{"kind": "train", "step": 4')
    file.rewind(20, evaluated=10)
    file.add(train_record(30))
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        *(("train", 10), ("eval", 10), ("train", 20), ("train", 30))
    ]


def test_lines_that_are_no_record_do_not_stop_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is on the disk before it replaces the other one: a power cut leaves one of the two."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.add(train_record(1))
    with open(file.path, "a") as raw:
        raw.write('7\n{"step": 2}\n{"kind": "train"}\n')
    synced, replaced = [], []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (replaced.append(Path(a).stat().st_ino), replace(a, b)))
    file.rewind(1, evaluated=0)
    assert [json.loads(line)["step"] for line in file.path.read_text().splitlines()] == [1]
    assert replaced[0] in synced


GOOD = {"kind": "eval", "step": 3, "tokens": 9, "loss": 1.5, "perplexity": None, "bits_per_byte": 2}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"loss": "1.5"}, "loss is '1.5', no number"),
        ({"tokens": 1.5}, "tokens is 1.5, no count"),
        ({"tokens": -1}, "tokens is -1, no count"),
        ({"perplexity": True}, "perplexity is True, no number"),
        ({"bits_per_byte": float("inf")}, "bits_per_byte is inf, no number"),
        ({"pair_loss": [1]}, r"pair_loss is \[1\], no number"),
    ],
)
def test_a_record_of_another_type_is_named(changed: dict[str, object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + '{"kind": "torn')
    assert read_records(path) == [GOOD]
    path.write_text(json.dumps({**GOOD, **changed}) + "\n")
    with pytest.raises(DataError, match=rf"metrics\.jsonl: the eval record of step 3: {says}; remove this record"):
        read_records(path)


def test_a_run_that_diverged_far_can_be_read(tmp_path: Path) -> None:
    """Its perplexity is written as e^700 at most."""
    path, diverged = tmp_path / "metrics.jsonl", {**GOOD, "loss": 2e9, "perplexity": math.exp(700)}
    path.write_text(json.dumps(diverged) + "\n")
    assert read_records(path) == [diverged]


def test_a_record_that_lacks_a_key_is_named(tmp_path: Path) -> None:
    """What older versions did not write may lack."""
    path = tmp_path / "metrics.jsonl"
    for key in ("loss", "perplexity", "bits_per_byte"):
        path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != key}) + "\n")
        with pytest.raises(DataError, match=rf"metrics\.jsonl: the eval record of step 3 has no {key}; remove this"):
            read_records(path)
    later = ("clipped", "task_loss", "language_loss", "accuracy")
    old = {key: value for key, value in asdict(train_record(1)).items() if key not in later}
    path.write_text(json.dumps(old) + "\n")
    assert read_records(path) == [old]
