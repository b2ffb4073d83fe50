"""Prints why a test failed that then passed at its second try.

`make test` and its likes pass `--reruns 1`: of thousands of tests, some with servers, threads and
processes, one that depends on how a loaded machine takes turns shall not hide what the others say.
It is a defect all the same, of the test or of what it tests, so that it is never passed over: its
name and its first failure are printed at the end.
"""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    failed_again = {report.nodeid for name in ("failed", "error") for report in stats.get(name, ())}
    found = [report for report in stats.get("rerun", ()) if report.nodeid not in failed_again]
    if not found:
        return
    terminalreporter.section(f"{len(found)} passed at the second try only: fix them", red=True)
    for report in found:
        terminalreporter.write_line(f"{report.nodeid} ({report.when})")
        terminalreporter.write_line(report.longreprtext)
