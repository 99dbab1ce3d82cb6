"""Memory of a rank, worked out by hand for small cases and for GPT-1."""

import math
from dataclasses import replace

import pytest

from gpt1_ds.architecture.count import parameters
from gpt1_ds.architecture.layer import padded
from gpt1_ds.config import Config, load
from gpt1_ds.config.parallel import BUCKET_ELEMENTS
from gpt1_ds.plan.memory import RankMemory, memory, peak
from gpt1_ds.plan.rank_sizes import LIBRARIES
from gpt1_ds.plan.stages import stages

GPT1 = ["pretrain/gpt1_117m"]
SMALL = ["model.layers=2", "model.width=8", "model.heads=2", "model.context=4", "model.vocab_multiple=1"]


def gpt1(*words: str) -> Config:
    return load(GPT1, ["train.micro_batch=8", *words])


def small(*words: str) -> Config:
    return load([], [*SMALL, "train.global_batch=4", "train.micro_batch=2", *words])


def first(config: Config, world: int, device: str = "cuda", vocabulary: int = 40478) -> RankMemory:
    return memory(config, world, vocabulary, device)[0]


def test_a_whole_rank_holds_the_whole_model() -> None:
    (stage,) = stages(gpt1(), 40478)
    assert stage.parameters == parameters(gpt1().model, padded(40478, 128, 1)) == 116_610_048
    assert (stage.blocks, stage.has_table, stage.has_head) == (12, True, True)


def test_two_tensor_parallel_ranks_by_hand() -> None:
    (stage,) = stages(gpt1("parallel.tensor=2"), 40478)
    matrices = 4 * 768 * 768 + 2 * 768 * 3072  # qkv, out, up, down
    block = matrices // 2 + (3 * 768 + 3072) // 2 + 768 + 768 + 4 * 768  # cut biases, whole biases, two norms
    assert stage.largest_block == block
    assert stage.parameters == 40576 // 2 * 768 + 512 * 768 + 12 * block


@pytest.mark.parametrize("pipeline", [1, 2, 3, 4, 6, 12])
def test_stages_hold_everything_once_and_the_tied_matrix_twice(pipeline: int) -> None:
    found = stages(gpt1(f"parallel.pipeline={pipeline}"), 40478)
    tied = found[0].embedding if pipeline > 1 else 0
    assert sum(stage.parameters for stage in found) == 116_610_048 + tied
    assert sum(stage.blocks for stage in found) == 12
    assert [stage.has_table for stage in found] == [True, *[False] * (pipeline - 1)]
    assert [stage.has_head for stage in found] == [*[False] * (pipeline - 1), True]


@pytest.mark.parametrize(
    ("words", "weights", "gradients", "optimizer"),
    [
        (["train.precision=fp32", "parallel.zero=0"], 4, 4, 8),
        (["train.precision=fp32", "parallel.zero=1"], 4, 4, 12 / 8),
        (["train.precision=bf16", "parallel.zero=1"], 2, 4, 12 / 8),  # 8 + 12 / d with the passing bf16 gradients
        (["train.precision=bf16", "parallel.zero=2"], 2, 4 / 8, 12 / 8),
        (["train.precision=bf16", "parallel.zero=3"], 2 / 8, 4 / 8, 12 / 8),
    ],
)
def test_bytes_per_parameter_on_eight_ranks(
    words: list[str], weights: float, gradients: float, optimizer: float
) -> None:
    found = first(gpt1(*words), 8)
    sizes = (found.weights, found.gradients, found.optimizer)
    assert [round(size / found.parameters, 6) for size in sizes] == [weights, gradients, optimizer]


def test_activations_by_hand() -> None:
    state = 2 * 4 * 8 * 4  # B x S x D fp32 numbers
    logits = 2 * 4 * 10 * 4
    found = first(small(), 1, vocabulary=10)
    # a block: input, two norms' inputs, the middle, two masks, q, k, v, out, twice the feed-forward layer
    assert found.activations == 2 * (6 + 4 + 8) * state + 2 * state + logits, (
        "ends: the embedding's mask, the head's input"
    )
    without = small("model.residual_dropout=0", "model.embedding_dropout=0")
    assert first(without, 1, vocabulary=10).activations == 2 * (4 + 4 + 8) * state + state + logits
    again = first(small("train.recompute=block"), 1, vocabulary=10)
    assert again.activations == 2 * state + 2 * state + logits
    half = first(small("parallel.tensor=2"), 2, vocabulary=10)
    assert half.activations == 2 * (6 + 12 / 2) * state + 2 * state + logits // 2
    quarter = first(small("parallel.tensor=2", "parallel.sequence=true"), 2, vocabulary=10)
    assert quarter.activations == 2 * 18 / 2 * state + 2 * state // 2 + logits // 2
    assert first(small("train.precision=bf16"), 1, vocabulary=10).activations == found.activations // 2


