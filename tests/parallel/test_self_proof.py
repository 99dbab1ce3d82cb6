"""The self-proof on CPU ranks over gloo: it holds here, and each of its checks fails where something is wrong."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpt1_ds.commands import doctor
from gpt1_ds.config import Config, load
from gpt1_ds.diagnostics.report import Ledger, Record, Report, read_report
from gpt1_ds.launcher import launch

HERE = "tests.parallel.test_self_proof"
SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "model.vocab_size=200"]
ON_CPU = ["train.device=cpu", "train.global_batch=4", "train.micro_batch=2"]


def config() -> Config:
    return load([], [*SMALL, *ON_CPU])


def test_doctor_proves_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu-check.json"
    assert doctor.prove(config(), 2, out, limit=600) == 0
    found = read_report(out)
    names = [record.name for record in found.records]
    for wanted in ("versions", "dropout masks of hidden", "dropout masks of exact", "block, exact attention, fp32"):
        assert sum(name.startswith(wanted) for name in names) == 1, names
    for wanted in (
        "block, exact attention, bf16",
        "loss",
        "all-reduce, wrong",
        "all-reduce of 4 MiB",
        "reduce-scatter",
    ):
        assert any(name.startswith(wanted) for name in names), names
    assert sum(name.startswith("a step twice") for name in names) == 2, "as it is, and deterministic"
    speed = next(record for record in found.records if record.name.endswith("tokens/s"))
    assert speed.value is not None
    assert speed.value > 0
    assert (found.world, found.failing) == (2, [])
    assert f"all {len(names)} checks hold (2 ranks on {found.host})" in capsys.readouterr().out


def prove(kept: Config, gpus_per_node: int, ledger: Ledger) -> Report:
    """The self-proof on one rank, which ends in the midst of it: see the name of its ledger."""
    from gpt1_ds.diagnostics import numerics, self_proof

    def stuck(device: object) -> Record:
        if ledger.path.stem == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        time.sleep(600)
        raise AssertionError("nobody waits so long")

    numerics.attention_masks = stuck  # type: ignore[assignment]
    return self_proof.prove(kept, gpus_per_node, ledger)


def prove_determinism(_: Config) -> list[Record]:
    return [Record("a step twice, deterministic", True, 0, 0)]


@pytest.mark.parametrize(("how", "limit"), [("killed", 300), pytest.param("hangs", 25, marks=pytest.mark.slow)])
def test_what_ends_in_the_midst_leaves_what_it_found(
    how: str, limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PROOF", HERE)
    out, began = tmp_path / f"{how}.json", time.monotonic()
    assert doctor.prove(config(), 1, out, limit) == 2
    assert time.monotonic() - began < limit + 10
    found = read_report(out)
    (failing,) = found.failing
    assert failing.name == "the ranks of the self-proof"
    assert "killed" in failing.note
    assert "block, exact attention, bf16" in found.not_reached
    assert "the ranks of the self-proof" in capsys.readouterr().out
    if how == "killed":
        assert [record.name for record in found.records][1].startswith("dropout masks of hidden states")
        assert found.not_reached[0] == "dropout masks of exact attention"
        assert found.records[-1].name == "a step twice, deterministic", "what comes later is reached all the same"
    else:
        assert "a step twice, deterministic" in found.not_reached


def hurried(folder: Path) -> Report:
    """The self-proof with 300 seconds, of a check that may take an hour and one that takes no time."""
    from gpt1_ds.diagnostics import self_proof

    def check(name: str, seconds: float) -> self_proof.Check:
        return self_proof.Check(name, seconds, lambda: [Record(name, True)])

    self_proof.checks = lambda *_: [check("long", 3600), check("short", 0)]
    return self_proof.prove(config(), 0, Ledger(folder / "gpu-check.json", time.time() + 300, shown=None))


def test_a_check_that_may_not_end_in_time_does_not_begin(tmp_path: Path) -> None:
    first, second = launch.run(f"{HERE}:hurried", (tmp_path,), 2)
    assert first == second == read_report(tmp_path / "gpu-check.json")
    assert [record.name for record in first.records[1:]] == ["short"]
    assert first.not_reached == ["long"]


def broken(kind: str) -> Report:
    """Runs on each rank: the self-proof with one thing wrong, on rank 1 alone where a rank can be wrong alone."""
    import torch
    import torch.distributed as dist

    from gpt1_ds.diagnostics import numerics, self_proof, toolchain
    from gpt1_ds.engine.plain import DenseEngine

    second = os.environ["RANK"] == "1"
    sums = {"all-reduce": "all_reduce", "reduce-scatter": "reduce_scatter_tensor"}
    if kind in sums:
        right = getattr(dist, sums[kind])

        def off_by_one(tensor, *arguments, **keywords):  # type: ignore[no-untyped-def]
            done = right(tensor, *arguments, **keywords)
            if second and tensor.numel() > 100_000:
                tensor[7] += 1
            return done

        setattr(dist, sums[kind], off_by_one)
    elif kind == "step":
        step, steps_done = DenseEngine.step, []

        def drifting(self, batches, learning_rate):  # type: ignore[no-untyped-def]
            steps_done.append(learning_rate)
            return step(self, batches, learning_rate * len(steps_done) if second else learning_rate)

        DenseEngine.step = drifting  # type: ignore[method-assign]
    elif kind == "mask" and second:
        numerics.hidden_masks = lambda device: Record("dropout masks of hidden states", False, 3, 0, "report it")
    elif kind == "kernel" and second:

        def fails(device: torch.device) -> Record:
            raise RuntimeError("no kernel image is available\nmore")

        numerics.attention_masks = fails
    elif kind == "version" and second:
        known = toolchain.toolchain
        toolchain.toolchain = lambda device: {**known(device), "torch": "2.12.0"}
    return self_proof.prove(config())


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("all-reduce", "all-reduce, wrong numbers", "do not train here"),
        ("reduce-scatter", "reduce-scatter, wrong numbers", "do not train here"),
        ("step", "a step twice", "report it"),
        ("mask", "dropout masks of hidden states", "rank 1 on "),
        ("kernel", "dropout masks of exact attention", "RuntimeError: no kernel image is available"),
        ("version", "versions", "torch is 2.12.0 or "),
    ],
)
def test_what_is_wrong_on_one_rank_is_found(kind: str, name: str, said: str) -> None:
    reports = launch.run(f"{HERE}:broken", (kind,), 2)
    assert reports[0] == reports[1]
    (failing,) = reports[0].failing
    assert failing.name.startswith(name)
    assert said in failing.note


def test_a_file_for_each_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slurm prove` on the ranks of a job: here without GPUs, and of a small model."""
    assert launch.run(f"{HERE}:of_a_job", (tmp_path,), 2) == [0, 0]
    found = read_report(tmp_path / "gpu-check.json")
    assert (found.world, found.failing) == (2, [])


def of_a_job(folder: Path) -> int:
    from gpt1_ds.diagnostics import self_proof

    return self_proof.prove_job(folder, 0, [*SMALL, "train.device=cpu", "train.micro_batch=2", "train.precision=fp32"])


def test_the_model_that_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpt1_ds.diagnostics import self_proof

    for world in (1, 8, 12, 512):
        found = self_proof.configuration(world, ["train.device=cpu"])
        assert found.train.global_batch % (world * found.train.micro_batch) == 0
        assert replace(found.model, vocab_size=None) == replace(load([self_proof.MODEL]).model, vocab_size=None)
