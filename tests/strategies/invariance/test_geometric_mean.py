from fractions import Fraction

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.objectives import Regression
from weft.strategies import ERM, GeometricMean


def definition(gradients, weights, threshold, fallback):
    """Component by component, with the plain product of powers."""
    out = np.zeros(gradients.shape[1:])
    for index in np.ndindex(*out.shape):
        column = [(v, w) for v, w in zip(gradients[(slice(None), *index)], weights, strict=True) if w > 0]
        plus, minus = sum(v > 0 for v, _ in column), sum(v < 0 for v, _ in column)
        if abs(plus - minus) < Fraction(str(threshold)) * (plus + minus):
            continue
        if plus + minus < len(column) and fallback:
            out[index] = sum(v * w for v, w in column)
        else:
            out[index] = np.sign(plus - minus) * np.prod([abs(v) ** w for v, w in column])
    return out


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("environments", [2, 5, 10])
def test_the_definition(threshold, fallback, environments):
    rng = np.random.default_rng(environments)
    g = rng.normal(size=(environments, 6, 7))
    g[:, :3] = np.abs(g[:, :3])  # some that all agree on
    g[0, 1] = 0.0  # some that one has no gradient for
    g[:, 2, :3] = 0.0  # and some that none has
    weights = rng.uniform(0.5, 1.0, environments)
    weights /= weights.sum()
    args = torch.zeros(environments, dtype=torch.float64), torch.as_tensor(weights), {}
    found, _ = GeometricMean(threshold=threshold, fallback=fallback).combine({"w": torch.as_tensor(g)}, *args)
    np.testing.assert_allclose(found["w"], definition(g, weights, threshold, fallback), atol=1e-12)


def test_the_log_domain_does_not_underflow():
    g = torch.full((64, 1), 1e-6)
    assert g.prod(0) == 0.0
    found, _ = GeometricMean().combine({"w": g}, torch.zeros(64), torch.full((64,), 1 / 64), {})
    torch.testing.assert_close(found["w"], torch.tensor([1e-6]), rtol=1e-4, atol=0.0)


def test_an_absent_environment_is_not_counted():
    g = torch.tensor([[1.0, -2.0], [4.0, -8.0], [0.0, 0.0]])
    weights = torch.tensor([0.5, 0.5, 0.0])
    found, _ = GeometricMean().combine({"w": g}, torch.zeros(3), weights, {})
    torch.testing.assert_close(found["w"], torch.tensor([2.0, -4.0]))


def test_half_precision_keeps_its_type():
    g = torch.tensor([[1.0], [4.0]], dtype=torch.bfloat16)
    weights = torch.tensor([0.5, 0.5])
    found, _ = GeometricMean().combine({"w": g}, torch.zeros(2, dtype=torch.bfloat16), weights, {})
    assert found["w"].dtype == torch.bfloat16
    assert found["w"].item() == 2.0


def test_one_dead_environment_freezes_a_component_and_the_fallback_frees_it():
    """Two quadratics in w; the second environment's input for the second component is always zero."""
    x = np.array([[1.0, 1.0], [1.0, -1.0], [2.0, 0.0], [2.0, 0.0]])
    y = x @ np.array([1.0, 3.0])
    settings = {"optimizer": Optimizer("sgd", lr=0.1), "steps": 300, "batch_size": None, "dtype": "float64"}

    def slope(strategy, **environment):
        net = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(net.weight)
        return (
            Learner(Regression(net), strategy=strategy, init="keep", **settings)
            .fit(x, y, **environment)
            .predict(np.eye(2))
        )

    np.testing.assert_allclose(slope(ERM()), [1.0, 3.0], atol=1e-5)
    np.testing.assert_allclose(slope(GeometricMean(), environment=[0, 0, 1, 1]), [1.0, 0.0], atol=1e-5)
    freed = slope(GeometricMean(fallback=True), environment=[0, 0, 1, 1])
    np.testing.assert_allclose(freed, [1.0, 3.0], atol=1e-5)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_threshold_out_of_range(threshold):
    with pytest.raises(ValueError, match=r"GeometricMean's threshold to be a number in \[0, 1\], got"):
        Learner(Regression(), strategy=GeometricMean(threshold=threshold)).fit(
            [[0.0], [1.0]], [0, 1], environment=[0, 1]
        )


def test_fallback_is_a_switch():
    with pytest.raises(TypeError, match="fallback to be True or False, got 'mean'"):
        GeometricMean(fallback="mean").validate()


@pytest.mark.parametrize(
    ("environment", "message"),
    [(None, r"GeometricMean\(\) compares environments, got none"), (["north"] * 2, r"got one only \('north'\)")],
)
def test_one_environment_only(environment, message):
    with pytest.raises(ValueError, match=message):
        Learner(Regression(), strategy=GeometricMean(), steps=1).fit([[0.0], [1.0]], [0, 1], environment=environment)