def test_the_peak_is_the_largest_instant_not_the_sum() -> None:
    found = first(gpt1("train.precision=fp32", "parallel.zero=0"), 1)
    assert found.peak == max(found.instants.values()) == found.instants[found.peak_at]
    held = found.weights + found.optimizer
    # 8 micro-batches: the last one finds all gradients; with its loss come the head's
    rows = 8 * 512
    matrix, state, block = 40576 * 768 * 4, rows * 768 * 4, 4 << 26
    assert found.logits == rows * 40576 * 4, "less than a chunk"
    assert found.peak_at == "end of the forward pass"
    assert found.peak == held + found.gradients + found.activations + matrix + state + block


def test_no_more_than_a_chunk_of_logits_is_there() -> None:
    some, many = (first(gpt1(f"train.micro_batch={rows}"), 1) for rows in (16, 64))
    assert some.logits == 16 * 512 * 40576 * 2
    assert many.logits == 86 * 128 * 40576 * 2, "three chunks of about a GiB"


def test_early_stages_keep_more_micro_batches() -> None:
    found = memory(gpt1("parallel.pipeline=4", "train.micro_batch=2"), 4, 40478)
    assert [rank.in_flight for rank in found] == [4, 3, 2, 1]
    few = memory(gpt1("parallel.pipeline=4", "train.micro_batch=32"), 4, 40478)
    assert [rank.in_flight for rank in few] == [2, 2, 2, 1], "there are only two micro-batches"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_should_need_less_needs_less(precision: str, device: str) -> None:
    def most(world: int, *words: str) -> int:
        return peak(gpt1(f"train.precision={precision}", *words), world, 40478, device).peak

    assert most(1, "train.recompute=block") < most(1)
    assert most(1, "train.micro_batch=4") < most(1) < most(1, "train.micro_batch=16")
    assert most(2, "parallel.tensor=2") < most(1)
    assert most(4, "parallel.zero=1") < most(2, "parallel.zero=1")
    assert most(4, "parallel.zero=2") < most(4, "parallel.zero=1")


def test_nothing_but_zeros_shares_depends_on_the_number_of_data_ranks() -> None:
    def held(world: int, zero: int) -> RankMemory:
        return first(gpt1("train.global_batch=8192", f"parallel.zero={zero}"), world)

    for zero in (1, 2, 3):
        few, many = held(8, zero), held(1024, zero)
        assert many.parameters == few.parameters
        assert many.activations == few.activations
        assert many.optimizer * 128 == pytest.approx(few.optimizer, rel=1e-4)
        assert many.buffers == few.buffers == (4 * BUCKET_ELEMENTS if zero == 3 else 0)
    assert held(8, 1).weights == held(1024, 1).weights
    assert held(8, 3).weights == pytest.approx(128 * held(1024, 3).weights, rel=1e-4)


def test_the_search_looks_at_the_stage_that_needs_most() -> None:
    for words in (["parallel.pipeline=4", "train.micro_batch=2"], ["parallel.pipeline=12", "train.micro_batch=1"], []):
        config = gpt1(*words)
        stages = memory(config, 12, 40478)
        assert peak(config, 12, 40478).peak == max(stage.peak for stage in stages)


def added(words: list[str], world: int, instant: str) -> float:
    """Bytes per bucket's element that an instant on CUDA takes more than on a CPU."""
    config = gpt1("train.global_batch=64", *words)
    cuda, cpu = (first(config, world, device) for device in ("cuda", "cpu"))
    return (cuda.instants[instant] - cpu.instants[instant] + LIBRARIES["cpu"]) / BUCKET_ELEMENTS


