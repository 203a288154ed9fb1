"""Measures of what was learned: risk by environment, agreement of gradients, consistency of optima, what is kept of
tasks in sequence, calibration."""

from weft.measures.calibration import Posterior, coverage, expected_calibration_error, posterior
from weft.measures.continual import (
    TaskMatrix,
    accuracy_matrix,
    average_accuracy,
    backward_transfer,
    fisher,
    fisher_overlap,
    forgetting,
    forward_transfer,
    task_scores,
)
from weft.measures.gradients import Agreement, Signal, environment_gradients, feature_signal, sign_agreement
from weft.measures.ilc import Consistency, consistency, learner_consistency, quadratic_consistency
from weft.measures.risk import Risk, environment_risk

__all__ = [
    "Agreement",
    "Consistency",
    "Posterior",
    "Risk",
    "Signal",
    "TaskMatrix",
    "accuracy_matrix",
    "average_accuracy",
    "backward_transfer",
    "consistency",
    "coverage",
    "environment_gradients",
    "environment_risk",
    "expected_calibration_error",
    "feature_signal",
    "fisher",
    "fisher_overlap",
    "forgetting",
    "forward_transfer",
    "learner_consistency",
    "posterior",
    "quadratic_consistency",
    "sign_agreement",
    "task_scores",
]
