"""Scores: how good answers are, as functions of arrays, without a learner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.scores.calibration import coverage, expected_calibration_error
    from weft.scores.correcting import holm
    from weft.scores.likelihoods import InUnits, bits, bits_per_dimension, perplexity
    from weft.scores.predictions import accuracy, mean_interval, r_squared, r_squared_interval, score, wilson
    from weft.scores.samples.classifier import c2st
    from weft.scores.samples.kernels import energy_distance, mmd
    from weft.scores.samples.parzen import Parzen, parzen_likelihood
    from weft.scores.samples.reading import TwoSample
    from weft.scores.samples.support import (
        DensityCoverage,
        Modes,
        PrecisionRecall,
        density_coverage,
        modes,
        precision_recall,
    )
    from weft.scores.samples.transport import sliced_wasserstein, wasserstein
    from weft.scores.tasks import average_accuracy, backward_transfer, forgetting, forward_transfer

__getattr__, __dir__, __all__ = flat(__name__, __file__)
