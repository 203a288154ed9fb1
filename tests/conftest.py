"""What all tests share."""

import os
import signal

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are written, not shown
# A shell's background jobs ignore Ctrl-C and so do their children; tests that press it must not depend on that.
signal.signal(signal.SIGINT, signal.default_int_handler)
