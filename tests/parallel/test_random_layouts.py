"""Promise 1 for models that nobody chose: what tools/random_layouts.py draws, and one case of it on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.random_layouts import draw, run


def test_a_case_is_a_function_of_the_seed_and_its_number() -> None:
    cases = [draw(3, number) for number in range(4)]
    assert cases == [draw(3, number) for number in range(4)]
    assert len({case.arguments for case in cases}) == len(cases)


@pytest.mark.slow
def test_a_case_equals_one_process(span_data: Path) -> None:
    cases = (draw(0, number) for number in range(100))
    case = next(case for case in cases if case.layout.ranks == 2 and "objective.kind=prefix" in case.arguments)
    row = run(case, span_data, 3)
    assert row["holds"], (row, case.arguments)
