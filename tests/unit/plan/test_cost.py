"""Step time and bytes on the wire against hand-made arithmetic."""

import math
from dataclasses import replace

import pytest

from gpt1_ds.architecture.count import parameters
from gpt1_ds.architecture.layer import padded
from gpt1_ds.config import Config, load
from gpt1_ds.plan.communication import Communication, overlaps
from gpt1_ds.plan.cost import Cost, all_reduce, cost, gather
from gpt1_ds.plan.machine import PRESETS, Link, Speeds
from gpt1_ds.plan.stages import LIVE_LIMIT, stages

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
    assert at(8, "train.precision=fp16").data_bytes == pytest.approx(parameters * 7 / 8 * (2 * 2 + 2)), "fp16 gradients"
    assert at(8, "parallel.zero=2", "train.micro_batch=4").data_bytes == pytest.approx(parameters * 7 / 8 * (2 * 8 + 2))
    assert at(8, "parallel.zero=3").data_bytes == pytest.approx(parameters * 7 / 8 * (2 + 4)), (
        "gathered for both passes"
    )
    small = 12 * 13 * 768  # biases and norms: gathered once a step
    twice = at(8, "parallel.zero=3", "train.micro_batch=4").data_bytes
    assert twice == pytest.approx(7 / 8 * (2 * (2 + 4) * parameters - 2 * small))


def test_zero_3_gathers_twice_what_it_may_not_keep() -> None:
    words = ["model.layers=40", "model.width=5120", "model.heads=40", "model.context=2048", "parallel.zero=3"]
    found, held = at(64, *words, "train.micro_batch=1"), parameters(gpt1(*words).model, padded(40478, 128, 1))
    assert found.data_bytes == pytest.approx(held * 63 / 64 * (2 + 2 + 4) - 2 * LIVE_LIMIT, rel=1e-3)


def test_tensor_parallel_bytes_by_hand() -> None:
    found = at(2, "parallel.tensor=2", "train.micro_batch=64")
    state = 64 * 512 * 768 * 2
    loss = 3 * 64 * 512 * 4
    # two reductions per block and pass, one of the embedding, one of the head's gradient; a ring sends 2 (t - 1) / t
    assert found.tensor_bytes == (12 * 2 * 2 + 2) * state + loss
    # halves of reductions: one more for the inputs of products, twice a block, and for the gradient of the embedding
    whole = 12 * 6 * 768 + 512 * 768  # of norms, biases behind rows, and positions: their gradients, in bf16
    sequence = at(2, "parallel.tensor=2", "train.micro_batch=64", "parallel.sequence=true")
    assert sequence.tensor_bytes == (12 * 2 * 2 + 2 + 12 * 2 / 2 + 1 / 2) * state + loss + 2 * whole
    assert at(2, "parallel.tensor=2", "train.recompute=block").tensor_bytes > found.tensor_bytes


def test_tensor_parallel_bytes_of_two_stacks_and_of_masked_tokens_by_hand() -> None:
    """As the ranks of an engine send them, less four bytes of the norm."""
    small = ["model.width=32", "model.context=32", "train.global_batch=2", "train.micro_batch=2", "parallel.tensor=2"]
    two = ["model.kind=encoder_decoder", "model.norm=pre", "objective.kind=spans", "objective.sentinels=20"]
    config = load([], [*small, *two])
    source, target = (2 * 32 * 4 * positions for positions in config.row.stacks)
    encoder, decoder, cross = 2 * 2 * 2 * source, 2 * 2 * 3 * target, 2 * source  # the gradient of what it reads
    ends = source + target + target + 3 * 4 * 2 * config.row.predicted
    assert Communication(config, 2).sent(stages(config, 500)[0]).tensor == encoder + decoder + cross + ends == 118976
    masked = load([], [*small, "objective.kind=masked", "model.mask=bidirectional", "model.head=masked"])
    assert masked.row.predicted == 5
    assert Communication(masked, 2).sent(stages(masked, 500)[0]).tensor == 10 * source + 3 * 4 * 2 * 5 == 82040


def test_pipeline_bytes_by_hand() -> None:
    found = at(2, "parallel.pipeline=2", "train.micro_batch=8")
    state, facts, tied = 8 * 512 * 768 * 2, 8 * 24, 4 * padded(40478, 128, 1) * 768
    assert found.pipeline_bytes == 8 * (state + facts) + tied, "an end has one neighbour"
    assert at(4, "parallel.pipeline=4").pipeline_bytes == max(8 * (state + facts) + tied, 8 * (2 * state + facts))
    words = ["parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true"]
    assert at(4, *words).pipeline_bytes == 8 * (state / 2 + facts) + tied / 2


