import numpy as np
import pytest
import torch

from weft import Learner, Optimizer, weave
from weft.core.objective import Output
from weft.objectives import GAN, Classification, Regression
from weft.strategies import ERM, IRM, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)
SITE = np.repeat([0, 1, 2], [30, 20, 10])  # unequal
SETTINGS = {"batch_size": None, "dtype": "float64", "random_state": 0, "optimizer": Optimizer("sgd", lr=0.1)}


def naive(weight, bias, x, y, site, strength, rescale):
    """One gradient step's gradient, by torch.autograd on a dummy scale, environment by environment."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    total = 0.0
    for e in np.unique(site):
        here = torch.as_tensor(site == e)
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        nll = torch.nn.functional.cross_entropy(scale * (x[here] @ weight.T + bias), y[here])
        (slope,) = torch.autograd.grad(nll, scale, create_graph=True)
        total = total + (site == e).mean() * (nll + strength * slope.square())
    if rescale and strength > 1.0:
        total = total / strength
    return torch.autograd.grad(total, (weight, bias))


@pytest.mark.parametrize(("strength", "rescale"), [(0.5, True), (30.0, True), (30.0, False)])
def test_a_step_is_the_naive_one(strength, rescale):
    net = torch.nn.Linear(3, 2).double()
    before = [p.detach().clone() for p in net.parameters()]
    strategy = IRM(strength=strength, rescale=rescale)
    learner = Learner(Classification(net), strategy=strategy, steps=1, init="keep", **SETTINGS)
    learner.fit(X, Y, environment=SITE)
    expected = naive(*before, torch.as_tensor(X), torch.as_tensor(Y), SITE, strength, rescale)
    logits = torch.as_tensor(X) @ (before[0] - 0.1 * expected[0]).T + before[1] - 0.1 * expected[1]
    np.testing.assert_allclose(learner.predict_proba(X), logits.softmax(-1), rtol=1e-10)


def test_the_slope_in_closed_form():
    """Of half a squared error, d/dw |y - w z|^2 / 2 at 1 is z (z - y)."""
    z, y, weight = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0.0, 3.0, 0.0]), torch.tensor([1.0, 3.0, 0.0])
    rescore = lambda v: (y - v).square() / 2
    loss = lambda params, batch: Output(rescore(z), logits=z, rescore=rescore, weight=weight)
    found = IRM(strength=10.0, rescale=False).wrap(loss, {})({}, {}).losses
    slope = (1.0 * 1.0 * 1.0 + 3.0 * 2.0 * -1.0) / 4.0
    torch.testing.assert_close(found, rescore(z) + 10.0 * slope**2)


def test_annealing_counts_steps():
    """Up to `anneal` the run is that with the weight `before`; after it, that with `strength`."""

    def after(steps, **settings):
        learner = Learner(Classification("linear"), strategy=IRM(rescale=False, **settings), steps=steps, **SETTINGS)
        return learner.fit(X, Y, environment=SITE).predict_proba(X)

    annealed = {"strength": 50.0, "anneal": 3, "before": 0.5}
    np.testing.assert_allclose(after(3, **annealed), after(3, strength=0.5), rtol=1e-12)
    assert np.abs(after(4, **annealed) - after(4, strength=0.5)).max() > 1e-3


@pytest.mark.turns("src/weft/strategies/invariance/*")
def test_it_leaves_the_shortcut_that_risk_minimization_takes():
    """y = x1 + noise, x2 = y + noise of another size in each environment (the paper's section 3): the
    invariant predictor uses x1 alone, least squares leans on x2."""
    rng = np.random.default_rng(1)
    parts = []
    for e, noise in enumerate((0.2, 2.0)):
        cause = rng.normal(size=2000)
        y = cause + rng.normal(size=2000)
        parts.append(np.column_stack([cause, y + noise * rng.normal(size=2000), y, np.full(2000, e)]))
    data = np.concatenate(parts)

    def slopes(strategy, **environment):
        net = torch.nn.Linear(2, 1, bias=False)
        learner = Learner(Regression(net), strategy=strategy, steps=1500, batch_size=None, dtype="float64")
        learner.set_params(optimizer=Optimizer("adam", lr=0.01), random_state=0)
        return learner.fit(data[:, :2], data[:, 2], **environment).predict(np.eye(2))

    # From the start the penalty would draw it to zero, which is calibrated everywhere too.
    strategy = IRM(strength=100.0, anneal=500, before=0.0)
    plain, invariant = slopes(ERM()), slopes(strategy, environment=data[:, 3])
    assert plain[0] < 0.7
    assert plain[1] > 0.3
    assert invariant[0] > 0.9
    assert invariant[1] < 0.5 * plain[1]


def test_it_weaves_with_a_mask():
    strategy = weave(IRM(strength=1.0), ANDMask(threshold=0.3))
    learner = Learner(Classification("linear"), strategy=strategy, steps=20, **SETTINGS)
    history = learner.fit(X, Y, environment=SITE).history_["loss"]
    assert history[-1] < history[0]


def test_an_absent_environment_counts_for_nothing():
    """Weight zero on all of an environment's rows is as if it were not there."""
    weight = (SITE != 2).astype(float)
    strategy = IRM(strength=5.0)
    some = Learner(Classification("linear"), strategy=strategy, steps=5, **SETTINGS)
    some.fit(X, Y, environment=SITE, sample_weight=weight)
    rest = Learner(Classification("linear"), strategy=strategy, steps=5, **SETTINGS)
    rest.fit(X[SITE != 2], Y[SITE != 2], environment=SITE[SITE != 2])
    np.testing.assert_allclose(some.predict_proba(X), rest.predict_proba(X), rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength to be a number >= 0, got -1.0"),
        ({"before": float("nan")}, "before to be a number >= 0, got nan"),
        ({"anneal": -1}, "anneal to be an integer >= 0, got -1"),
        ({"anneal": 0.5}, "anneal to be an integer >= 0, got 0.5"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        Learner(Classification(), strategy=IRM(**settings)).fit(X, Y, environment=SITE)


def test_one_environment_only():
    with pytest.raises(ValueError, match=r"IRM\(\) compares environments, got one only"):
        Learner(Classification(), strategy=IRM()).fit(X, Y, environment=["north"] * 60)


def test_a_loss_without_outputs_is_refused():
    with pytest.raises(ValueError, match="what scaling the outputs would gain"):
        Learner(GAN(), strategy=IRM()).fit(X, environment=SITE)


def test_annealed_it_still_weaves_with_a_mask():
    """It acts on the loss and, counting, on the step; the mask between them acts on gradients."""
    woven = weave(IRM(strength=10.0, anneal=3), ANDMask(threshold=0.2))
    learner = Learner(Classification(hidden=(8,)), strategy=woven, steps=6, **SETTINGS)
    learner.fit(X, Y, environment=SITE)
    assert int(learner.training_.runs[0][1].strategy[""]["irm"]["step"]) == 6
