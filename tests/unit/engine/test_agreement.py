"""What ranks compare before they compute, and how a difference is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore

from gpt1_ds.common.errors import ConfigError, WorldError
from gpt1_ds.config import Config, load
from gpt1_ds.engine import agreement
from gpt1_ds.engine.agreement import compare, digest, facts, first_difference, same_start


def told(*values: str | None, hosts: list[str] | None = None) -> str | None:
    found = [{"seed": "1", **({} if value is None else {"optimizer.lr": value}), "name": "x"} for value in values]
    return first_difference(found, hosts or ["a"] * len(values), lambda _: "do so")


@pytest.mark.parametrize(
    ("values", "hosts", "line"),
    [
        (["1", "2"], None, "1 on rank 0, 2 on rank 1"),
        (["1", "2", "1", "2"], ["a", "b", "a", "b"], "1 on ranks 0, 2 (host a), 2 on ranks 1, 3 (host b)"),
        (["1", "2", "2", "2"], ["a", "a", "b", "b"], "1 on rank 0 (host a), 2 on ranks 1-3 (hosts a, b)"),
        (["1", "2", "3"], None, "1 on rank 0, 2 on rank 1, 3 on rank 2"),
        (["1", None], None, "1 on rank 0, nothing on rank 1"),
        (["", "a\nb"], None, "'' on rank 0, a\\nb on rank 1"),
        (
            ["1"] * 1000 + ["2"] * 24,
            [f"n{rank // 8}" for rank in range(1024)],
            "1 on ranks 0-999 (hosts n0, n1, n2 and others), 2 on ranks 1000-1023 (hosts n125, n126, n127)",
        ),
    ],
)
def test_a_difference_names_key_values_ranks_and_hosts(
    values: list[str | None], hosts: list[str] | None, line: str
) -> None:
    assert told(*values, hosts=hosts) == f"optimizer.lr: {line}; do so"


def test_equal_facts_have_no_difference() -> None:
    assert told("1", "1", "1") is None


def test_long_values_are_cut_and_further_keys_named() -> None:
    found = [{f"key{number}": f"{number}{'x' * 500}{rank}" for number in range(6)} for rank in range(2)]
    line = first_difference(found, ["a", "a"], lambda _: "do so") or ""
    assert line.startswith("key0: 0xxx")
    assert "x0 on rank 0" in line
    assert "(5 more differ: key1, key2, key3, ...)" in line
    assert len(line) < 500


def test_every_key_of_the_configuration_is_compared_but_those_that_may_differ() -> None:
    config = load(["pretrain/gpt1_117m"], ["data.path=[{path: a, weight: 2}, {path: b}]", "slurm.environment={A: b}"])
    found = facts(config, "cpu", {"checkpoints": [Path("x"), Path("y")]})
    assert list(found)[:7] == ["python", *agreement.PACKAGES, "gpt1-ds", "device"]
    assert (found["data.path.0.path"], found["data.path.1.weight"], found["slurm.environment.A"]) == ("a", "1.0", "b")
    assert (found["checkpoints.0"], found["checkpoints.1"]) == ("x", "y")
    assert "train.micro_batch" not in found
    missing = {
        f"{section}.{key}"
        for section, values in vars(Config()).items()
        if hasattr(values, "__dict__")
        for key in vars(values)
        if not any(name == f"{section}.{key}" or name.startswith(f"{section}.{key}.") for name in found)
    }
    assert missing == set(agreement.MAY_DIFFER)


@pytest.mark.parametrize("changed", ["probes=[{name: lambada, path: x}]", "task.name=cola", "run.seed=9"])
def test_sections_that_are_there_on_one_rank_alone_differ(changed: str) -> None:
    task = ["task.path=x", "checkpoint.init_from=y"] if changed.startswith("task") else []
    both = [facts(load([], arguments), "cpu", {}) for arguments in ([], [changed, *task])]
    assert changed.partition(".")[0].partition("=")[0] in (first_difference(both, ["a", "a"], same_start) or "")


def test_only_hashes_are_sent_where_all_are_the_same() -> None:
    store = HashStore()
    ranks = [threading.Thread(target=compare, args=(store, rank, 3, {"a": "1"})) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(20)
    assert not any(rank.is_alive() for rank in ranks)
    assert store.check(["hash 0", "hash 1", "hash 2"])
    assert not store.check(["facts 0"])


def refusals(told: Sequence[tuple[int, dict[str, str]]]) -> list[tuple[str, bool]]:
    """What ranks are told that compare their (world, facts), and whether all of them are."""
    store, raised = HashStore(), []

    def rank(number: int) -> None:
        with pytest.raises(ConfigError) as error:
            compare(store, number, *told[number])
        raised.append((str(error.value), error.value.on_all_ranks))

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(len(told))]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(20)
    return raised


def test_all_ranks_raise_the_same_line() -> None:
    raised = refusals([(3, {"train.steps": str(number // 2)}) for number in range(3)])
    line = "train.steps: 0 on ranks 0-1, 1 on rank 2; start all ranks with the same arguments and configuration"
    assert raised == [(line, True)] * 3


def test_ranks_of_other_worlds_differ() -> None:
    """As hosts on which a person exports the variables; the smaller world waited for the larger one, for ever."""
    raised = refusals([(2, {"a": "1"}), (3, {"a": "1"})])
    line = "WORLD_SIZE: 2 on rank 0, 3 on rank 1; start all ranks with the same arguments and configuration"
    assert raised == [(line, True)] * 2


def test_ranks_that_do_not_come_are_named() -> None:
    """Their host's torchrun has ended, and this one's does not know it; or two hosts have the same number."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    store.set("hash 1", "")
    with pytest.raises(WorldError, match=r"^ranks 2-3 of 4 did not come: see what their launcher said on the other"):
        compare(store, 0, 4, {"a": "1"})


def test_a_digest_knows_where_parts_end() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"ab", b"c"]) == digest(iter([b"ab", b"c"]))
