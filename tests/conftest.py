"""What all tests share."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are written, not shown
