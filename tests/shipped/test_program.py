"""The program as a person uses it, from one verb to the next, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import TINY

ROOT = Path(__file__).parents[2]
Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_folder(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps, trained by the program on two ranks."""
    folder = tmp_path_factory.mktemp("program")
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=r", "train.steps=12", "--nproc", "2"]
    done = gpt1(folder, *words)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "r"


def gpt1(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "gpt1_ds", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_help_is_instant_and_configuration_quick(tmp_path: Path) -> None:
    def seconds(*words: str) -> float:
        best = 99.0
        for _ in range(3):
            began = time.perf_counter()
            assert gpt1(tmp_path, *words).returncode == 0
            best = min(best, time.perf_counter() - began)
        return best

    assert seconds("--help") < 0.3
    assert seconds("pretrain", "--print-config") < 1.0
    assert seconds("pretrain", "--dry-run", "-c", "pretrain/gpt1_117m") < 1.0


def test_a_run_says_only_what_a_person_can_use(run_folder: Path, tiny_data: Path) -> None:
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=quiet", "train.steps=3", "train.log_every=3"]
    for extra in (["--nproc", "2"], []):
        done = gpt1(run_folder.parents[1], *words, *extra, f"run.name=quiet{len(extra)}")
        lines = done.stderr.splitlines()
        assert done.returncode == 0
        assert not done.stdout
        assert [line.split()[0] for line in lines[1:4]] == ["step"] * 3, done.stderr
        assert len(lines) == 5, done.stderr
    assert {path.name for path in (run_folder / "logs").iterdir()} == {"rank-0.log", "rank-1.log"}
    assert "rank 1" in (run_folder / "logs" / "rank-1.log").read_text()


def test_the_run_folder_is_private_and_complete(run_folder: Path) -> None:
    names = {path.name for path in run_folder.iterdir()}
    assert {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl", "checkpoints", "logs", "DONE"} <= names
    assert not [path for path in run_folder.rglob("*") if path.stat().st_mode & 0o077]
    environment = json.loads((run_folder / "env.json").read_text())
    assert environment["torch"]
    assert json.loads((run_folder / "DONE").read_text()) == {"step": 12}


def test_secrets_of_the_environment_are_written_nowhere(tiny_data: Path, tmp_path: Path) -> None:
    secrets = {"WANDB_API_KEY": "s3cr3t-wandb", "HF_TOKEN": "s3cr3t-hf", "AWS_SECRET_ACCESS_KEY": "s3cr3t-aws"}
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "train.steps=2", "tracking.wandb=offline"]
    assert gpt1(tmp_path, *words, **secrets).returncode == 0
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any("offline-run" in str(path) for path in files), "W&B wrote its offline folder"
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


def test_evaluate_is_the_same_on_one_and_two_ranks(run_folder: Path) -> None:
    found = []
    for extra in ([], ["--nproc", "2"], ["--nproc", "2", "parallel.tensor=2"]):
        out = run_folder.parent / "e.json"
        done = gpt1(run_folder.parents[1], "evaluate", "--checkpoint", "runs/r", "--out", str(out), *extra)
        assert done.returncode == 0, done.stderr
        (entry,) = json.loads(out.read_text())
        assert (entry["task"], entry["split"], entry["step"]) == ("held-out", "validation", 12)
        found.append(entry["metrics"]["loss"])
    assert max(found) - min(found) < 1e-5
    logged = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert logged[-1]["kind"] == "eval"
    assert logged[-1]["bits_per_byte"] == pytest.approx(logged[-1]["loss"] / 0.6931 / 2.6, rel=0.5)


def test_sampling_is_repeatable_and_greedy_equals_the_whole_forward_pass(run_folder: Path) -> None:
    def text(*words: str) -> str:
        done = gpt1(run_folder.parents[1], "sample", "--checkpoint", "runs/r", "--prompt", "The", *words)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return done.stdout

    assert text("--tokens", "60", "--seed", "3") == text("--tokens", "60", "--seed", "3"), "past the context, too"
    assert text("--tokens", "20", "--seed", "3") != text("--tokens", "20", "--seed", "4")
    code = (
        "import torch, gpt1_ds\n"
        "model, tokenizer = gpt1_ds.load('runs/r')\n"
        "ids = [int(i) for i in tokenizer.encode('The')]\n"
        "start = len(ids)\n"
        "for _ in range(20):\n"
        "    logits = model.logits(torch.tensor(ids).unsqueeze(1), torch.zeros(1, dtype=torch.int64))[-1, 0]\n"
        "    logits[[0, tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id]] = -torch.inf\n"
        "    ids.append(int(logits.argmax()))\n"
        "print('The' + tokenizer.decode(ids[start:]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = subprocess.run(
        [sys.executable, "-c", code], cwd=run_folder.parents[1], env=environment, capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    assert text("--tokens", "20", "--temperature", "0") == whole.stdout


def test_inspect_verify_and_report(run_folder: Path) -> None:
    folder = run_folder.parents[1]
    assert "step 12" in gpt1(folder, "checkpoint", "inspect", "runs/r").stdout
    assert "as written" in gpt1(folder, "checkpoint", "verify", "runs/r").stdout
    assert gpt1(folder, "report", "runs/r").stdout == "runs/r/report.html\n"
    page = (run_folder / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ), "the page needs no network"
    assert {path.suffix for path in (run_folder / "figures").iterdir()} == {".png", ".svg"}


def test_a_damaged_checkpoint_is_set_aside_out_loud(run_folder: Path, tmp_path: Path, tiny_data: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "runs" / "r")
    checkpoints = tmp_path / "runs" / "r" / "checkpoints"
    victim = next((checkpoints / "step-00000012" / "state").glob("*.safetensors"))
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    assert "sha256 does not match" in gpt1(tmp_path, "checkpoint", "verify", "runs/r").stderr
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=r", "train.steps=12", "--nproc", "2"]
    done = gpt1(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "set aside as step-00000012.damaged-" in done.stderr
    assert "from step 10 of step-00000010" in done.stderr
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()
    before = (run_folder / "metrics.jsonl").read_text().splitlines()
    losses = [[json.loads(line)["loss"] for line in lines] for lines in (metrics, before)]
    assert losses[0] == losses[1]


def test_torchrun_starts_it_too(tiny_data: Path, tmp_path: Path) -> None:
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "train.steps=4", "parallel.tensor=2"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "gpt1_ds",
        *words,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "run" / "DONE").exists()


def test_without_a_compiler_and_with_a_stale_extension_lock(tiny_data: Path, tmp_path: Path) -> None:
    extensions = tmp_path / "extensions"
    for name in ("deepspeed_shm_comm", "cpu_adam", "fused_adam"):
        (extensions / name).mkdir(parents=True)
        (extensions / name / "lock").touch()
    path = tmp_path / "bin"
    path.mkdir()
    (path / "python3").symlink_to(sys.executable)
    words = ["pretrain", *TINY, f"data.path={tiny_data}", "train.steps=2", "--nproc", "2"]
    for precision in ("fp32", "bf16"):
        done = gpt1(
            tmp_path,
            *(*words, f"run.name={precision}", f"train.precision={precision}"),
            PATH=str(path),
            TORCH_EXTENSIONS_DIR=str(extensions),
            CXX="/nowhere/c++",
        )
        assert done.returncode == 0, done.stderr


def test_the_embedded_corpus_needs_nothing(tmp_path: Path) -> None:
    words = ["model.layers=1", "train.steps=2", "train.eval_batches=1"]
    done = gpt1(tmp_path, "pretrain", *words)
    assert done.returncode == 0, done.stderr
    assert "building the embedded corpus" in done.stderr
    assert (tmp_path / "data" / "python-docs" / "dataset.json").exists()
