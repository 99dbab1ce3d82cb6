"""The program as a person uses it, command after command; in its own process where that matters."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gpt1_ds
from gpt1_ds.cli import main
from gpt1_ds.model import products
from tests.helpers.foreign import make_checkpoint
from tools.cluster import Result
from tools.runs import TINY

ROOT = Path(__file__).parents[2]
Program = Callable[..., Result]
Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_folder(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 steps, trained by the program on two ranks."""
    folder = tmp_path_factory.mktemp("program")
    arguments = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=r", "train.steps=12", "--nproc", "2"]
    assert main([*arguments, f"run.dir={folder / 'runs'}"]) == 0
    return folder / "runs" / "r"


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without one, on which DeepSpeed's own builds once were killed."""
    for name in ("deepspeed_shm_comm", "cpu_adam", "fused_adam"):
        (tmp_path / "extensions" / name).mkdir(parents=True)
        (tmp_path / "extensions" / name / "lock").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    return {
        "PATH": str(tmp_path / "bin"),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
        "CXX": "/nowhere/c++",
    }


@pytest.mark.parametrize("extra", [["--nproc", "2"], ["train.precision=bf16"]], ids=["two ranks", "bf16"])
def test_a_run_says_only_what_a_person_can_use_and_needs_no_compiler(
    extra: list[str], tiny_data: Path, tmp_path: Path, no_compiler: dict[str, str], program: Process
) -> None:
    arguments = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=quiet", "train.steps=3", "train.log_every=3"]
    done = program(*arguments, *extra, **no_compiler)
    lines = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    if "train.precision=bf16" in extra and (note := products.note("bf16", torch.device("cpu"))):
        assert lines.pop(1) == note
    assert [line.split()[0] for line in lines[1:4]] == ["step"] * 3, done.stderr
    assert len(lines) == 5, done.stderr
    logs = tmp_path / "runs" / "quiet" / "logs"
    if "--nproc" in extra:
        assert {path.name for path in logs.iterdir()} == {"rank-0.log", "rank-1.log"}
        assert "rank 1" in (logs / "rank-1.log").read_text()


