"""`plan` as a person runs it, in an empty folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gpt1_ds.plan.machine import PRESETS
from tools.cluster import Result

Program = Callable[..., CompletedProcess[str]]
Gpt1 = Callable[..., Result]
GPT1 = ("plan", "-c", "pretrain/gpt1_117m")
PLAN_KEYS = {"format", "world", "vocabulary", "tokens", "limit", "machine", "layout", "memory", "cost"}
SEARCH_KEYS = {"best", "ranked", "losers", "legal", "too_large", "refused", "slurm"}


@pytest.fixture(autouse=True)
def no_machine_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GPT1_DS_MACHINE", raising=False)


def test_a_plan_says_what_was_asked_for(program: Program) -> None:
    done = program(*GPT1, "--world", "8", "train.tokens=10B", "parallel.pipeline=2")
    assert done.returncode == 0, done.stderr
    for arguments in (
        "116,537,856 parameters",
        "memory of one rank",
        "peak:",
        "h100, assumed",
        "waiting",
        "node-hours",
    ):
        assert arguments in done.stdout, arguments


def test_a_plan_as_json(gpt1: Gpt1) -> None:
    done = gpt1(*GPT1, "--world", "8", "--json", "--machine", "a100", "train.tokens=10B")
    assert done.code == 0, done.err
    plan = json.loads(done.out)
    assert set(plan) == PLAN_KEYS
    assert plan["machine"] == {"name": "a100", "source": PRESETS["a100"].source, "device": "cuda", "measured": False}
    assert plan["layout"]["data"] == 8
    (stage,) = plan["memory"]
    assert stage["peak"] == stage["instants"][stage["peak_at"]]
    assert plan["cost"]["step"] > 0


def test_the_best_layout_of_cpus_is_told_with_its_ranks(gpt1: Gpt1) -> None:
    found = gpt1("plan", "--search", "--world", "2", "--machine", "cpu", "train.steps=10").out.splitlines()
    (line,) = [line for line in found if line.startswith("use it: ")]
    assert line.endswith(" --nproc 2")


def test_a_search_as_json_runs_without_torch(program: Program, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('torch', 'deepspeed', 'megatron'):\n    sys.modules[name] = None\n"
    )
    root = Path(__file__).parents[2]
    done = program(*GPT1, "--world", "1024", "--search", "--json", PYTHONPATH=f"{tmp_path}:{root}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == PLAN_KEYS - {"layout", "memory", "cost"} | SEARCH_KEYS
    assert set(found["best"]) == {"layout", "memory", "cost", "words"}
    assert found["legal"] == 16
    assert found["slurm"] == ["slurm.nodes=128", "slurm.gpus_per_node=8"]


def test_a_search_explains_itself_and_writes_the_layout(gpt1: Gpt1, tmp_path: Path) -> None:
    done = gpt1(*GPT1, "--world", "8", "--search", "--out", "best.yaml")
    assert done.code == 0, done.err
    assert "1. tensor 1 x pipeline 1 x data 8" in done.out
    assert "tensor 2: " in done.out
    assert "more per step of reductions between tensor-parallel ranks" in done.out
    assert "ask SLURM for it: slurm.nodes=1 slurm.gpus_per_node=8" in done.out
    (arguments,) = [line for line in done.out.splitlines() if line.startswith("use it: ")]
    again = gpt1(*GPT1, "-c", "best.yaml", "--world", "8", "--json")
    by_words = gpt1(*GPT1, *arguments.removeprefix("use it: ").split(), "--world", "8", "--json")
    assert json.loads(again.out)["layout"] == json.loads(by_words.out)["layout"]


def test_what_does_not_fit_is_said(gpt1: Gpt1) -> None:
    done = gpt1(*GPT1, "--world", "8", "--memory", "1")
    assert "does NOT fit in 1 GiB" in done.out
    done = gpt1(*GPT1, "--world", "1", "--search", "--memory", "0.3")
    assert done.code == 1
    assert "nothing fits; least:" in done.out


@pytest.mark.parametrize(
    ("arguments", "say"),
    [
        (["--world", "0"], "--world=0: at least 1 rank"),
        (["--memory", "-1"], "--memory=-1.0: a rank needs more"),
        (["--machine", "nowhere.json"], "no such file; name one of h100, h200, a100, cpu"),
        (["--out", "x.yaml"], "add --search"),
        (["--search", "--out", "missing/x.yaml"], "missing/x.yaml: no file can be there; choose another --out"),
        (["--world", "3", "parallel.tensor=2"], "do not divide the world of 3"),
        (["--search", "model.kind=lstm", "model.layers=1"], "there is one layout only"),
        (["--calibrate", "--machine", "h100"], "the name of a preset"),
        (["--calibrate", "--machine", "/proc/x/m.json"], "m.json: no file can be there; choose another --machine"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(gpt1: Gpt1, arguments: list[str], say: str) -> None:
    done = gpt1("plan", *arguments)
    lines = [line for line in done.lines if "not there yet" not in line]
    assert (done.code, len(lines)) == (2, 1), done.err
    assert say in lines[0]


def test_a_pipe_or_a_device_is_not_replaced(gpt1: Gpt1, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = gpt1("plan", "--search", "--out", str(tmp_path / "pipe"))
    assert (done.code, done.lines[-1]) == (2, f"gpt1-ds: {tmp_path}/pipe: no file can be there; choose another --out")
    assert (tmp_path / "pipe").is_fifo()


def test_a_plan_is_for_the_machine_that_it_runs_on(gpt1: Gpt1, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says which in its first line. GPUs are planned for where a key asks for them or this machine is too small."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = len(os.sched_getaffinity(0))
    for arguments, machine in (
        ((), f"machine: cpu, assumed of {cores} core"),
        (("--world", str(cores + 1), f"train.global_batch={8 * (cores + 1)}"), "machine: h100, "),
        (("slurm.gpus_per_node=8",), "machine: h100, "),
        (("train.device=cuda",), "machine: h100, "),
        (("train.device=cpu", "--world", str(2 * cores), f"train.global_batch={16 * cores}"), "machine: cpu, "),
    ):
        done = gpt1("plan", *arguments)
        assert done.code == 0, done.err
        assert done.out.startswith(machine), (arguments, done.out)
