"""A plugin of pytest that prints each failure at once: a phase that is killed has no summary at its end."""

from __future__ import annotations

import pytest

_CONFIG: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    _CONFIG[:] = [config]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    reporter = _CONFIG[0].pluginmanager.get_plugin("terminalreporter") if report.failed else None
    if reporter is not None:
        reporter.write_line(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext}")
        reporter.flush()
