"""A scaling study with everything in it, and the look of its figures."""

from __future__ import annotations

import pytest

from gpt1_ds.report import figures
from gpt1_ds.report.scaling_results import ScalingResults, read_scaling_results
from tests.helpers.scaling_study import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ScalingResults:
    figures.set_up()
    return read_scaling_results(make_study(tmp_path_factory.mktemp("figures") / "study"))
