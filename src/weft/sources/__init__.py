"""Where batches come from: arrays, data sets, few-shot episodes, rollouts."""

from weft.sources.arrays import Arrays
from weft.sources.episodes import Episodes
from weft.sources.rollouts import Rollouts

__all__ = ["Arrays", "Episodes", "Rollouts"]
