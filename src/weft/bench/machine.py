"""Versions and the machine, for whatever reports a figure."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["machine", "versions"]

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "matplotlib", "optuna", "joblib")


def versions() -> dict[str, str]:
    """The versions of weft, of Python and of the packages that figures may depend on."""
    from weft import __version__

    versions = {"weft": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def machine() -> Json:
    """The processor, its cores, the accelerator that learners take where there is one, and the Python."""
    import torch

    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            processor = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), processor)
    except OSError:
        pass
    about = {"processor": processor, "cores": os.cpu_count() or 1, "python": platform.python_version()}
    return about | ({"accelerator": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})
