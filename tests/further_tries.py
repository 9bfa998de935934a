"""Prints why a test failed that was tried again.

CI tries a failed test twice more: some talk to dozens of processes on a machine that others use too, and in
ten thousand tests one of them loses a race. Such a race is a fault, of the test or of the product, so nothing
hides it: the summary counts it as `rerun`, and its failure is printed like any other.
"""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports: list[pytest.TestReport] = terminalreporter.getreports("rerun")
    if not reports:
        return
    terminalreporter.write_sep("=", "FAILED, AND TRIED AGAIN", yellow=True)
    for report in reports:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(report.longreprtext)
