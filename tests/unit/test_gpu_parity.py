"""What a contact compares of a GPU's run and a CPU's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tools.bench import gpu_contacts
from tools.gpu import parity
from tools.gpu.record import FORMAT, RESULTS, Contact

STEP = {"step": 1, "kind": "train", "loss": 6.0, "grad_norm": 2.0, "step_seconds": 1.0}
EVAL = {"step": 1, "kind": "eval", "loss": 5.0}


def found(folder: Path, *lines: dict[str, object]) -> dict[str, float]:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return dict(parity.numbers(folder))


def compared(folder: Path, *lines: dict[str, object]) -> list[tuple[str, bool, float | None, str]]:
    """What `compare` records of these lines beside STEP and EVAL."""
    contact = Contact(folder, folder, "cuda")
    contact.write("start", format=FORMAT, host="here", date="2026-12-01", device="cuda", tiny=True, budget=1.0)
    parity.compare(contact, "case", found(folder / "here", *lines), found(folder / "cpu", STEP, EVAL))
    checks = gpu_contacts.read(folder / RESULTS).of("check")
    return [(line["name"], line["ok"], line["value"], line["note"]) for line in checks]


def test_numbers_of_the_model_have_names_of_their_own(tmp_path: Path) -> None:
    watched = {**STEP, "gradient_norms": {"head": 0.5, "norms": 0.25}, "applied": True}
    scored = {"step": 2, "kind": "score", "name": "repeat", "metrics": {"log_probability": -3.0}}
    assert found(tmp_path, watched, EVAL, scored) == {
        "step 1 train loss": 6.0,
        "step 1 train grad_norm": 2.0,
        "step 1 train gradient_norms head": 0.5,
        "step 1 train gradient_norms norms": 0.25,
        "step 1 eval loss": 5.0,
        "step 2 score metrics log_probability": -3.0,
    }


@pytest.mark.parametrize(
    ("change", "losses", "other"),
    [
        ({}, True, True),
        ({"loss": 6.000009}, True, True),
        ({"loss": 6.000011}, False, True),
        ({"grad_norm": 2.0019}, True, True),
        ({"grad_norm": 2.0021}, True, False),
        ({"loss": None}, False, True),  # not a finite number
        ({"step": 2}, False, False),  # other steps
        ({"grad_norm": math.nan}, True, False),
    ],
)
def test_each_is_held_to_its_limit(change: dict[str, object], losses: bool, other: bool, tmp_path: Path) -> None:
    first, second = compared(tmp_path, {**STEP, **change}, EVAL)
    assert (first[0], first[1]) == ("case: losses from the CPU's", losses)
    assert (second[0], second[1]) == ("case: other numbers from the CPU's", other)


def test_the_worst_is_named(tmp_path: Path) -> None:
    (_, ok, value, note), _ = compared(tmp_path, STEP, {**EVAL, "loss": 5.5})
    assert (ok, value, note) == (False, 0.5, "step 1 eval loss")


def test_all_numbers_are_kept_where_one_is_too_far(tmp_path: Path) -> None:
    compared(tmp_path, STEP, {**EVAL, "loss": 5.5})
    kept = gpu_contacts.read(tmp_path / RESULTS).fact("contact", "case: losses here and on the CPU")
    assert kept == {"step 1 train loss": [6.0, 6.0], "step 1 eval loss": [5.5, 5.0]}


def test_the_last_lines_of_both_logs_are_kept(tmp_path: Path) -> None:
    contact = Contact(tmp_path, tmp_path, "cuda")
    halves = [tmp_path / "here", tmp_path / "cpu"]
    log = parity.RunDir(halves[0]).rank_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    parity._tell_logs(contact, "case", halves)
    here, cpu = map(json.loads, (tmp_path / RESULTS).read_text().splitlines())
    assert here["value"].splitlines() == [f"line {number}" for number in range(85, 100)]
    assert cpu["value"] == ""


def test_a_run_without_numbers_is_not_equal(tmp_path: Path) -> None:
    contact = Contact(tmp_path, tmp_path, "cuda")
    parity.compare(contact, "case", {}, {})
    assert [line["ok"] for line in map(json.loads, (tmp_path / RESULTS).read_text().splitlines())] == [False, False]


def test_in_bf16_losses_alone_are_held_to_a_wider_limit(tmp_path: Path) -> None:
    for loss, ok in ((6.0019, True), (6.0021, False)):
        contact = Contact(tmp_path, tmp_path, "cuda")
        (tmp_path / RESULTS).write_text("")
        parity.compare(
            contact, "case", found(tmp_path / "a", {**STEP, "loss": loss}), found(tmp_path / "b", STEP), True
        )
        lines = map(json.loads, (tmp_path / RESULTS).read_text().splitlines())
        (line,) = (line for line in lines if line["kind"] == "check")
        assert (line["name"], line["ok"]) == ("case: losses from the CPU's", ok)


def test_what_takes_too_long_or_fails_is_no_run(tmp_path: Path) -> None:
    typo = ["pretrain", "model.layerz=2"]
    assert parity.run(tmp_path / "runs" / "a-typo", "cpu", typo, 60) == 2
    assert parity.run(tmp_path / "runs" / "slow", "cpu", typo, 0.0) is None


def test_every_case_has_a_place_of_its_own() -> None:
    for group in parity.GROUPS.values():
        assert len({name.replace(" ", "-") for name in group}) == len(group)
