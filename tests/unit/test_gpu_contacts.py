"""The files of contacts with GPUs that users sent, and their goals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpt1_ds.common.errors import DataError
from tests.helpers.contacts import begun
from tools.bench import gpu_contacts
from tools.gpu.record import Contact

ROOT = Path(__file__).parents[2]


@pytest.fixture
def contact(tmp_path: Path) -> Contact:
    return begun(tmp_path, host="node 1")


def written(contact: Contact) -> gpu_contacts.Results:
    return gpu_contacts.read(contact.out / "results.jsonl")


def row(results: gpu_contacts.Results, goal: str) -> str:
    (found,) = (line for line in gpu_contacts.table(results).splitlines() if line.startswith(f"| {goal} |"))
    return found.removeprefix(f"| {goal} ")


def test_goals_that_were_not_measured(contact: Contact) -> None:
    lines = gpu_contacts.table(written(contact)).splitlines()
    assert sum("| not measured |" in line for line in lines) == len(gpu_contacts.GOALS)


def test_ratios_have_the_spread_that_their_series_allow(contact: Contact) -> None:
    facts = {"flops_per_token": 10**9, "allocated_gib": 15.0, "planned_gib": 14.5, "first_loss": 10.61}
    contact.of("step").series("ours", "tokens/s", [600e3, 610e3, 590e3], **facts)
    contact.of("plain_compiled").series("plain, compiled", "tokens/s", [400e3, 500e3, 410e3], first_loss=10.62)
    contact.of("transformers").series("transformers", "tokens/s", [1e5, 1e5, 1e5], first_loss=10.7)
    contact.of("environment").fact("device", "NVIDIA H100 80GB HBM3")
    contact.of("ceilings").series("bf16 product", "TFLOP/s", [700.0, 800.0, 750.0])
    results = written(contact)
    both = row(results, "ours / plain PyTorch with SDPA, both compiled")
    assert both == "| >= 1.25 | 1.46 (1.18 to 1.52) | reached |"
    assert row(results, "ours, tokens/s") == "| >= 560,000 | 600,000 (590,000 to 610,000) | reached |"
    assert row(results, "ours, share of the measured product ceiling").startswith("| >= 0.45 | 0.8 (")
    assert row(results, "memory / plan") == "| 0.95 to 1.05 | 1.03 | reached; 15.00 GiB, planned 14.50 |"
    unlike = row(results, "ours / transformers, bf16 autocast")
    assert unlike.endswith("| they compute something else: first losses 0.09 apart |"), "no ratio of unlike work counts"


def test_a_ratio_takes_the_faster_form_and_says_whose_rows_are_fewer(contact: Contact) -> None:
    contact.of("step").series("ours", "tokens/s", [600e3] * 3, rows=64)
    contact.of("plain_compiled").series("plain, compiled", "tokens/s", [300e3] * 3, rows=64)
    contact.of("plain_compiled").series("plain, compiled, fp32 masters", "tokens/s", [400e3] * 3, rows=32)
    both = row(written(contact), "ours / plain PyTorch with SDPA, both compiled")
    assert both == "| >= 1.25 | 1.5 | reached; 64 rows beside 32 |"


def test_tokens_per_second_are_a_goal_of_an_h100_alone(contact: Contact) -> None:
    contact.of("environment").fact("device", "NVIDIA H200")
    contact.of("step").series("ours", "tokens/s", [500e3] * 3)
    assert row(written(contact), "ours, tokens/s") == "|  | 500,000 |  |"


def test_promises_count_when_all_of_their_checks_are_there(contact: Contact) -> None:
    losses = contact.of("losses")
    losses.check("losses, bf16: from the CPU's", True, 1e-3, 2e-3)
    assert "not measured" in row(written(contact), "20 losses from the CPU's, bf16")
    losses.check("losses, bf16, 2 micro-batches: from the CPU's", False, 3e-3, 2e-3)
    assert (
        row(written(contact), "20 losses from the CPU's, bf16") == "| <= 2e-3 | 0.003 (0.001 to 0.003) | falls short |"
    )
    contact.of("step").fact("graphs", {"count": 0, "problem": "rank 0: no | such\nthing"})
    graphs = row(written(contact), "CUDA graphs with the bits of ordinary passes")
    assert graphs == "| >= 1 | 0 | falls short; rank 0: no / such thing |"


def test_what_failed_is_listed(contact: Contact) -> None:
    contact.of("t5").failed(ValueError("no such kernel"))
    contact.of("doctor").write("skipped", reason="3 s of the budget were left")
    contact.of("profile").write("end", outcome="killed by SIGKILL", phase_seconds=2.0)
    lines = gpu_contacts.table(written(contact)).splitlines()
    assert "failed in t5: ValueError: no such kernel" in lines
    assert "skipped: doctor: 3 s of the budget were left" in lines
    assert "profile: killed by SIGKILL" in lines


def test_a_line_that_was_cut_short_is_left_out(contact: Contact) -> None:
    path = contact.out / "results.jsonl"
    whole = len(written(contact).lines)
    path.write_bytes(path.read_bytes() + b'{"phase": "step", "sec')
    assert len(written(contact).lines) == whole


def changed(**facts: Any) -> bytes:
    series = {"phase": "x", "seconds": 1.0, "kind": "series", "name": "a", "unit": "ms", "values": [1.0]}
    return json.dumps({**series, **facts}).encode() + b"\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80 no text\n", "UnicodeDecodeError"),
        (b"[" * 10_000 + b"\n", "nested too deeply"),
        (b"[[],[]]\n", "of no kind"),
        (b'{"kind": "made up"}\n', "of no kind"),
        (b'{"kind": ["series"]}\n', "unhashable"),
        (changed(phase=3), "has no phase"),
        (changed(values=[]), "series without figures above 0"),
        (changed(values=[-1.0]), "series without figures above 0"),
        (changed(values=["1"]), "series without figures above 0"),
        (changed(values=[float("nan")]), "series without figures above 0"),
        (changed(kind="check", ok=True, note="", value="1"), "check whose figures are none"),
        (b'{"phase": "x", "seconds": 1, "kind": "start", "host": "a"}\n', "has no format"),
        (changed() * (gpu_contacts.MOST_LINES + 1), "more than 10000 lines"),
        (b" " * (gpu_contacts.MOST_BYTES + 1), f"more than {gpu_contacts.MOST_BYTES} bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_of_somebody_else(contact: Contact, data: bytes, problem: str) -> None:
    path = contact.out / "results.jsonl"
    path.write_bytes(path.read_bytes() + data)
    with pytest.raises(DataError, match=r"results\.jsonl: not a contact's results") as caught:
        gpu_contacts.read(path)
    assert len(caught.value.problems) == 1
    assert problem in str(caught.value) or problem == "UnicodeDecodeError"


def test_a_terminal_obeys_nothing(contact: Contact) -> None:
    contact.of("\x1b[2J").series("a\nb", "\x1b]0;title\x07", [1.0])
    assert "\x1b" not in gpu_contacts.table(written(contact))


def test_files_are_kept_under_their_host_and_date(contact: Contact, tmp_path: Path) -> None:
    assert gpu_contacts.tables(tmp_path) == gpu_contacts.NONE_YET + "\n"
    name = gpu_contacts.file_name(written(contact))
    assert name == "gpu-contact-node_1-2026-12-01.jsonl"
    (contact.out / "results.jsonl").rename(tmp_path / name)
    assert gpu_contacts.tables(tmp_path).startswith(f"{name}: cuda on node 1, 2026-12-01")


def test_the_program_renders_a_file(contact: Contact, tmp_path: Path) -> None:
    def run(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, ROOT / "tools/gpu/table.py", path], capture_output=True, text=True)

    done = run(contact.out / "results.jsonl")
    assert (done.returncode, done.stdout) == (0, gpu_contacts.table(written(contact)))
    done = run(tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
