import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.objectives import Classification, Regression
from weft.strategies import ERM, VREx

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
Y = (X[:, 0] + 0.3 * rng.normal(size=60) > 0).astype(int)
SITE = np.repeat([0, 1, 2], [30, 20, 10])  # unequal
SETTINGS = {"batch_size": None, "dtype": "float64", "random_state": 0, "optimizer": Optimizer("sgd", lr=0.1)}


def naive(weight, bias, strength, rescale, weighting):
    """The gradient of mean plus weighted variance by autograd through the losses themselves."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    losses, shares = [], []
    for e in np.unique(SITE):
        here = e == SITE
        logits = torch.as_tensor(X[here]) @ weight.T + bias
        losses.append(torch.nn.functional.cross_entropy(logits, torch.as_tensor(Y[here])))
        shares.append(here.mean() if weighting == "example" else 1 / 3)
    risks, shares = torch.stack(losses), torch.tensor(shares, dtype=torch.float64)
    mean = (shares * risks).sum()
    total = mean + strength * (shares * (risks - mean) ** 2).sum()
    return torch.autograd.grad(total / max(strength, 1.0) if rescale else total, (weight, bias))


@pytest.mark.parametrize("weighting", ["example", "group"])
@pytest.mark.parametrize(("strength", "rescale"), [(0.5, True), (30.0, True), (30.0, False)])
def test_a_step_is_the_naive_one(strength, rescale, weighting):
    net = torch.nn.Linear(3, 2).double()
    before = [p.detach().clone() for p in net.parameters()]
    strategy = VREx(strength=strength, rescale=rescale)
    learner = Learner(Classification(net), strategy=strategy, steps=1, init="keep", weighting=weighting, **SETTINGS)
    learner.fit(X, Y, environment=SITE)
    expected = naive(*before, strength, rescale, weighting)
    logits = torch.as_tensor(X) @ (before[0] - 0.1 * expected[0]).T + before[1] - 0.1 * expected[1]
    np.testing.assert_allclose(learner.predict_proba(X), logits.softmax(-1), rtol=1e-10)


def test_annealing_counts_steps():
    def after(steps, **settings):
        learner = Learner(Classification("linear"), strategy=VREx(rescale=False, **settings), steps=steps, **SETTINGS)
        return learner.fit(X, Y, environment=SITE).predict_proba(X)

    annealed = {"strength": 50.0, "anneal": 3, "before": 0.5}
    np.testing.assert_allclose(after(3, **annealed), after(3, strength=0.5), rtol=1e-12)
    assert np.abs(after(4, **annealed) - after(4, strength=0.5)).max() > 1e-4


@pytest.mark.turns("src/weft/strategies/invariance/*")
def test_risks_become_equal():
    """One constant c for targets a and b in two environments, of 3 rows and 1: the mean is (3 a + b) / 4,
    and where the variance rules it is the middle, at which both risks are the same."""
    x, y, site = np.zeros((4, 1)), np.array([0.0, 0.0, 0.0, 4.0]), [0, 0, 0, 1]
    settings = {"batch_size": None, "dtype": "float64", "steps": 4000, "optimizer": Optimizer("sgd", lr=0.01)}
    erm = Learner(Regression("linear"), strategy=ERM(), **settings).fit(x, y).predict(x)
    rex = (
        Learner(Regression("linear"), strategy=VREx(strength=1000.0), **settings).fit(x, y, environment=site).predict(x)
    )
    np.testing.assert_allclose(erm, 1.0, atol=1e-3)
    np.testing.assert_allclose(rex, 2.0, atol=1e-2)


def test_an_absent_environment_is_not_counted():
    g = {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])}
    strategy = VREx(strength=2.0)
    losses, weights = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([0.25, 0.75, 0.0])
    found, state = strategy.combine(g, losses, weights, strategy.init({}))
    two = {"w": g["w"][:2]}
    expected, _ = strategy.combine(two, losses[:2], weights[:2], strategy.init({}))
    torch.testing.assert_close(found, expected)
    assert state["step"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "strength to be a number >= 0, got -1.0"),
        ({"before": float("nan")}, "before to be a number >= 0, got nan"),
        ({"anneal": 1.5}, "anneal to be an integer >= 0, got 1.5"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(ValueError, match=f"VREx's {message}"):
        Learner(Classification(), strategy=VREx(**settings)).fit(X, Y, environment=SITE)


def test_one_environment_only():
    with pytest.raises(ValueError, match=r"VREx\(\) compares environments, got one only"):
        Learner(Classification(), strategy=VREx()).fit(X, Y, environment=["north"] * 60)
