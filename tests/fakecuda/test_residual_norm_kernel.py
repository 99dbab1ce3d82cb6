"""The kernel of residual sums and norms, interpreted: interpreted/residual_norm.py has the tests."""

import pytest

from tests.helpers import interpreter


@pytest.mark.slow
def test_sums_norms_and_gradients() -> None:
    code, printed = interpreter.run_interpreted("tests/fakecuda/interpreted/residual_norm.py")
    assert code == 0, printed