@pytest.mark.parametrize(
    ("words", "world", "element"),
    [
        (["train.precision=fp32", "parallel.zero=1"], 8, 2 * 4),
        (["train.precision=fp32", "parallel.zero=1"], 1, 4),
        (["train.precision=fp16", "parallel.zero=1"], 8, 2 * 4),
        (["train.precision=fp32", "parallel.zero=2"], 8, 2 * 4),
        (["train.precision=bf16", "parallel.zero=2"], 8, 2 * 2),
        (["train.precision=fp16", "parallel.zero=2"], 1, 2),
        (["train.precision=bf16", "parallel.zero=3"], 8, 4),
        (["train.precision=fp16", "parallel.zero=3"], 8, 2 - 2),  # the one held is shorter, too
        (["train.precision=bf16", "parallel.zero=1"], 8, 0),
        (["train.precision=fp32", "parallel.zero=0"], 8, 0),
    ],
)
def test_buckets_of_a_backward_pass_by_hand(words: list[str], world: int, element: int) -> None:
    same = ["model.attention=fused"]  # whose working memory has one size
    assert added([*words, *same], world, "gradients of the first block") == element


def test_zero_1_keeps_its_buckets_from_the_first_micro_batch_to_the_reduction() -> None:
    words = ["train.precision=fp32", "model.attention=fused", "train.micro_batch=4"]
    several, once = (first(gpt1(*words, f"train.global_batch={rows}"), 8) for rows in (64, 32))
    assert several.instants["end of the forward pass"] - once.instants["end of the forward pass"] == (
        several.gradients + 2 * 4 * BUCKET_ELEMENTS
    )
    embedding = 40576 * 768
    assert once.instants["reduction of gradients"] == (
        once.weights + once.optimizer + once.gradients + 4 * (2 * BUCKET_ELEMENTS + embedding)
    )


def test_slices_of_flat_gradients_are_not_copied_to_be_reduced() -> None:
    found = first(gpt1("train.global_batch=64"), 8)
    held = found.weights + found.optimizer + found.gradients
    assert found.instants["reduction of gradients"] == held


def test_cuda_graphs_keep_the_memory_of_a_pass() -> None:
    one, several = (first(gpt1("train.global_batch=64", f"train.micro_batch={rows}"), 8) for rows in (8, 4))
    for found in (one, several):
        held = found.weights + found.optimizer + found.gradients
        others = ("evaluation", "capture of CUDA graphs")
        most = max(size for name, size in found.instants.items() if name not in others)
        assert found.instants["evaluation"] > most
        assert found.instants.get("capture of CUDA graphs", 2 * most - held) == 2 * most - held
    assert "capture of CUDA graphs" not in one.instants, "there is one kind of micro-batch"
    assert several.peak_at == "capture of CUDA graphs", "the first and the second micro-batch have graphs of their own"
    off = first(gpt1("train.global_batch=64", "train.cuda_graphs=off"), 8)
    assert off.peak == max(size for name, size in one.instants.items() if name != "evaluation")


@pytest.mark.parametrize("rows", [32, 8])
def test_passes_of_a_task_run_beside_the_graphs_of_two_lengths(rows: int) -> None:
    words = ["train.global_batch=32", f"train.micro_batch={rows}", "train.precision=bf16"]
    found, off = (
        first(load(["finetune/cola"], [*words, f"train.cuda_graphs={graphs}"]), 1) for graphs in ("auto", "off")
    )
    held = found.weights + found.optimizer + found.gradients
    assert found.peak_at == "capture of CUDA graphs"
    assert found.peak == 2 * off.peak - held


def test_the_host_keeps_gradients_while_graphs_prove_themselves() -> None:
    found, off = first(gpt1(), 8), first(gpt1("train.cuda_graphs=off"), 8)
    assert (found.host, found.host_for) == (12 * 116_610_048, "gradients that prove CUDA graphs")
    assert (off.host, off.host_for) == (4 * (116_610_048 + 40576 * 768), "parameters in fp32")
    assert first(gpt1(), 8, "cpu").host == off.host


def test_padding_counts() -> None:
    config = gpt1("parallel.tensor=4")
    (stage,) = stages(replace(config, model=replace(config.model, vocab_multiple=7)), 10)
    assert stage.local_vocabulary == math.lcm(7, 4) // 4


@pytest.mark.parametrize(("zero", "world", "part"), [(0, 1, 1), (1, 4, 4), (2, 4, 4), (3, 4, 4)])
def test_a_watched_update_holds_a_copy_of_the_masters(zero: int, world: int, part: int) -> None:
    words = ["train.global_batch=32", "train.precision=fp32", f"parallel.zero={zero}"]
    plain, watched = (first(gpt1(*words, f"train.watch={level}"), world).instants for level in ("off", "norms"))
    assert watched.pop("update") - plain.pop("update") == 4 * 116_610_048 // part
    assert watched == plain
