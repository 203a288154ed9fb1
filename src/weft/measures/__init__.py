"""Measures of what was learned: risk by environment, agreement of gradients, consistency of optima, what is kept of
tasks in sequence, calibration, criteria of densities, what codes tell and what they cost, predictive checks. Those that
need no learner are of `weft.scores`, and can be had here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.measures.calibration import Posterior, posterior
    from weft.measures.checks import Checked, PredictiveCheck, predictive_check
    from weft.measures.codes import ActiveUnits, active_units
    from weft.measures.correlation import total_correlation
    from weft.measures.criteria import aic, bic
    from weft.measures.critics import Bound
    from weft.measures.gaps import InferenceGaps, inference_gaps
    from weft.measures.gradients import Agreement, Signal, environment_gradients, feature_signal, sign_agreement
    from weft.measures.ilc import Consistency, consistency, learner_consistency, quadratic_consistency
    from weft.measures.information import fisher, fisher_overlap
    from weft.measures.mutual import infonce, mine
    from weft.measures.rates import RateDistortion, RateDistortionPoint, rate_distortion
    from weft.measures.risk import Risk, environment_risk
    from weft.measures.tasks import TaskMatrix, accuracy_matrix, task_scores
    from weft.measures.text import bits_per_character
    from weft.scores.calibration import coverage, expected_calibration_error
    from weft.scores.tasks import average_accuracy, backward_transfer, forgetting, forward_transfer

__getattr__, __dir__, __all__ = flat(__name__, __file__)
