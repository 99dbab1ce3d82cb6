"""No test takes more than a minute unless it is named, and what is named is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import schedule

ROOT = Path(__file__).parents[2]


def test_a_test_that_takes_too_long_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import time, pytest

        @pytest.fixture
        def slow():
            time.sleep(0.2)

        def test_slow_by_itself():
            time.sleep(0.2)

        def test_slow_by_a_fixture(slow): ...

        def test_named(slow): ...

        def test_quick(): ...
        """
    )
    hooks = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.helpers import schedule
        schedule.LONGEST, schedule.crowding = 0.1, lambda: 1.0
        schedule.LONG["test_a_test_that_takes_too_long_fails.py::test_named"] = "it waits for somebody else"
        from tests.conftest import pytest_runtest_makereport
        """
    pytester.makeconftest(hooks)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    result.assert_outcomes(failed=2, passed=2)
    result.stdout.fnmatch_lines(
        ["*::test_slow_by_itself took 0 s with its fixtures, 0 s are allowed: make it smaller*"]
    )


@pytest.mark.parametrize("name", schedule.LONG)
def test_what_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text()
    assert schedule.LONG[name]
