"""The attention kernels, interpreted: interpreted/attention.py has the tests."""

import pytest

from tests.helpers import interpreter


@pytest.mark.slow
def test_masks_outputs_and_gradients() -> None:
    code, printed = interpreter.run_interpreted("tests/fakecuda/interpreted/attention.py")
    assert code == 0, printed
