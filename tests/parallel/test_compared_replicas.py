"""What ranks hold in common is equal in every layout, and one flipped bit of it is noticed and named."""

from __future__ import annotations

from typing import Any

import pytest

from gpt1_ds.launcher import launch

MODEL = [
    *("model.layers=2", "model.width=32", "model.heads=2", "model.context=16", "optimizer.clip=0.1"),
    *("train.global_batch=4", "train.micro_batch=2"),
]
NORM, TIED, MATRIX = "blocks.0.attention_norm.weight", "tokens.weight", "blocks.1.mlp.up.weight"
# name: (ranks, arguments, parameter that rank `bad` holds otherwise, where it is changed, groups of ranks)
CASES: dict[str, tuple[int, list[str], str, str, int, list[list[int]]]] = {
    "tp2": (2, ["parallel.tensor=2"], NORM, "master weight", 1, [[0], [1]]),
    "tp2-weight": (2, ["parallel.tensor=2"], NORM, "weight", 1, [[0], [1]]),
    "tp2-zero3": (2, ["parallel.tensor=2", "parallel.zero=3"], NORM, "master weight", 0, [[0], [1]]),
    "dp2-zero0": (2, ["parallel.zero=0"], MATRIX, "weight", 1, [[0], [1]]),
    "dp2-zero1": (2, [], MATRIX, "weight", 0, [[0], [1]]),
    "dp2-zero2": (2, ["parallel.zero=2"], MATRIX, "weight", 1, [[0], [1]]),
    "dp2-zero3": (2, ["parallel.zero=3"], NORM, "weight", 1, [[0], [1]]),
    "pp2": (2, ["parallel.pipeline=2"], TIED, "master weight", 1, [[0], [1]]),
    "pp2-dp2": (4, ["parallel.pipeline=2"], TIED, "master weight", 3, [[0, 1], [2, 3]]),
    "pp2-dp2-weight": (4, ["parallel.pipeline=2"], TIED, "weight", 2, [[0, 1, 3], [2]]),
    "tp2-pp2": (4, ["parallel.tensor=2", "parallel.pipeline=2"], TIED, "weight", 3, [[1], [3]]),
}
BF16 = ("tp2", "dp2-zero1", "dp2-zero3", "pp2", "pp2-dp2")


@pytest.mark.parametrize(
    ("case", "precision"), [*((case, "fp32") for case in CASES), *((case, "bf16") for case in BF16)]
)
def test_one_flipped_bit_is_named(case: str, precision: str) -> None:
    ranks, given, name, kind, bad, groups = CASES[case]
    overrides = [*MODEL, *given, f"train.precision={precision}"]
    arguments = (overrides, 500, flip_a_bit, name, kind, bad)
    for equal, found in launch.run("tests.helpers.engines:on_engine", arguments, ranks):
        assert equal == [None, None], "no false alarm, before the first step and after two"
        assert (found.kind, found.name, found.ranks, found.parameters) == (kind, name, groups, 1)


def flip_a_bit(engine: Any, config: Any, name: str, kind: str, bad: int) -> Any:
    """Runs on every rank."""
    import torch

    from gpt1_ds.checkpoint.replicas import MASTER, Replicas
    from gpt1_ds.engine import master_weights

    replicas = Replicas(engine)
    equal = [replicas.compare()]
    for step in (1, 2):
        train(engine, config, step)
    equal.append(replicas.compare())
    if engine.groups.rank == bad:
        held = master_weights.fragments(engine) if kind == MASTER else master_weights.weights(engine)
        values = next(fragment.master for fragment in held if fragment.info.name == name)
        bits = values.view(torch.int16)
        bits[len(bits) // 3] ^= 1  # the lowest bit of an element, or of its upper half
    return equal, replicas.compare()


def train(engine: Any, config: Any, step: int) -> None:
    """One update on random tokens."""
    import torch

    from gpt1_ds.data.loader import Rows
    from gpt1_ds.engine.build import batch_shape, training_batches

    torch.manual_seed(step)
    tokens = torch.randint(500, (config.train.global_batch, config.model.context + 1)).numpy()
    rows = [Rows(tokens[numbers], numbers) for numbers in batch_shape(config, engine.groups).rows()]
    engine.step(training_batches(engine.objective, rows, config.run.seed, step), 1e-3)


def test_stages_hold_the_same_where_a_partition_cuts_a_tied_weight_anywhere() -> None:
    """The border of ZeRO's partitions lies in the token embeddings, on each stage at another place. The elements before
    it fill no vector of a CPU: torch's update rounds these in another way.
    """
    given = [*MODEL, "parallel.pipeline=2", "model.width=34", "model.vocab_multiple=1"]
    found = launch.run("tests.helpers.engines:on_engine", (given, 500, train_and_compare), 4)
    assert found == [None] * 4


def train_and_compare(engine: Any, config: Any) -> Any:
    """Runs on every rank."""
    from gpt1_ds.checkpoint.replicas import Replicas

    for step in range(1, 7):
        train(engine, config, step)
    return Replicas(engine).compare()
