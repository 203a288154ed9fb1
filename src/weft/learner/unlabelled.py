"""Rows without a label: what stands in place of it, and where it must not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["without_label"]


def without_label(names: NDArray[Any], whose: str, classes: Any = None, *, asked: bool) -> NDArray[np.bool_]:
    """Which rows of an objective that learns from unlabelled ones have no label, but -1 in place of it.

    Args:
        names: the labels.
        whose: the objective's name, for errors.
        classes: all labels, where they were listed.
        asked: whether something is asked about these rows; then each needs its label.
    """
    if names.dtype.kind in "US" and "-1" in names.astype(str):
        raise ValueError(
            f"expected the number -1 for rows of {whose} without a label, got the text '-1'; beside labels that are "
            "text it stays a number in an array of objects: np.array([...], dtype=object)"
        )
    absent = np.array([not isinstance(label, str) and label == -1 for label in names.tolist()], dtype=bool)
    if absent.any() and asked:
        raise ValueError(
            f"expected the class of each row that {whose} is asked about, got -1, which is none, in "
            f"{int(absent.sum())} of {len(absent)} rows; leave y out for those"
        )
    if absent.all():
        raise ValueError(f"expected some rows with a label for {whose}, got -1 in all of {len(absent)}")
    if classes is not None and -1 in list(classes):
        raise ValueError(f"expected classes of {whose} without -1, which is a row without a label, got {classes}")
    return absent
