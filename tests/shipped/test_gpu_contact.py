"""The command for a first contact with a GPU, and the one after it, rehearsed on a CPU at tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.bench import gpu_contacts
from tools.gpu import kit, pack, parity
from tools.gpu.phases import PHASES

Program = Callable[..., subprocess.CompletedProcess[str]]
CPU = ("--device", "cpu", "--tiny")
PAIR = {"sentence_good": "It works.", "sentence_bad": "It work.", "linguistics_term": "agreement", "UID": "agreement"}
NEED_A_GPU = {"doctor", "tests_gpu_training", "tests_gpu_promises", "tests_bench_cuda", "kernels_compiled", "fused"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contact")


@pytest.fixture(scope="module")
def run(place: Path) -> Program:
    """`bash tools/gpu/NAME.sh ARGUMENTS` with a kit and a temporary folder of its own."""
    (place / "tmp").mkdir()
    variables = {"TMPDIR": str(place / "tmp"), "GPT1_DS_KIT": str(place / "kit"), "OUT": str(place / "out")}
    environment = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **variables}

    def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(kit.ROOT / "tools" / "gpu" / f"{name}.sh"), *arguments]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=1800)

    return program


@pytest.mark.slow
def test_every_phase_is_rehearsed(run: Program, place: Path) -> None:
    done = run("contact", "1700", *CPU)
    assert done.returncode == 0, done.stderr[-2000:]
    results = gpu_contacts.read(place / "out" / "results.jsonl")
    assert not results.of("failed"), results.of("failed")
    outcomes = {line["phase"]: line.get("outcome", line.get("reason")) for line in results.lines}
    names = [phase.name for phase in PHASES]
    assert {name: outcomes[name] for name in names} == {
        name: "it needs a GPU" if name in NEED_A_GPU else "done" for name in names
    }
    assert {phase.name for phase in PHASES if phase.needs_cuda} == NEED_A_GPU
    assert all(line["ok"] for line in results.of("check")), results.of("check")
    for group, cases in parity.GROUPS.items():
        checks = [line for line in results.of("check") if line["phase"] == f"parity_{group}"]
        other = "keeps its graphs" if group in (parity.GRAPHS, parity.COMPILED) else "other numbers from the CPU's"
        assert {line["name"]: line["value"] for line in checks} == {
            f"{name}: {what}": 0.0 for name in cases for what in ("losses from the CPU's", other)
        }
    assert results.fact("losses", "losses, fp32")["here"] == results.fact("losses", "losses, fp32")["cpu"]
    assert all(len(line["values"]) == 3 for line in results.of("series"))
    measured = {goal.name: goal.measure(results) for goal in gpu_contacts.GOALS}
    assert [name for name, found in measured.items() if found is None] == ["memory / plan"], "a CPU has no such memory"
    assert not [found.wrong for found in measured.values() if found is not None and found.wrong], "the same work"
    assert results.start["tiny"]
    assert gpu_contacts.table(results) in done.stdout
    assert {path.name for path in (place / "out").iterdir()} == {"results.jsonl", "log.txt", "trace.json.gz"}


@pytest.mark.slow
def test_the_science_is_rehearsed(run: Program, place: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "KIT", place / "kit")
    done = run("science", "100", "5", *CPU)
    assert done.returncode == 2
    assert done.stdout.count("\n") == 1, "one line"
    assert "no dataset was packed" in done.stdout
    tasks = {
        "blimp/agreement.jsonl": f"{json.dumps(PAIR)}\n" * 4,
        "sst2/glue/train.tsv": "sentence\tlabel\n" + "good\t1\nbad\t0\n" * 8,
        "sst2/glue/dev.tsv": "sentence\tlabel\ngood\t1\nbad\t0\n",
    }
    for name, text in tasks.items():
        (place / "tasks" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "tasks" / name).write_text(text)
    (place / "kit").mkdir()
    pack._archive(kit.DATA, {"": tiny_data})
    pack.pack_tasks(place / "tasks")
    done = run("science", "100", "5", *CPU)
    out = place / "out"
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("exit code 0 after") == 4, done.stdout
    assert json.loads((out / "pretrain.jsonl").read_text().splitlines()[0])["loss"] > 5
    scores = json.loads((out / "scores.json").read_text())
    assert set(scores) == {"gpt1", "sst2-pre-trained", "sst2-not-pre-trained"}
    assert "rte: no rte was packed; left out" in done.stdout
    assert (out / "console.txt").read_text() == done.stdout
    assert (out / "env.json").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("contact", "60", "stpe", *CPU), "contact.sh: stpe: no such phase; choose among environment, ceilings,"),
        (("contact", "soon"), "contact.sh: error: argument BUDGET_S: invalid float value: 'soon'"),
        (("contact", "0"), "contact.sh: error: BUDGET_S=0: give seconds, such as 265"),
    ],
)
def test_a_mistake_is_one_line(run: Program, arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(problem), done.stderr


def test_phases_are_listed(run: Program) -> None:
    done = run("contact", "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [phase.name for phase in PHASES]
