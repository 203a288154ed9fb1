"""What all tests share."""

import gc
import os
import signal

import pytest

from .claims.selection import NOT_YET, told, turns

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are written, not shown
# A shell's background jobs ignore Ctrl-C and so do their children; tests that press it must not depend on that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Slow tests that are marked so take turns: those whose subject has changed, and of the others a third."""
    if slow := [(item, mark) for item in items if (mark := item.get_closest_marker("turns")) is not None]:
        taken = turns({item.nodeid: (item.path, *mark.args) for item, mark in slow})
        for item, _ in slow:
            if item.nodeid not in taken:
                item.add_marker(pytest.mark.skip(reason=NOT_YET))


def pytest_collection_finish():
    """What was imported and collected stays until the end: the collector of garbage need not walk it at every turn."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Only some of the claims and of the slow tests are run at each commit: these, and not those."""
    if lines := told(report for reports in terminalreporter.stats.values() for report in reports):
        terminalreporter.section("claims")
        for line in lines:
            terminalreporter.line(line)
    waited = [report for report in terminalreporter.stats.get("skipped", []) if NOT_YET in str(report.longrepr)]
    if waited:
        terminalreporter.section("slow tests")
        terminalreporter.line(f"did not run {len(waited)}, whose turn it is not; WEFT_TURNS=all runs all of them")
