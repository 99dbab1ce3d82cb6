"""The search over layouts: only legal ones, all of them, and reasons for the others."""

import json
from dataclasses import replace

import pytest

from gpt1_ds.config import Config, load, world_problems
from gpt1_ds.config.validate import problems
from gpt1_ds.plan import report
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS
from gpt1_ds.plan.search import Ranking, divisors, layout_keys, layouts, search

H100 = PRESETS["h100"]


def gpt1(*words: str) -> Config:
    return load(["pretrain/gpt1_117m"], list(words))


def found(world: int, *words: str, gib: float = 78, machine: str = "h100") -> Ranking:
    return search(gpt1(*words), world, 40478, PRESETS[machine], int(gib * 2**30))


@pytest.mark.parametrize("world", [1, 2, 8, 12, 64])
def test_every_ranked_layout_may_run_and_fits(world: int) -> None:
    result = found(world, gib=3)
    assert result.ranked
    for one in result.ranked:
        assert not list(problems(one.config))
        assert not list(world_problems(one.config, world))
        assert one.memory.peak <= 3 * 2**30
    for one in result.ranked[::5]:  # reading a configuration takes most of the time
        again = gpt1(*one.overrides())
        assert again.parallel == one.config.parallel
        assert again.train == one.config.train
    steps = [one.cost.step for one in result.ranked]
    assert steps == sorted(steps)


def test_the_layouts_of_two_ranks_by_hand() -> None:
    words = ["train.global_batch=2", "train.micro_batch=1", "train.precision=fp32", "model.attention=fused"]
    result = found(2, *words)
    seen = {
        (one.values["tensor"], one.values["pipeline"], one.values["zero"], one.values["micro_batch"])
        for one in result.ranked
    }
    data = {(1, 1, zero, 1) for zero in range(4)}
    tensor = {(2, 1, zero, micro) for zero in range(4) for micro in (1, 2)}  # each with and without sequence
    pipeline = {(1, 2, 1, micro) for micro in (1, 2)}
    assert seen == data | tensor | pipeline
    assert len(result.ranked) == 4 + 2 * 8 + 2 == result.total


def test_gpt1_on_eight_gpus_never_shares_matrices_and_says_why() -> None:
    for machine in ("h100", "h200", "a100"):
        result = found(8, machine=machine)
        assert result.ranked[0].values["tensor"] == 1
        line = next(line for line in result.losers() if line.startswith("tensor 2:"))
        assert "slower" in line
        assert "reductions between tensor-parallel ranks" in line


def test_a_model_that_does_not_fit_alone_is_shared() -> None:
    words = ["model.layers=40", "model.width=5120", "model.heads=40", "model.context=2048", "train.global_batch=512"]
    result = found(8, *words, gib=32)
    assert result.too_large
    assert all(one.memory.peak > result.limit for one in result.too_large)
    assert result.ranked[0].values["tensor"] == 4
    lines = list(result.losers())
    assert any(line.startswith("tensor 1: does not fit: ") for line in lines)
    assert any(line.startswith("zero 3: does not fit: ") for line in lines)


def test_what_is_not_legal_is_counted_with_its_reason() -> None:
    result = found(8)
    assert sum(result.refused.values()) == 84
    (reason,) = result.refused
    assert reason.startswith("parallel.tensor=8 does not divide model.heads=12")


def test_gpus_compile_unless_the_configuration_says_no() -> None:
    result = found(8)
    best = result.ranked[0]
    values = {(one.config.parallel.zero, one.config.train.compile) for one in result.ranked}
    assert values == {(1, "on"), (2, "on"), (3, "off")}, "ZeRO 3 frees weights inside a block"
    assert {one.config.train.compile for one in found(8, "parallel.zero=3").ranked} == {"on", "off"}
    assert {one.config.train.compile for one in found(8, "train.compile=on").ranked} == {"on"}
    assert "train.compile=on" in best.overrides()
    assert {"micro_batch", "recompute", "compile"} <= set(layout_keys(best.config)["train"])
    assert any(line.startswith("compile off: ") and "slower" in line for line in result.losers())
    eager = found(8, "train.compile=off")
    assert {one.config.train.compile for one in eager.ranked} == {"off"}
    assert eager.ranked[0].cost.step > best.cost.step
    assert not any(line.startswith("compile") for line in eager.losers())
    cpu = found(2, "train.precision=fp32", machine="cpu")
    assert {one.config.train.compile for one in cpu.ranked} == {"auto"}
    assert not any("compile" in word for word in cpu.ranked[0].overrides())


