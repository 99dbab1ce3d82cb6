"""Combinations that would fail late, or run and be wrong, are refused before any process starts."""

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.config import load, world_problems

MASKED = ["objective.kind=masked", "model.mask=bidirectional"]
TWO_STACKS = ["model.kind=encoder_decoder", "model.norm=pre"]
SPANS = ["objective.kind=spans"]
REFUSED = [
    (["model.heads=5"], "model.heads=5 does not divide model.width=64; use 2 or 4 heads|use 4 or 8"),
    (["model.width=0"], "model.width=0 is too small"),
    (["model.residual_dropout=1"], r"must be in \[0, 1\)"),
    (
        ["train.micro_batch=3"],
        "train.global_batch=16 is not a multiple of train.micro_batch=3; use train.global_batch=18, or "
        "train.micro_batch=2",
    ),
    (["data.path=[{path: a, weight: inf}, b]"], "data.path: weight=inf of a must be a finite number above 0"),
    (
        ["data.path=[{path: a, weight: 3000000}, b]"],
        "data.path: weight=1.0 of b is less than a millionth of all weights: a run may never read it",
    ),
    (["data.path=s3://bucket/x"], "data.path=s3://bucket/x is an address; name a folder: `gpt1-ds data build --input"),
    (["train.steps=0"], "train.steps=0 must be above 0"),
    (["schedule.kind=wsd", "schedule.warmup_fraction=0.9"], r"schedule.decay_fraction=0.2 are more than the whole run"),
    (
        [*MASKED, "model.head=masked", "model.norm_kind=rms"],
        "model.head=masked has LayerNorm, biases and a tied matrix, not model.norm_kind=rms, model.biases=true, "
        "model.tied=true; leave these keys out, or use model.head=plain",
    ),
    ([*MASKED, "model.head=masked", "model.activation=gated_gelu"], "use gelu, or model.head=plain"),
    (["train.label_smoothing=1"], r"train.label_smoothing=1.0 must be in \[0, 1\); use 0 for none, or 0.1"),
    (["optimizer.layer_decay=0"], "optimizer.layer_decay=0.0 must be above 0, and at most 1; use 1 for none, or 0.8"),
    (
        [*TWO_STACKS, *SPANS, "optimizer.layer_decay=0.8"],
        "optimizer.layer_decay=0.8 counts the blocks of one stack, model.kind=encoder_decoder has 2; use 1",
    ),
    (["task.name=cola", "task.path=x", "task.frozen_layers=-1"], "task.frozen_layers=-1 must be 0"),
    (
        ["task.name=cola", "task.path=x", "task.frozen_layers=13"],
        "task.frozen_layers=13 is more than model.layers=2; use 2 or less",
    ),
    ([*TWO_STACKS, "task.name=cola", "task.path=x", "task.frozen_layers=1"], "counts the blocks of one stack"),
    (["train.profile=5"], "train.profile=5 is not START:STOP; write 20:25 for steps 20 to 24"),
    (["train.profile=a:b"], "train.profile=a:b is not START:STOP"),
    (["train.profile=5:-1"], "is not START:STOP"),
    (["train.profile=9:3"], "train.profile=9:3 names no step; write START:STOP with 1 <= START < STOP"),
    (["train.profile=4:4"], "names no step"),
    (["train.profile=0:4"], "names no step"),
    (["parallel.tensor=3"], "parallel.tensor=3 does not divide model.heads=4"),
    (["parallel.tensor=2", "model.ffn=33"], "does not divide model.ffn=33"),
    (["parallel.pipeline=3"], "parallel.pipeline=3 leaves ranks without a layer"),
    (["parallel.pipeline=2", "parallel.zero=2"], "parallel.zero=2 cannot run in a pipeline"),
    (["parallel.pipeline=2", "parallel.zero=3"], "parallel.zero=3 cannot run in a pipeline"),
    (["parallel.pipeline=2", "parallel.zero=0"], "its gradient norm is wrong.*use parallel.zero=1"),
    (["parallel.zero=0", "train.precision=bf16"], "use parallel.zero=1, which keeps them in fp32"),
    (["parallel.zero=0", "train.precision=fp16"], "accumulates gradients in fp16"),
    (["parallel.zero=4"], "is not a ZeRO stage"),
    (["parallel.sequence=true"], "needs parallel.tensor above 1"),
    (["parallel.sequence=true", "parallel.tensor=4", "model.context=130"], "a context that is a multiple"),
    (
        ["parallel.sequence=true", "parallel.tensor=3", "model.heads=3", "model.width=96", "model.context=96"],
        "cuts the 64 positions of a checkpoint's probe over parallel.tensor=3 ranks",
    ),
    (["model.segments=2"], "model.segments=2: model.mask=causal has one segment; use model.mask=bidirectional"),
    ([*MASKED, "objective.probability=0.6", "data.text=full_sentences"], "is above 0.5, but symbols of data.text="),
    (["parallel.assembly=dense", "parallel.pipeline=2"], "assembly=dense cannot run"),
    (["train.recompute=block", "model.attention=fused"], "use model.attention=exact"),
    (["parallel.deepspeed.amp={enabled: true}"], "amp was not tested with this program; remove it, or take one of"),
    (["parallel.deepspeed.zero_optimization.cpu_offload=true"], "cpu_offload was not tested with this program"),
    (["parallel.deepspeed.communication_data_type=bf16"], "communication_data_type was not tested"),
    (["parallel.deepspeed.zero_optimisation={}"], "parallel.deepspeed.zero_optimisation was not tested"),
    (["parallel.deepspeed.dump_state=yes please"], "dump_state='yes please' is neither true nor false"),
    (["parallel.deepspeed.zero_optimization.reduce_bucket_size=0"], "=0 is no whole number of at least 1"),
    (["parallel.deepspeed.zero_optimization.sub_group_size=1.5"], "=1.5 is no whole number of at least 1"),
    (["parallel.deepspeed.zero_optimization.sub_group_size=1e30"], "=1e.30 is no whole number of at least 1"),
    (["train.deepspeed_patches=fixes", "train.cuda_graphs=on"], "train.cuda_graphs=on needs train.deepspeed_patches="),
    (
        ["train.deepspeed_patches=none", "guard.on_spike=skip", "guard.z=6"],
        "guard.on_spike=skip needs train.deepspeed_",
    ),
    (["train.deepspeed_patches=none", "parallel.tensor=2", "parallel.sequence=true"], "Megatron's buffer is not made"),
    (["parallel.deepspeed.bf16={enabled: true}"], "parallel.deepspeed.bf16 is set by train.precision"),
    (["parallel.deepspeed.gradient_clipping=1"], "is set by optimizer.clip"),
    (["parallel.deepspeed.pipeline={use_reentrant: true}"], "parallel.deepspeed.pipeline is set by"),
    (["parallel.deepspeed.zero_optimization.stage=2"], "is set by parallel.zero"),
    (["parallel.deepspeed.zero_optimization.offload_optimizer={device: cpu}"], "offload is out of scope"),
    (["optimizer.betas=[0.9]"], "must be two numbers"),
    (["optimizer.lr=0"], "must be above 0"),
    (["schedule.warmup_fraction=2"], r"must be in \[0, 1\]"),
    (["checkpoint.keep=0"], "use 1"),
    (["data.unique_tokens=1000", "data.offsets=epoch"], "data.unique_tokens takes whole windows.*leave one out"),
    (["model.mask=bidirectional"], "each token would see itself; use objective.kind=masked"),
    (["objective.kind=masked"], "a masked token needs the tokens on both sides; use model.mask=bidirectional"),
    (
        [*MASKED, "objective.next_sentence=true", "model.segments=2", "data.text=document_sentences"],
        "objective.next_sentence=true needs model.segments=2, data.text=pairs",
    ),
    (
        [*MASKED, "data.text=sentence_pairs", "data.unique_tokens=9"],
        "data.unique_tokens cannot cap data.text=sentence_pairs",
    ),
    ([*MASKED, "objective.next_sentence=true"], "needs model.segments=2, data.text=pairs and a dataset with sentences"),
    ([*MASKED, "objective.copies=10", "data.offsets=epoch"], "objective.copies=10 needs data.offsets=fixed"),
    (TWO_STACKS, "objective.kind=causal has no source for the encoder.*use objective.kind=spans or prefix"),
    (["model.shared=true"], "model.shared=true needs model.kind=encoder_decoder; leave it out"),
    ([*TWO_STACKS, "model.shared=true", "model.decoder_layers=3"], "model.shared=true needs model.decoder_layers=2"),
    ([*TWO_STACKS, "objective.kind=masked"], "objective.kind=masked has no source for the encoder"),
    (["model.mask=prefix"], "objective.kind=causal gives model.mask=prefix no prefix"),
    (["objective.kind=prefix"], "objective.kind=prefix needs model.mask=prefix or model.kind=encoder_decoder"),
    ([*SPANS, "model.mask=bidirectional"], "objective.kind=spans cannot train model.mask=bidirectional"),
    ([*SPANS, *TWO_STACKS, "objective.predict=all"], "objective.predict=all needs .* one stack .*predict=targets"),
    ([*SPANS, "model.mask=prefix", "objective.predict=all"], "does not see what it predicts"),
    (["objective.predict=all"], "objective.predict=all needs objective.kind=spans"),
    ([*SPANS, "model.context=4"], "model.context=4 is too short for a span and its sentinel; use at least 8"),
    ([*SPANS, "objective.sentinels=3"], "objective.sentinels=3 is less than the 6 spans of a text of 115 tokens"),
    ([*SPANS, *TWO_STACKS, "objective.density=0.9"], "targets of .* tokens, longer than model.context=128"),
    ([*SPANS, "objective.density=0"], r"objective.density=0.0 must be in \(0, 1\]; T5's is 0.15"),
    ([*SPANS, "objective.mean_length=0.5"], "objective.mean_length=0.5 must be at least 1, or null; T5's is 3"),
    ([*SPANS, "objective.sentinels=0"], "objective.sentinels=0 must be at least 1; T5 has 100"),
    ([*SPANS, "objective.copies=2"], "objective.copies=2 needs objective.kind=masked; leave it out"),
    ([*SPANS, "data.documents=masked"], "one stack reads a source and then its target.*use data.documents=joined"),
    ([*SPANS, "data.text=full_sentences"], "needs objective.kind=masked or causal; use data.text=windows"),
    (["run.name=../x"], "cannot name a folder"),
    (["run.name=a b"], "cannot name a folder"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_refused_with_the_way_out(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load([], arguments)


@pytest.mark.parametrize(
    "argument", ["model.layers=0", "train.global_batch=-8", "parallel.tensor=0", "parallel.zero=-1"]
)
def test_one_mistake_is_one_line(argument: str) -> None:
    with pytest.raises(ConfigError) as told:
        load([], [argument])
    (line,) = told.value.problems
    assert line.startswith(f"{argument} ")


def test_the_world_must_fit() -> None:
    assert list(world_problems(load([], ["parallel.tensor=2"]), 3)) == [
        "parallel.tensor=2 x parallel.pipeline=1 = 2 ranks do not divide the world of 3; use 2 ranks"
    ]
    (line,) = world_problems(load([], ["train.global_batch=16", "train.micro_batch=8"]), 4)
    assert "train.global_batch=16 does not split into 4 data-parallel ranks x train.micro_batch=8" in line
    assert list(world_problems(load([], ["parallel.tensor=2", "model.layers=2", "parallel.pipeline=2"]), 8)) == []


def test_the_steps_of_a_profile() -> None:
    assert list(load([], ["train.profile=20:25"]).train.profiled) == [20, 21, 22, 23, 24]
    assert not load([], ["train.profile=null"]).train.profiled
    assert not load([]).train.profiled


@pytest.mark.parametrize(
    "argument",
    [
        *("optimizer.betas=[{a: 1},2]", "tracking.tags=[[1],2]", "slurm.options=[[a]]", "slurm.environment={a: [b]}"),
        *("task={name: table, path: x, labels: [[a],{b: c}]}", "task={name: table, path: x, score_range: [{a: 1},2]}"),
    ],
)
def test_no_lists_within_lists(argument: str) -> None:
    with pytest.raises(ConfigError, match="each item must be one plain value"):
        load([], [argument])
