"""What LAMB and Adafactor take beside AdamW, by hand for GPT-1."""

import pytest

from gpt1_ds.config import Config, load
from gpt1_ds.plan.cost import cost
from gpt1_ds.plan.machine import PRESETS
from gpt1_ds.plan.memory import RankMemory, memory

D, V = 768, 40478
ROWS = 12 * (3 * D + D + 4 * D + D) + V + 512  # of qkv, out, up and down, words and positions
COLUMNS = 12 * (3 * D + D + D + 4 * D) + 2 * D  # queries, keys and values have columns of their own
VECTORS = 12 * (3 * D + D + 4 * D + D + 4 * D)  # biases, and two norms' gains and biases
MATRICES = 12 * 12 * D**2 + (V + 512) * D
H100 = PRESETS["h100"]


def gpt1(name: str, *words: str) -> Config:
    words = ("train.micro_batch=8", "model.vocab_multiple=1", f"optimizer.name={name}", *words)
    return load(["pretrain/gpt1_117m"], words)


def first(name: str, world: int, *words: str) -> RankMemory:
    return memory(gpt1(name, *words), world, V)[0]


def test_adafactor_has_one_number_for_a_row_and_one_for_a_column() -> None:
    for words in ([], ["parallel.zero=3"]):
        masters = first("adamw", 1, *words).optimizer - 8 * (MATRICES + VECTORS)
        assert first("adafactor", 1, *words).optimizer - masters == 4 * (ROWS + COLUMNS + VECTORS)


def test_lamb_has_adamws_moments() -> None:
    assert first("lamb", 8).optimizer == first("adamw", 8).optimizer


def test_data_ranks_share_the_moments_as_far_as_zero_cuts_them() -> None:
    whole, cut = 4 * (ROWS + COLUMNS), 4 * VECTORS // 4
    masters = first("adamw", 4).optimizer - 8 * (MATRICES + VECTORS) / 4
    held = first("adafactor", 4).optimizer - masters
    assert whole / 4 + cut < held < whole + cut
    masters = first("adamw", 4, "parallel.zero=3").optimizer - 8 * (MATRICES + VECTORS) / 4
    assert first("adafactor", 4, "parallel.zero=3").optimizer - masters == pytest.approx(whole + cut, abs=2)


def test_bytes_that_a_rank_sends() -> None:
    def more(name: str) -> float:
        return cost(gpt1(name), 8, V, H100).data_bytes - cost(gpt1("adamw"), 8, V, H100).data_bytes

    assert 4 * (ROWS + COLUMNS) * 2 * 7 / 8 < more("adafactor") < 1.01 * 4 * (ROWS + COLUMNS) * 2 * 7 / 8
    assert 0 < more("lamb") < 4096


@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_an_update_takes_room_and_passes(name: str) -> None:
    words = ["parallel.zero=0", "train.precision=fp32"]
    plain, ours = (first(one, 1, *words) for one in ("adamw", name))
    more = ours.instants["update"] - plain.instants["update"]
    assert more == pytest.approx(4 * 4 * V * D + ours.optimizer - plain.optimizer, abs=2)
    plain_cost, cost_of = (cost(gpt1(one), 1, V, H100) for one in ("adamw", name))
    assert 4 < cost_of.update / plain_cost.update < 7
