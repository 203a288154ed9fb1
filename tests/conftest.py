"""What all tests share."""

import os
import signal

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are written, not shown
# A shell's background jobs ignore Ctrl-C and so do their children; tests that press it must not depend on that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """Only some of the claims are run at each commit: these, and not those."""
    from .claims.selection import told

    if lines := told(report for reports in terminalreporter.stats.values() for report in reports):
        terminalreporter.section("claims")
        for line in lines:
            terminalreporter.line(line)
