"""Step time and bytes on the wire against hand-made arithmetic."""

import pytest

from gpt1_ds.config import Config, load
from gpt1_ds.plan.cost import Cost, all_reduce, cost, gather
from gpt1_ds.plan.machine import PRESETS, Link

H100 = PRESETS["h100"]


def gpt1(*words: str) -> Config:
    return load(["pretrain/gpt1_117m"], ["train.micro_batch=8", *words])


def at(world: int, *words: str) -> Cost:
    return cost(gpt1(*words), world, 40478, H100)


def test_collectives_by_hand() -> None:
    link = Link(latency=1e-3, bandwidth=100.0)
    assert gather(800, 4, link) == pytest.approx(2e-3 + 6.0)
    assert all_reduce(800, 4, link) == pytest.approx(4e-3 + 12.0)
    assert all_reduce(800, 1, link) == 0


def test_one_rank_sends_nothing_and_waits_for_nobody() -> None:
    found = at(1)
    assert (found.tensor_bytes, found.pipeline_bytes, found.data_bytes, found.bubble) == (0, 0, 0, 0)
    assert found.reduction == 0


def test_data_parallel_bytes_by_hand() -> None:
    parameters = 116_610_048
    assert at(8).data_bytes == pytest.approx(parameters * 7 / 8 * (2 * 4 + 2)), "fp32 gradients, bf16 weights"
    assert at(8, "parallel.zero=3").data_bytes == pytest.approx(parameters * 7 / 8 * (2 + 2 + 4))
    twice = at(8, "parallel.zero=3", "train.micro_batch=4")
    assert twice.data_bytes == pytest.approx(2 * at(8, "parallel.zero=3").data_bytes)


def test_tensor_parallel_bytes_by_hand() -> None:
    found = at(2, "parallel.tensor=2", "train.micro_batch=64")
    state = 64 * 512 * 768 * 2
    # two reductions per block and pass, one of the embedding, one of the head's gradient; a ring sends 2 (t - 1) / t
    assert found.tensor_bytes == (12 * 2 * 2 + 2) * state
    assert at(2, "parallel.tensor=2", "train.recompute=block").tensor_bytes > found.tensor_bytes


def test_pipeline_bytes_by_hand() -> None:
    found = at(2, "parallel.pipeline=2", "train.micro_batch=8")
    assert found.pipeline_bytes == 8 * 2 * (8 * 512 * 768 * 2)


def test_the_bubble_of_even_stages_is_the_known_one() -> None:
    def bubble(pipeline: int, micro_batches: int) -> float:
        words = ["model.layers=24", "model.vocab_size=2", "model.vocab_multiple=1", f"parallel.pipeline={pipeline}"]
        config = gpt1(*words, f"train.micro_batch={64 // micro_batches}")
        return cost(config, pipeline, 2, H100).bubble

    for pipeline, micro_batches in ((2, 4), (2, 16), (4, 8), (4, 32)):
        known = (pipeline - 1) / (micro_batches + pipeline - 1)
        assert bubble(pipeline, micro_batches) == pytest.approx(known, abs=0.04)


def test_recomputation_costs_a_forward_pass() -> None:
    plain, again = at(1), at(1, "train.recompute=block")
    assert plain.backward < again.backward < plain.backward + plain.forward


def test_tokens_per_second_and_the_share_of_the_peak_belong_together() -> None:
    found = at(8)
    assert found.tokens_per_second == pytest.approx(64 * 512 / found.step)
    assert found.mfu == pytest.approx(found.tokens_per_second * 752_753_664 / (8 * 989.4e12))
    assert found.step == found.pipeline + found.reduction + found.update


def test_more_data_ranks_never_slow_a_step_of_the_same_batch_per_rank() -> None:
    steps = [at(world, f"train.global_batch={8 * world}").step for world in (1, 8, 64, 512)]
    assert steps == sorted(steps), "communication only adds"
    assert steps[-1] < 1.5 * steps[1], "and hardly grows beyond the first node"


def test_a_group_that_spans_nodes_uses_every_members_port() -> None:
    assert H100.link(8) == H100.node
    assert H100.link(16).bandwidth == min(H100.node.bandwidth, 8 * H100.network.bandwidth)
    assert H100.link(16, stride=8).bandwidth == H100.network.bandwidth


def test_ranks_beyond_the_measured_ones_share_the_cores() -> None:
    cpu = PRESETS["cpu"]
    two, eight = cpu.speeds_with("fp32", 2), cpu.speeds_with("fp32", 8)
    assert eight.product(1e10) == pytest.approx(4 * two.product(1e10))
    assert eight.stream == pytest.approx(two.stream / 4)


def test_products_between_measured_sizes() -> None:
    speeds = H100.speeds_with("bf16", 8)
    rates = [size / speeds.product(size) for size in (1e8, 1e9, 3e9, 1e10, 5e11, 1e15)]
    assert rates[0] == pytest.approx(rates[1])
    assert rates[1:] == sorted(rates[1:])
    assert rates[-1] == speeds.gemm[-1][1]
