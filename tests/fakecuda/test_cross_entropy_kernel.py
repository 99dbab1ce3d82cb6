"""The kernel of the loss, interpreted: interpreted/cross_entropy.py has the tests."""

import pytest

from tests.helpers import interpreter

pytest.importorskip("triton")


@pytest.mark.slow
def test_losses_and_gradients() -> None:
    interpreter.passes("tests/fakecuda/interpreted/cross_entropy.py")
