"""What a folder of a fine-tuned model says of its task."""

from __future__ import annotations

import pytest

from gpt1_ds.interop.head_import import length_limit_of


@pytest.mark.parametrize(("given", "limit"), [(None, None), (8, 8), (15, 15), (16, None), (10**30, None), (1e30, None)])
def test_limits_that_a_task_has(given: float | None, limit: int | None) -> None:
    assert length_limit_of({"model_max_length": given}, 16) == (limit, ())


@pytest.mark.parametrize("given", [7, 0, -1, True, 9.0, "9"])
def test_a_limit_that_no_task_can_have_is_said(given: object) -> None:
    limit, (remark,) = length_limit_of({"model_max_length": given}, 16)
    assert limit is None
    assert remark.startswith(f"the model_max_length {given!r} of its tokenizer is left out")