def test_the_run_folder_is_private_and_complete(run_folder: Path) -> None:
    names = {path.name for path in run_folder.iterdir()}
    assert {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl", "checkpoints", "logs", "DONE"} <= names
    assert not [path for path in run_folder.rglob("*") if path.stat().st_mode & 0o077]
    environment = json.loads((run_folder / "env.json").read_text())
    assert environment["torch"]
    assert json.loads((run_folder / "DONE").read_text()) == {"step": 12}


def test_evaluate_is_the_same_on_one_and_two_ranks(run_folder: Path, gpt1: Program) -> None:
    found = []
    for extra in (["--nproc", "1"], ["--nproc", "2"], ["--nproc", "2", "parallel.tensor=2"]):
        done = gpt1("evaluate", "--checkpoint", str(run_folder), "--out", "e.json", *extra)
        assert done.code == 0, done.err
        (entry,) = json.loads(Path("e.json").read_text())
        assert (entry["task"], entry["split"], entry["step"]) == ("held-out", "validation", 12)
        found.append(entry["metrics"]["loss"])
    assert max(found) - min(found) < 1e-5
    logged = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert logged[-1]["kind"] == "eval"
    (line,) = [line for line in (run_folder / "logs" / "rank-0.log").read_text().splitlines() if "held-out" in line]
    assert re.search(r"step 12: held-out loss \d.*  \(8 of \d+ rows\)$", line), "a sample, and evaluate reads all"
    assert logged[-1]["bits_per_byte"] == pytest.approx(logged[-1]["loss"] / 0.6931 / 2.6, rel=0.5)


def test_evaluate_says_what_it_does_not_read(run_folder: Path, gpt1: Program) -> None:
    done = gpt1(
        "evaluate", str(run_folder), "--out", "e.json", "train.eval_batches=1", "optimizer.lr=1", "model.layers=2"
    )
    assert done.code == 0
    assert "train.eval_batches=1 changes nothing: evaluate reads all of the held-out text\n" in done.err
    assert "optimizer.lr=1 changes nothing: evaluate does not train\n" in done.err
    assert done.err.count("changes nothing") == 2


def test_evaluate_builds_no_text_for_a_checkpoint_without(tiny_data: Path, gpt1: Program) -> None:
    imported = make_checkpoint(Path("imported"), tiny_data.parent / "tokenizer")
    done = gpt1("evaluate", str(imported))
    assert done.code == 2
    assert done.err.endswith("names no text of its own that is here; name its text with data.path=FOLDER\n")
    assert not Path("data").exists()
    assert gpt1("evaluate", str(imported), f"data.path={tiny_data}").code == 0


def test_sampling_is_repeatable_and_greedy_equals_the_whole_forward_pass(
    run_folder: Path, gpt1: Program, program: Process
) -> None:
    def text(*arguments: str) -> str:
        done = gpt1("sample", "--checkpoint", str(run_folder), "--prompt", "The", *arguments)
        assert done.code == 0, done.err
        return done.out

    alone = program("sample", "--checkpoint", str(run_folder), "--prompt", "The", "--tokens", "60")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == text("--tokens", "60"), "past the context, too; in any process"
    assert text("--tokens", "20", "--seed", "3") == text("--tokens", "20", "--seed", "3")
    assert text("--tokens", "20", "--seed", "3") != text("--tokens", "20", "--seed", "4")
    kept = run_folder / "samples.jsonl"
    kept.rename(run_folder / "kept")
    kept.mkdir()  # as on a full or read-only disk: the text is there all the same
    done = gpt1("sample", str(run_folder), "--prompt", "The", "--tokens", "5")
    assert (done.code, bool(done.out)) == (0, True)
    assert done.err == f"{kept}: not kept for the run's report: Is a directory\n"
    kept.rmdir()
    (run_folder / "kept").rename(kept)
    model, tokenizer = gpt1_ds.load(str(run_folder))
    ids = [int(token) for token in tokenizer.encode("The")]
    start = len(ids)
    for _ in range(20):
        logits = model.logits(torch.tensor(ids).unsqueeze(1))[-1, 0]
        logits[[0, tokenizer.start_id, tokenizer.delimiter_id, tokenizer.extract_id]] = -torch.inf
        ids.append(int(logits.argmax()))
    assert text("--tokens", "20", "--temperature", "0") == "The" + tokenizer.decode(ids[start:]) + "\n"


def test_inspect_verify_and_report(run_folder: Path, gpt1: Program) -> None:
    assert "step 12" in gpt1("checkpoint", "inspect", str(run_folder)).out
    assert "as written" in gpt1("checkpoint", "verify", str(run_folder)).out
    assert gpt1("report", str(run_folder)).out == f"{run_folder}/report.html\n"
    page = (run_folder / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ), "the page needs no network"
    assert {path.suffix for path in (run_folder / "figures").iterdir()} == {".png", ".svg"}


def test_a_damaged_checkpoint_is_set_aside_out_loud(
    run_folder: Path, tmp_path: Path, tiny_data: Path, gpt1: Program
) -> None:
    shutil.copytree(run_folder, tmp_path / "runs" / "r")
    checkpoints = tmp_path / "runs" / "r" / "checkpoints"
    victim = next((checkpoints / "step-00000012" / "state").glob("*.safetensors"))
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    assert "sha256 does not match" in gpt1("checkpoint", "verify", "runs/r").err
    arguments = ["pretrain", *TINY, f"data.path={tiny_data}", "run.name=r", "train.steps=12", "--nproc", "2"]
    done = gpt1(*arguments)
    assert done.code == 0, done.err
    said = (tmp_path / "runs" / "r" / "logs" / "rank-0.log").read_text()
    assert "set aside as step-00000012.damaged-" in said
    assert "from step 10 of step-00000010" in said
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()
    before = (run_folder / "metrics.jsonl").read_text().splitlines()
    losses = [[json.loads(line)["loss"] for line in lines] for lines in (metrics, before)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_torchrun_starts_it_too(tiny_data: Path, tmp_path: Path) -> None:
    arguments = ["pretrain", *TINY, f"data.path={tiny_data}", "train.steps=4", "parallel.tensor=2"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "gpt1_ds",
        *arguments,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "runs" / "run" / "DONE").exists()


LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("isolated", "variables"), [([], LOCALE), (["-I"], LOCALE), ([], {"PYTHONIOENCODING": "ascii"})]
)
def test_a_locale_of_another_encoding_changes_nothing(isolated: list[str], variables: dict[str, str]) -> None:
    """-I ignores the variables of Python, and the program's own."""
    name = "checkpoints-and-huggingface"
    run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpt1_ds.__main__ import main; sys.exit(main())"
    command = [sys.executable, *isolated, *(["-X", "utf8=0"] if isolated else []), "-c", run, "guide", name]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip() == (ROOT / "gpt1_ds" / "guides" / f"{name}.md").read_bytes().strip()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(closed: str) -> None:
    """No file that is opened later gets their numbers."""
    run = "import os; from gpt1_ds.__main__ import main; raise SystemExit(main() or os.open(os.devnull, 0) < 3)"
    command = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", run, "guide", "concepts"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_an_interrupt_while_it_is_imported_is_one_line() -> None:
    early = "class Early:\n    def __getattr__(self, name):\n        raise KeyboardInterrupt\n"
    code = "import sys; from gpt1_ds import __main__ as program; sys.modules['gpt1_ds.cli'] = Early(); "
    command = [sys.executable, "-c", f"{early}{code}sys.exit(program.main())"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "gpt1-ds: interrupted\n")


@pytest.mark.parametrize(("variables", "line"), [({}, "gpt1-ds: terminated\n"), ({"RANK": "1"}, "")])
def test_a_termination_while_it_is_imported(variables: dict[str, str], line: str) -> None:
    """A rank of torchrun leaves the words to its launcher, and ends even where a library waits for other ranks.
    Others say it where standard error led: libraries load without one.
    """
    early = (
        "class Early:\n    def __getattr__(self, name):\n        os.close(2); os.kill(os.getpid(), 15); time.sleep(9)\n"
    )
    code = "import sys; from gpt1_ds import __main__ as program; sys.modules['gpt1_ds.cli'] = Early(); "
    command = [sys.executable, "-c", f"import os, time\n{early}{code}sys.exit(program.main())"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, line)


def test_a_split_that_holds_out_far_less_than_asked_is_said(tiny_data: Path, tmp_path: Path, gpt1: Program) -> None:
    for name, arguments in {"a": 4000, "b": 20}.items():
        (tmp_path / f"{name}.txt").write_text("a list of names is returned " * arguments)
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    build = ["data", "build", "--tokenizer", str(tiny_data.parent / "tokenizer"), "--workers", "1"]
    done = gpt1(*build, "--input", *files, "--out", "d", "--validation", "0.5")
    assert done.code == 0
    assert "--validation=0.5 holds out whole documents, which have 0." in done.err
    assert "holds out whole" not in gpt1(*build, "--input", files[0], "--out", "e", "--validation", "0.05").err
