"""Measures of what was learned: risk by environment, agreement and signal of gradients, consistency of optima."""

from weft.measures.gradients import Agreement, Signal, environment_gradients, feature_signal, sign_agreement
from weft.measures.ilc import Consistency, consistency, learner_consistency, quadratic_consistency
from weft.measures.risk import Risk, environment_risk

__all__ = [
    "Agreement",
    "Consistency",
    "Risk",
    "Signal",
    "consistency",
    "environment_gradients",
    "environment_risk",
    "feature_signal",
    "learner_consistency",
    "quadratic_consistency",
    "sign_agreement",
]
