"""Active units: as many as the data have factors, and a warning where the code tells nothing."""

import warnings

import numpy as np
import pytest

from weft import Classifier, Learner, Optimizer
from weft.measures import active_units
from weft.objectives import ICA, VAE, FactorAnalysis

FAST = Optimizer("adam", lr=0.05)


@pytest.fixture(scope="module")
def factors():
    """Six columns that two latents explain, in the sample too: its covariance is W'W + I exactly."""
    W = np.array([[2.0, 2.0, 2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.5, 1.5, 1.5]])
    drawn = np.random.default_rng(0).normal(size=(1000, 6))
    drawn -= drawn.mean(0)
    white = drawn @ np.linalg.inv(np.linalg.cholesky(drawn.T @ drawn / len(drawn))).T
    return (white @ np.linalg.cholesky(W.T @ W + np.eye(6)).T).astype(np.float32)


def linear(**more):
    """A VAE whose optimum is probabilistic PCA with surplus latents, and with more noise than the rest of the data."""
    model = VAE(5, hidden=(), noise=1.3, **more)
    return Learner(model, optimizer=FAST, steps=300, batch_size=500, schedule="cosine", random_state=0)


@pytest.fixture(scope="module")
def surplus(factors):
    return linear().fit(factors)


def test_a_linear_vae_with_surplus_latents_uses_as_many_as_there_are_factors(surplus, factors):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = active_units(surplus, factors)
    assert int(found) == 2
    assert not found.collapsed
    assert "2 of 5 entries of the code are active; a code tells" in found.conclusion
    largest = np.sort(found.variances)[::-1]
    # of a direction with eigenvalue v that is used, 1 - noise / v; of the others nothing
    assert largest[:2].sum() == pytest.approx(2 - 1.69 / 13 - 1.69 / 7.75, abs=0.1)
    assert largest[2] < 0.005
    assert found.rate == pytest.approx(0.5 * np.log(13 / 1.69) + 0.5 * np.log(7.75 / 1.69), abs=0.1)


def test_the_variance_of_draws_is_no_activity(surplus, factors):
    """A mutant: draws of the posterior vary whether or not the code tells anything."""
    drawn = np.asarray(surplus.posterior(factors, draws=1, random_state=0))[:, 0]
    assert (drawn.var(0) > 0.01).sum() == 5


def test_a_collapsed_posterior_is_warned_of(factors):
    collapsed = linear(beta=100.0).fit(factors)
    with pytest.warns(UserWarning, match="0 of 5 entries of the code are active.*collapsed into the prior"):
        found = active_units(collapsed, factors)
    assert found.collapsed
    assert found.active == ()
    assert found.rate < 0.01


def test_bad_input_is_told(surplus, factors):
    assert int(active_units(Learner(FactorAnalysis(2), random_state=0).fit(factors), factors)) == 2
    with pytest.raises(ValueError, match="at least 2 rows to see how codes vary, got 1"):
        active_units(surplus, factors[:1])
    with pytest.raises(ValueError, match="expected threshold to be"):
        active_units(surplus, factors, threshold=-1.0)
    with pytest.raises(TypeError, match=r"expected a model with latent variables, .* got ICA, which offers"):
        active_units(Learner(ICA(), random_state=0).fit(factors), factors)
    with pytest.raises(TypeError, match=r"expected a model with latent variables, .* got Classification"):
        active_units(Classifier(steps=1, random_state=0).fit(factors, factors[:, 0] > 0), factors)
    two = Learner(VAE(2, hidden=()), steps=1, replicas=2, random_state=0).fit(factors)
    with pytest.raises(ValueError, match="expected one replica to answer 'transform', got 2"):
        active_units(two, factors)