def test_micro_batch_and_recomputation_follow_the_memory() -> None:
    words = ["train.global_batch=512"]

    def proposed(gib: float) -> tuple[object, ...]:
        best = found(8, *words, gib=gib).ranked[0]
        assert {"train.micro_batch", "train.recompute", "train.compile"} <= {
            word.split("=")[0] for word in best.overrides()
        }
        return tuple(best.values[axis] for axis in ("micro_batch", "recompute", "compile"))

    ample, tight, scarce = proposed(78), proposed(8), proposed(1.5)
    assert ample == (64, "none", "on")
    assert tight[1:] == ("none", "on")
    assert tight[0] < 64, "fewer sequences at a time fit"
    assert scarce[1:] == ("block", "on")
    lines = list(found(8, *words, gib=1.5).losers())
    assert any(line.startswith("recompute none: ") for line in lines)
    assert any(line.startswith("micro_batch ") for line in lines)


def test_a_pipeline_may_have_a_stage_for_each_block_of_both_stacks() -> None:
    six = load([], ["model.kind=encoder_decoder", "model.norm=pre", "model.layers=6", "objective.kind=spans"])
    assert {one.parallel.pipeline for one in layouts(six, 8, H100)} == {1, 2, 4, 8}


def test_a_thousand_gpus_are_a_bounded_number_of_layouts() -> None:
    result = found(1024, "train.global_batch=4096")
    assert 100 < result.total < 1000, "it is counted, not timed: each takes about 0.3 ms"
    assert max(one.values["tensor"] for one in result.ranked) <= H100.ranks_per_node
    large = load([], ["model.layers=96", "model.width=12288", "model.heads=96", "train.global_batch=1536"])
    assert sum(1 for _ in layouts(large, 1024, H100)) < 4000


def test_nothing_fits() -> None:
    result = found(1, gib=0.5)
    assert not result.ranked
    assert not list(result.losers())
    text = "\n".join(report.search_lines(result))
    assert "nothing fits; least:" in text


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
    for number in range(1, 200):
        every = [n for n in range(1, number + 1) if number % n == 0]
        assert divisors(number) == every
        for most in range(1, 30):
            assert divisors(number, most) == [n for n in every if n <= most]


def test_the_search_does_not_grow_with_the_world() -> None:
    many = divisors(10**18, 8), sum(1 for _ in layouts(gpt1(), 10**18, H100))
    assert many == ([1, 2, 4, 5, 8], sum(1 for _ in layouts(gpt1(), 10**9, H100)))


def test_the_written_layout_is_a_configuration(tmp_path) -> None:  # type: ignore[no-untyped-def]
    best = found(64, "model.layers=48", "model.width=4096", "model.heads=32", "train.global_batch=512").ranked[0]
    path = tmp_path / "best.yaml"
    path.write_text(report.layout_yaml(best, H100))
    config = load(["pretrain/gpt1_117m", str(path)])
    assert config.parallel == best.config.parallel
    assert (config.train.micro_batch, config.train.recompute) == (best.values["micro_batch"], best.values["recompute"])


def test_the_slurm_request() -> None:
    assert report.request_overrides(512, H100) == ["slurm.nodes=64", "slurm.gpus_per_node=8"]
    assert report.request_overrides(4, H100) == ["slurm.nodes=1", "slurm.gpus_per_node=4"]


def test_numbers_survive_json() -> None:
    best = found(8).ranked[0]
    raw = json.loads(json.dumps(report.as_json(best.config, [best.memory], best.cost, 8)))
    assert raw["layout"]["data"] * raw["layout"]["tensor"] * raw["layout"]["pipeline"] == 8
    assert raw["memory"][0]["peak"] == max(raw["memory"][0]["instants"].values())
    assert raw["cost"]["step"] == pytest.approx(best.cost.step)


def test_a_slow_link_makes_sharing_matrices_dearer() -> None:
    slow = replace(H100, node=replace(H100.node, bandwidth=H100.node.bandwidth / 10))
    config = gpt1("parallel.tensor=2", "train.micro_batch=16")
    assert 6 < cost(config, 8, 40478, slow).tensor / cost(config, 8, 40478, H100).tensor < 10
