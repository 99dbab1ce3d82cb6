"""The kernel of bias and GELU, interpreted: interpreted/bias_gelu.py has the tests."""

import pytest

from tests.helpers import interpreter


@pytest.mark.slow
def test_values_and_gradients() -> None:
    code, printed = interpreter.run_interpreted("tests/fakecuda/interpreted/bias_gelu.py")
    assert code == 0, printed
