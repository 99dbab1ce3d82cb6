"""Calibration of the machine at hand: in haste, so that only what is impossible is noticed."""

from pathlib import Path

import pytest

from gpt1_ds.config import load
from gpt1_ds.plan import machine
from gpt1_ds.plan.cost import cost
from gpt1_ds.training.calibrate import calibrate


@pytest.mark.slow
def test_what_is_measured_can_be_planned_with(tmp_path: Path) -> None:
    here = calibrate(burst=1e-4, largest=256)
    assert here.measured
    for precision in ("fp32", "bf16"):
        ranks = [speeds.ranks for speeds in here.speeds[precision]]
        assert ranks == sorted(ranks)
        assert ranks[0] == 1
        assert here.device == "cuda" or {2, 4} <= set(ranks), "cores are shared"
        for speeds in here.speeds[precision]:
            sizes = [size for size, _ in speeds.gemm]
            assert sizes == sorted(sizes)
            assert 1e6 < speeds.gemm[-1][1] < 1e14, "operations per second"
            assert 1e5 < speeds.stream < 1e13, "bytes per second"
    machine.write(here, tmp_path / "m.json")
    assert machine.read(tmp_path / "m.json") == here
    for arguments in ([], ["parallel.tensor=2"], ["parallel.pipeline=2"], ["train.precision=bf16"]):
        found = cost(load([], arguments), 2, 500, here)
        assert 1e-5 < found.step < 1e3
