"""The attention kernels, interpreted: interpreted/attention.py has the tests."""

import pytest

from tests.helpers import interpreter

pytest.importorskip("triton")


@pytest.mark.slow
def test_masks_outputs_and_gradients() -> None:
    interpreter.passes("tests/fakecuda/interpreted/attention.py")
