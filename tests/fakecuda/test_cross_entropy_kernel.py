"""The kernel of the loss, interpreted: interpreted/cross_entropy.py has the tests."""

import pytest

from tests.helpers import interpreter


@pytest.mark.slow
def test_losses_and_gradients() -> None:
    code, printed = interpreter.run_interpreted("tests/fakecuda/interpreted/cross_entropy.py")
    assert code == 0, printed
