"""AIC and BIC against scikit-learn's and closed forms; refused where there is no exact likelihood."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.mixture import GaussianMixture as Peer
from torch import nn

from weft import Learner
from weft.core import capability
from weft.measures import aic, bic
from weft.objectives import GAN, Gaussian, Independent
from weft.objectives.densities import Density

X = np.random.default_rng(0).normal(size=(150, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 2.0]])


def fitted(objective, rows=X, **settings):
    return Learner(objective, dtype="float64", random_state=0, **settings).fit(rows)


@pytest.mark.parametrize(("objective", "shape"), [(Gaussian(), "full"), (Independent(), "diag")], ids=["full", "diag"])
def test_as_scikit_learn_has_them(objective, shape):
    learner, peer = fitted(objective), Peer(1, covariance_type=shape, reg_covar=0.0).fit(X)
    assert aic(learner, X) == pytest.approx(peer.aic(X), rel=1e-9)
    assert bic(learner, X) == pytest.approx(peer.bic(X), rel=1e-9)


def test_of_a_mixed_table_by_hand():
    table = pd.DataFrame({"n": [0, 1, 1, 4], "kind": ["a", "b", "c", "a"], "yes": [True, False, False, False]})
    learner = fitted(Independent(smoothing=0.0), table)
    rate = 1.5
    poisson = sum(k * np.log(rate) - rate - np.log(f) for k, f in zip([0, 1, 1, 4], [1, 1, 1, 24], strict=True))
    log = poisson + 2 * np.log(0.5) + 2 * np.log(0.25) + np.log(0.25) + 3 * np.log(0.75)
    assert aic(learner, table) == pytest.approx(2 * (1 + 2 + 1) - 2 * log)
    assert bic(learner, table) == pytest.approx(4 * np.log(4) - 2 * log)


class Bounded(Density):
    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))

    @capability(merge="logmeanexp", kind="lower bound")
    def log_prob(self, x):
        return -((x - self.mean) ** 2).sum(-1)


def test_refused_without_an_exact_likelihood():
    with pytest.raises(ValueError, match=r"exact likelihood for AIC, got lower bound from Bounded: .*bayes_factor"):
        aic(fitted(Bounded(), steps=2), X)
    with pytest.raises(TypeError, match="a density whose parameters count for BIC, got GAN"):
        bic(fitted(GAN(latent=2, hidden=(4,)), steps=2), X)
    with pytest.raises(ValueError, match=r"one model for AIC, got 2 replicas.*replica\(0\)"):
        aic(fitted(Independent(), replicas=2), X)
    assert aic(fitted(Independent(), replicas=2).replica(0), X) == pytest.approx(aic(fitted(Independent()), X))
