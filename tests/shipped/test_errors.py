"""What people get wrong: one line that names the key or file and the way out, exit code 2, no traceback."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpt1_ds.common.lock import RunLock
from gpt1_ds.common.rundir import read_jsonl
from tests.helpers.program import assert_refused
from tools.cluster import Result
from tools.runs import TINY


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["model.layer=3"], ["model.layer", "Did you mean: 'layers'"]),
        (["model.layers=many"], ["model.layers", "'many'"]),
        (["--model.layers", "3"], ["keys are written without dashes: model.layers=3"]),
        (["model.heads=7"], ["model.heads=7 does not divide model.width=64"]),
        (["train.micro_batch=5"], ["train.global_batch=16 is not a multiple of train.micro_batch=5"]),
        (["parallel.tensor=3"], ["parallel.tensor=3 does not divide model.heads=4"]),
        (["parallel.pipeline=3", "--nproc", "3"], ["parallel.pipeline=3 leaves ranks without a layer"]),
        (["parallel.pipeline=2", "parallel.zero=2"], ["use parallel.zero=1"]),
        (["parallel.tensor=2", "--nproc", "3"], ["do not divide the world of 3"]),
        (["--nproc", "0"], ["--nproc=0"]),
        (["evaluation.every=5"], ["there is no section 'evaluation'; did you mean train.evaluations?"]),
        (["quux.every=5"], ["quux: there is no section 'quux'; the sections are run, model, "]),
        (["model.qqqqqqqq=5"], ["model.qqqqqqqq", "; `gpt1-ds config keys` lists all"]),
        (["pretrain/books_cpu"], ["'pretrain/books_cpu' is not key=value; write -c pretrain/books_cpu"]),
        (["my.yaml"], ["'my.yaml' is not key=value; write -c my.yaml"]),
        (["lr=1e-3"], ["lr: there is no section 'lr'; did you mean optimizer.lr?"]),
        (["model.lr=1e-3"], ["did you mean optimizer.lr?"]),
        (["guard.step_timeout=inf"], ["guard.step_timeout=inf is not finite"]),
        (["guard.step_timeout=1e9"], ["guard.step_timeout=1000000000.0 must be above 0 seconds, and at most 1e+08"]),
        (["train.epochs=inf"], ["train.epochs=inf is not finite"]),
        (["optimizer.clip=nan"], ["optimizer.clip=nan is not finite"]),
        (["optimiser.lr=1e-3"], ["Did you mean: 'optimizer'"]),
        (["-c", "pretrain/gpt1_17m"], ["pretrain/gpt1_17m: no such file", "did you mean pretrain/gpt1_117m"]),
        (["-c", "nowhere.yaml"], ["nowhere.yaml: no such file", "`gpt1-ds config ls` lists those of cluster/, "]),
        (
            ["-c", "cluster/nothing_like_it"],
            ["; cluster/ has apptainer, example, ", "; others are in evaluate/, finetune/, "],
        ),
        (["data.path=nowhere"], ["nowhere: not a dataset", "gpt1-ds data build"]),
        (["--frobnicate"], ["--frobnicate"]),
        (["run.dir=runs-\udcff"], ["run.dir=runs-\\udcff: this argument is not UTF-8", "rename"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words(gpt1, arguments: list[str], says: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("pretrain", *arguments), *says)


def test_a_dry_run_sees_what_the_run_will_see(gpt1, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for arguments in ([], ["--dry-run"]):
        assert_refused(gpt1("pretrain", "data.path=nowhere", *arguments), "nowhere: not a dataset")
    assert gpt1("pretrain", "--dry-run", "--nproc", "2").code == 0
    assert not list(tmp_path.iterdir()), "nothing is built for it"


def test_problems_of_every_kind_are_told_at_once(gpt1) -> None:  # type: ignore[no-untyped-def]
    arguments = ["model.heads=5", "optimizer.lr=-1", "schedule.kind=foo", "train.stepz=3"]
    assert_refused(gpt1("pretrain", *arguments), "heads=5", "optimizer.lr=-1", "'foo'", "'stepz'", lines=4)


def test_context_longer_than_the_data(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("pretrain", f"data.path={tiny_data}", "model.context=1M"), "too few for one window")


def test_data_of_two_tokenizers(gpt1, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from gpt1_ds.data.build import build
    from gpt1_ds.data.tokenizers.train import train_tokenizer

    train_tokenizer([tiny_data.parent / "text"], tmp_path / "other", 400)
    build([tiny_data.parent / "text"], tmp_path / "other", tmp_path / "data2", workers=1)
    assert_refused(gpt1("pretrain", f"data.path=[{tiny_data},{tmp_path}/data2]"), "another tokenizer", "data2")


def test_a_truncated_shard(gpt1, tiny_data: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(tiny_data, tmp_path / "data")
    shard = tmp_path / "data" / "train-00000.bin"
    os.truncate(shard, shard.stat().st_size - 2)
    assert_refused(gpt1("pretrain", f"data.path={tmp_path}/data"), "train-00000.bin", "bytes")


def pretrain(gpt1, data: Path, *arguments: str) -> Result:  # type: ignore[no-untyped-def]
    return gpt1("pretrain", *TINY, f"data.path={data}", "train.steps=2", "--nproc", "1", *arguments)  # type: ignore[no-any-return]


def test_a_folder_of_another_run(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    assert pretrain(gpt1, tiny_data).code == 0
    result = pretrain(gpt1, tiny_data, "model.layers=3", "optimizer.lr=5")
    assert_refused(result, "model.layers was 2 and is now 3", "optimizer.lr was 0.001 and is now 5.0", lines=2)
    result = pretrain(gpt1, tiny_data, "run.name=other", "checkpoint.resume=runs/run")
    assert_refused(result, "checkpoint.resume=runs/run", "2 of 2 steps", "ask for more steps")


def test_a_folder_that_another_process_writes(gpt1, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    Path("runs/run").mkdir(parents=True)
    with RunLock(Path("runs/run/.lock")):
        assert_refused(
            pretrain(gpt1, tiny_data, "guard.lock_timeout=0.5"), f"pid {os.getpid()}", "another process writes"
        )


def test_no_permission(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    assert_refused(pretrain(gpt1, tiny_data, "run.dir=/sys/runs"), "/sys/runs", "choose a place you may write to")


def test_no_space_left(gpt1, tiny_data: Path, small_disk) -> None:  # type: ignore[no-untyped-def]
    disk = small_disk("200k")
    result = pretrain(gpt1, tiny_data, f"run.dir={disk}", "train.steps=3", "checkpoint.every=1")
    assert result.code == 1, "what could not be saved in the end is a failure"
    assert "its last state could not be saved" in result.err
    log = (disk / "run" / "logs" / "rank-0.log").read_text()
    assert "was not saved" in log
    assert "no space left on the device" in log
    assert "step 3/3" in log, "a run continues without its checkpoint"
    assert not list(disk.glob("run/checkpoints/*"))
    (disk / "fill").write_bytes(b"x" * (shutil.disk_usage(disk).free))
    assert_refused(pretrain(gpt1, tiny_data, f"run.dir={disk}", "run.name=second"), "no space left on the device")


@pytest.mark.parametrize(
    "arguments", [["--tokens", "0"], ["--temperature", "-1"], ["--top-p", "0"], ["--top-k", "-1"]], ids=" ".join
)
def test_sampling_numbers(gpt1, arguments: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert_refused(gpt1("sample", "--checkpoint", "x", "--prompt", "y", *arguments), arguments[0])


def test_what_is_no_checkpoint(gpt1) -> None:  # type: ignore[no-untyped-def]
    for command in (["checkpoint", "inspect"], ["checkpoint", "verify"], ["evaluate", "--checkpoint"]):
        assert_refused(gpt1(*command, "nowhere"), "nowhere: no such folder; name a run folder, like runs/NAME")


def test_what_is_no_run(gpt1, in_folder: Path) -> None:  # type: ignore[no-untyped-def]
    line = f"{in_folder}: no run folder (config.yaml is missing); name a run folder, like runs/NAME"
    assert_refused(gpt1("report", str(in_folder)), line)


@pytest.mark.slow
def test_the_corrected_command_takes_the_folder_of_a_run_that_failed(gpt1, tiny_data: Path) -> None:  # type: ignore[no-untyped-def]
    """Before its first checkpoint: what the error advises works, and what was logged is kept beside it."""
    failed = pretrain(gpt1, tiny_data, "optimizer.lr=1e30", "optimizer.clip=0", "schedule.warmup_steps=0")
    assert failed.code == 1, failed.err
    done = pretrain(gpt1, tiny_data, "checkpoint.every=1")
    assert done.code == 0, done.err
    (event,) = (event for event in read_jsonl(Path("runs/run/events.jsonl")) if event["event"] == "replaced")
    assert event["changes"]["optimizer.lr"] == [1e30, 0.001]
    assert Path("runs/run.replaced-1/metrics.jsonl").exists()
    anew = pretrain(gpt1, tiny_data, "model.layers=3", "checkpoint.resume=never")
    assert anew.code == 0, anew.err
    assert next(read_jsonl(Path("runs/run/metrics.jsonl")))["step"] == 1
    assert Path("runs/run.replaced-2/checkpoints/step-00000002").is_dir()
    assert pretrain(gpt1, tiny_data, "model.layers=3").err == "runs/run: done after step 2\n"


def test_a_damaged_checkpoint_that_is_named(gpt1, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = Path(__file__).parents[1] / "golden" / "format-1" / "step-00000003"
    way_out = "copy it again from where it is whole, or name another checkpoint of its run"
    for name, damage in (
        ("manifest.json", lambda file: os.truncate(file, 100)),
        ("state/rank-00001.safetensors", lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?")),
        ("config.yaml", Path.unlink),
    ):
        folder = tmp_path / name.replace("/", "-") / whole.name
        shutil.copytree(whole, folder)
        damage(folder / name)
        assert_refused(gpt1("checkpoint", "verify", str(folder)), name, way_out)
        assert_refused(gpt1("sample", "--checkpoint", str(folder), "--prompt", "It"), name, way_out)
