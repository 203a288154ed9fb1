"""Where batches come from: arrays, data sets, few-shot episodes, rollouts."""

from weft.sources.arrays import Arrays

__all__ = ["Arrays"]
