"""What Muon takes beside AdamW, by hand for GPT-1, whose blocks have 12 d^2 weights in matrices."""

import pytest

from gpt1_ds.config import Config, load
from gpt1_ds.plan.cost import Cost, cost
from gpt1_ds.plan.machine import PRESETS, Link
from gpt1_ds.plan.memory import RankMemory, memory
from gpt1_ds.plan.muon_update import MuonUpdate
from gpt1_ds.plan.stages import stages

WIDTH = 768
MATRICES = 12 * 12 * WIDTH**2  # twelve blocks of qkv (3), out (1), up (4) and down (4)
FLOPS = 12 * 5 * (4 * 6 + 2 * (4 * 4 + 2)) * WIDTH**3  # five steps: four square matrices, two of 1 x 4
H100 = PRESETS["h100"]


def gpt1(name: str, *words: str) -> Config:
    return load(["pretrain/gpt1_117m"], ["train.micro_batch=8", f"optimizer.name={name}", *words])


def first(name: str, world: int, *words: str) -> RankMemory:
    return memory(gpt1(name, *words), world, 40478)[0]


def at(name: str, world: int, *words: str) -> Cost:
    return cost(gpt1(name, *words), world, 40478, H100)


def muon(world: int, *words: str) -> MuonUpdate:
    config = gpt1("muon", *words)
    return MuonUpdate(config, world, stages(config, 40478)[0])


@pytest.mark.parametrize(
    ("world", "words", "share"),
    [(1, [], 1), (8, [], 8), (8, ["parallel.tensor=2"], 8), (4, ["parallel.zero=0", "train.precision=fp32"], 1)],
)
def test_matrices_have_one_moment(world: int, words: list[str], share: int) -> None:
    saved = first("adamw", world, *words).optimizer - first("muon", world, *words).optimizer
    assert saved == pytest.approx(4 * MATRICES / share, abs=2)


def test_bytes_that_a_rank_sends() -> None:
    for words in ([], ["parallel.tensor=2"], ["parallel.tensor=4"], ["parallel.zero=3"]):
        more = at("muon", 8, *words).data_bytes - at("adamw", 8, *words).data_bytes
        assert more == pytest.approx(2 * 4 * MATRICES / 8 * 7 / 8, rel=1e-6), "an eighth there, an eighth back"
    whole = ["parallel.zero=0", "train.precision=fp32"]
    more = at("muon", 8, *whole).data_bytes - at("adamw", 8, *whole).data_bytes
    assert more == pytest.approx((1 + 8) * 4 * MATRICES / 8 * 7 / 8, rel=1e-6), "back to each of eight copies"
    assert muon(1).sent == 0


def test_time_is_that_of_products_in_fp32_shared_by_the_ranks() -> None:
    speeds, free = H100.speeds_with("fp32", 8), Link(0.0, 1e30)
    alone = muon(1).seconds(speeds, free)
    rates = [rate for _, rate in speeds.gemm]
    assert FLOPS / max(rates) <= alone <= FLOPS / min(rates)
    assert muon(4).seconds(speeds, free) == pytest.approx(alone / 4)
    assert muon(1024, "train.global_batch=8192").seconds(speeds, free) > alone / 100, "one rank has a whole weight"
    assert at("muon", 1).update == pytest.approx(at("adamw", 1).update + alone)
    two = at("muon", 2, "parallel.pipeline=2").update - at("adamw", 2, "parallel.pipeline=2").update
    most = max(stage.blocks for stage in stages(gpt1("muon", "parallel.pipeline=2"), 40478))
    assert two == pytest.approx(alone * most / 12), "stages work beside each other"


def test_the_update_has_a_workspace() -> None:
    words = ["parallel.zero=0", "train.precision=fp32"]
    plain, ours = (first(name, 1, *words) for name in ("adamw", "muon"))
    more = ours.instants["update"] - plain.instants["update"]
    assert more == pytest.approx(-4 * MATRICES + 4 * (2 * MATRICES + 6 * 4 * WIDTH**2), abs=2)
    assert muon(8).workspace == pytest.approx(4 * (4 * MATRICES / 8 + 6 * 4 * WIDTH**2))


def test_of_another_optimizer_everything_is_0() -> None:
    config = gpt1("adamw")
    none = MuonUpdate(config, 8, stages(config, 40478)[0])
    assert (none.local_elements, none.workspace, none.sent) == (0,) * 3
    assert none.seconds(H100.speeds_with("fp32", 8), Link(1.0, 1.0)) == 0
