"""Phases of a contact: whatever one does costs only itself, and each has its line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tools.bench import gpu_contacts
from tools.gpu import runner
from tools.gpu.record import FORMAT, LOG, Contact
from tools.gpu.runner import Phase


@pytest.fixture
def contact(tmp_path: Path) -> Contact:
    contact = Contact(tmp_path, tmp_path, "cuda")
    contact.write("start", format=FORMAT, host="here", date="2026-12-01", device="cuda", tiny=True, budget=1.0)
    (tmp_path / LOG).write_text("")
    return contact


def hang(contact: Contact) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    contact.fact("child", child.pid)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))  # as a program in a driver's call
    time.sleep(60)


def kill(contact: Contact) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(contact: Contact) -> None:
    contact.fact("started", True)
    raise ValueError("no such kernel")


def work(contact: Contact) -> None:
    print("said to the log")
    contact.check("it works", True, 0, 0)


def outcomes(contact: Contact) -> dict[str, str]:
    results = gpu_contacts.read(contact.out / "results.jsonl")
    return {
        line["phase"]: line.get("outcome") or line["reason"]
        for line in results.lines
        if line["kind"] in ("end", "skipped")
    }


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_phase_costs_only_itself(contact: Contact) -> None:
    phases = [Phase("hangs", 2, hang), Phase("is killed", 9, kill), Phase("raises", 9, leave), Phase("works", 9, work)]
    assert runner.run(phases, contact, 60) is None
    assert outcomes(contact) == {
        **{"hangs": "timed out after 2 s", "is killed": "killed by SIGKILL", "raises": "failed", "works": "done"}
    }
    results = gpu_contacts.read(contact.out / "results.jsonl")
    (failed,) = results.of("failed")
    assert failed["error"] == "ValueError: no such kernel"
    assert "in leave" in failed["trace"]
    assert not is_running(results.fact("hangs", "child")), "what it started has gone with it"
    log = (contact.out / LOG).read_text()
    assert "in hang" in log, "where it hangs"
    assert log.index("=== works") < log.index("said to the log")


def test_a_program_says_where_it_is(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside the phase that has started it, which does so, too."""

    def wait(words: list[str]) -> int:
        time.sleep(60)
        return 0

    def start(contact: Contact) -> None:
        process = runner.program(["pretrain"], contact.work, slow=0.3)
        process.join(2)
        process.kill()
        time.sleep(60)

    monkeypatch.setattr("gpt1_ds.cli.main", wait)
    runner.run([Phase("starts", 4, start)], contact, 60)
    log = (contact.out / LOG).read_text()
    assert "in wait" in log
    assert "in start" in log


def test_a_traceback_is_long_and_in_the_log(contact: Contact) -> None:
    def deep(contact: Contact) -> None:
        raise ValueError("x" * 100_000)

    runner.run([Phase("raises", 9, deep)], contact, 60)
    (failed,) = gpu_contacts.read(contact.out / "results.jsonl").of("failed")
    assert 19_000 < len(failed["trace"]) < 20_100
    assert "in deep" in (contact.out / LOG).read_text()


def test_a_phase_that_decides_and_is_slow_ends_nothing(contact: Contact) -> None:
    assert runner.run([Phase("hangs", 1, hang, decides=True), Phase("works", 9, work)], contact, 60) is None
    assert outcomes(contact) == {"hangs": "timed out after 1 s", "works": "done"}


def test_what_a_later_contact_may_answer(contact: Contact) -> None:
    from tools.gpu.contact import unanswered

    contact.of("step").write("end", outcome="timed out after 110 s", phase_seconds=110.0)
    contact.of("t5").write("skipped", reason="3 s of the budget were left")
    contact.of("doctor").write("skipped", reason="it needs a GPU")
    contact.of("losses").write("end", outcome="done", phase_seconds=1.0)
    assert unanswered(contact) == ["step", "t5"]


def test_failures_of_tests_are_printed_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import os\ndef test_a(): assert 1 == 2\ndef test_b(): os._exit(9)\n")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        "tools.gpu.failures",
        "test_it.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "assert 1 == 2" in done.stdout, "although nothing came to an end"


def test_a_budget_that_is_spent(contact: Contact) -> None:
    runner.run([Phase("late", 9, work)], contact, 5)
    assert outcomes(contact)["late"].endswith("s of the budget were left")


def test_what_needs_a_gpu_says_so_on_a_cpu(contact: Contact) -> None:
    on_cpu = Contact(contact.out, contact.work, "cpu")
    runner.run([Phase("gpu", 9, work, needs_cuda=True)], on_cpu, 60)
    assert outcomes(contact) == {"gpu": "it needs a GPU"}


def test_a_phase_that_decides_ends_the_contact(contact: Contact) -> None:
    phases = [Phase("raises", 9, leave, decides=True), Phase("works", 9, work)]
    assert runner.run(phases, contact, 60) == "raises"
    assert outcomes(contact) == {"raises": "failed", "works": "raises failed"}


def test_a_log_keeps_its_beginning_and_its_end(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOG_BYTES", 1000)

    def chatter(contact: Contact) -> None:
        print("first", "x" * 100_000, "done")

    runner.run([Phase("chatters", 9, chatter), Phase("works", 9, work)], contact, 60)
    log = (contact.out / LOG).read_text()
    assert len(log) < 1200
    places = [log.index(word) for word in ("first", "[...]", " done", "=== works")]
    assert places == sorted(places)


def test_a_line_of_the_results_is_bounded_and_strict(contact: Contact) -> None:
    contact.fact("long", "x" * 100_000)
    contact.fact("numbers", [float("nan"), float("inf"), 1.5, True, None, {"a": Path("b")}])
    results = gpu_contacts.read(contact.out / "results.jsonl")
    assert len(results.fact("contact", "long")) < 5000
    assert results.fact("contact", "numbers") == [None, None, 1.5, True, None, {"a": "b"}]


def test_fewer_rows_where_memory_runs_out(contact: Contact) -> None:
    from torch import OutOfMemoryError

    from tools.gpu.training import with_rows

    asked = []

    def measure(rows: int, fit: int) -> None:
        asked.append(rows)
        if rows > fit:
            raise OutOfMemoryError("no memory")

    with_rows(contact, 64, partial(measure, fit=40))
    assert asked == [64, 32]
    assert gpu_contacts.read(contact.out / "results.jsonl").fact("contact", "out of memory, rows") == 64
    with pytest.raises(RuntimeError, match="out of memory even with 16 rows"):
        with_rows(contact, 64, partial(measure, fit=1))