def test_the_bubble_of_even_stages_is_the_known_one() -> None:
    def bubble(pipeline: int, micro_batches: int) -> float:
        words = ["model.layers=24", "model.vocab_size=2", "model.vocab_multiple=1", f"parallel.pipeline={pipeline}"]
        config = gpt1(*words, f"train.micro_batch={64 // micro_batches}")
        return cost(config, pipeline, 2, H100).bubble

    for pipeline, micro_batches in ((2, 4), (2, 16), (4, 8), (4, 32)):
        known = (pipeline - 1) / (micro_batches + pipeline - 1)
        assert bubble(pipeline, micro_batches) == pytest.approx(known, abs=0.04)


def reduced_alone() -> float:
    """Seconds of GPT-1's gradients over eight H100s: five buckets."""
    latencies = 2 * 4 * math.log2(8) * H100.node.latency
    return all_reduce(4 * 116_610_048, 8, H100.node) + latencies


def test_a_reduction_under_a_long_backward_pass_leaves_its_last_bucket() -> None:
    found, alone = at(8), reduced_alone()
    embedding = padded(40478, 128, 1) * 768 / 116_610_048
    copies = 8 * 116_610_048 / H100.speeds_with("bf16", 8).memory
    assert (1 - embedding) * found.backward > (1 - embedding) * alone, "the link is idle now and then"
    assert found.reduction == pytest.approx(embedding * alone + copies)
    assert found.hidden == pytest.approx((1 - embedding) * alone)


def test_a_reduction_longer_than_the_backward_pass_hides_as_much_as_that_lasts() -> None:
    slow = replace(H100, node=replace(H100.node, bandwidth=H100.node.bandwidth / 20))
    found = cost(gpt1(), 8, 40478, slow)
    embedding = padded(40478, 128, 1) * 768 / 116_610_048
    assert found.hidden == pytest.approx((1 - embedding) * found.backward)
    assert found.reduction > found.hidden
    assert found.step == found.pipeline + found.reduction + found.update


@pytest.mark.parametrize(
    "words",
    [
        ["parallel.zero=0", "train.precision=fp32"],
        ["train.precision=fp32"],
        ["train.precision=fp16"],
        ["parallel.pipeline=2"],
        ["parallel.assembly=pipeline"],
    ],
    ids=" ".join,
)
def test_a_reduction_once_a_step_hides_in_every_engine(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = at(8, *words)
    assert found.hidden > 0
    monkeypatch.setattr("gpt1_ds.plan.cost.overlaps", lambda *_: False)
    assert found.step < at(8, *words).step
    assert found.data_bytes == at(8, *words).data_bytes


@pytest.mark.parametrize("stage", [2, 3])
def test_reductions_of_every_micro_batch_hide_within_its_backward_pass(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = at(8, f"parallel.zero={stage}")
    monkeypatch.setattr("gpt1_ds.plan.cost.overlaps", lambda *_: False)
    alone = at(8, f"parallel.zero={stage}")
    assert found.backward < alone.backward
    assert (found.reduction, found.hidden, found.data_bytes) == (0, 0, alone.data_bytes)


def test_one_rank_has_nothing_to_hide() -> None:
    assert at(1).hidden == 0


def test_on_cpus_nothing_hides() -> None:
    assert cost(gpt1(), 8, 40478, PRESETS["cpu"]).hidden == 0
    assert not overlaps("cpu")
    assert overlaps("cuda")


@pytest.mark.parametrize("patches", ["fixes", "none"])
def test_without_the_patches_nothing_hides(patches: str) -> None:
    assert at(8).hidden > 0
    assert at(8, f"train.deepspeed_patches={patches}").hidden == 0


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


@pytest.mark.parametrize("shared", ["false", "true"])
def test_matrices_of_two_stacks_see_their_own_tokens(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []
    monkeypatch.setattr(Speeds, "product", lambda _, flops: found.append(flops) or 0.0)
    words = ["model.layers=1", f"model.shared={shared}", "train.global_batch=8", "train.micro_batch=8"]
    config = load(["pretrain/t5_base"], words)
    cost(config, 1, 32128, H100)
    (stage,) = stages(config, 32128)
    assert sum(found) == pytest.approx(8 * config.row.fed * sum(layer.costs.products for layer in stage.layers))
